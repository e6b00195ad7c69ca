//! Runs the commands of the README, the tutorial and the guides, and compares their output.

use std::{fs, path::PathBuf};

use vramd_client::{Access, AllocationRequest, Bytes, Client};
use vramd_tests::{
    Config, Daemon, MIB, content,
    guide::{Guide, Surroundings},
    programs::program,
    tools,
};

/// The configuration of Llama 3 70B, as far as its size goes.
const LLAMA: &str = r#"{"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256, "hidden_act": "silu",
    "torch_dtype": "bfloat16"}"#;

/// The surroundings of a guide beside a running daemon: `/run/vramd` and `/etc/vramd` mean its folders.
pub(super) fn surroundings(daemon: &Daemon) -> Surroundings<'_> {
    let home = daemon.home().path();
    Surroundings {
        folder: home,
        programs: programs(),
        environment: vec![("VRAMD_SOCKET_DIR", daemon.sockets())],
        replacements: vec![
            ("/run/vramd", daemon.sockets().display().to_string()),
            ("/etc/vramd", home.display().to_string()),
        ],
    }
}

/// Where the programs and tools of guides are.
fn programs() -> Vec<PathBuf> {
    vec![PathBuf::from(program("vramctl").parent().unwrap()), tools::folder()]
}

/// Beside a file of weights, as its reader has one.
#[test]
fn readme_commands_run_as_written() {
    let daemon = Daemon::new();
    fs::write(daemon.home().path().join("model.safetensors"), content(3 * MIB, 1)).unwrap();
    let guide = Guide::read("README.md");
    assert!(guide.len() >= 3, "{guide:?}");
    guide.run(&surroundings(&daemon));
    assert!(daemon.state().quotas.iter().any(|row| row.tenant == "team-b" && row.limit == "24GiB"));
}

/// The tutorial starts a daemon of its own.
#[test]
fn tutorial_runs_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let guide = Guide::read("docs/start/README.md");
    assert!(guide.len() >= 20, "{} commands", guide.len());
    guide.run(&Surroundings {
        folder: folder.path(),
        programs: programs(),
        environment: vec![],
        replacements: vec![("/tmp/vramd-start", folder.path().display().to_string())],
    });
}

/// On a node of two devices, where a process of `team-a` trains.
#[test]
fn operators_guide_runs_as_written() {
    let own = rustix::process::geteuid().as_raw();
    let mut node = Config::devices(&["16GiB", "16GiB"]).memory("host_size = \"1GiB\"");
    // Slow enough that the guide can list a move under way.
    node.sim.push("link_to_host = \"1MiB\"".to_owned());
    let daemon = Daemon::start(&node.tenant(own, "team-a"));
    let mut training = daemon.probe();
    let session = training.ask("open")["session"].clone();
    let memory = training.ask(&format!("allocate {}", 600 * MIB))["allocation"].clone();
    fs::write(daemon.home().path().join("model.safetensors"), content(3 * MIB, 1)).unwrap();
    let model = daemon.home().path().join("llama-70b");
    fs::create_dir(&model).unwrap();
    fs::write(model.join("config.json"), LLAMA).unwrap();
    let guide = Guide::read("docs/guides/operators.md");
    assert!(guide.len() >= 30, "{} commands", guide.len());
    let mut surroundings = surroundings(&daemon);
    surroundings.replacements.push(("a-1640208113025", format!("a-{memory}")));
    surroundings.replacements.push(("s-1873390527411", format!("s-{session}")));
    guide.run(&surroundings);
}

/// Where a program of `team-a` has more than fits on the device, and pins half of it.
#[test]
fn moving_guide_commands_run_as_written() {
    let own = rustix::process::geteuid().as_raw();
    let node = Config::devices(&["16MiB"]).memory("host_size = \"64MiB\"");
    let daemon = Daemon::start(&node.tenant(own, "team-a"));
    let client = Client::builder().socket_dir(daemon.sockets()).connect().unwrap();
    let request = AllocationRequest::new(Bytes::mib(12)).unpinned();
    let cache = client.allocate(request.clone()).unwrap();
    drop(cache.pin(Access::Write).unwrap());
    let crowd = client.allocate(request).unwrap();
    let pinned = crowd.pin(Access::Write).unwrap();
    let guide = Guide::read("docs/guides/moving.md");
    assert!(guide.len() >= 5, "{} commands", guide.len());
    let mut surroundings = surroundings(&daemon);
    surroundings.replacements.push(("a-1640208113025", cache.id().to_string()));
    surroundings.replacements.push(("a-1290043371986", crowd.id().to_string()));
    surroundings.replacements.push(("s-1873390527411", client.session_id().to_string()));
    guide.run(&surroundings);
    drop((pinned, cache, crowd));
    client.flush().unwrap();
    daemon.drains();
}
