//! `make stack`: a daemon under load, with a Prometheus that scrapes it, ends as a whole and leaves nothing.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use vramd_tests::{
    guide::{Guide, Surroundings},
    programs::{program, repository},
    prometheus, tools, wait,
};

/// Ends a stack, with a process group of its own, whose test has failed.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::TERM);
    }
}

const PAGE: &str = "docs/operations/stack.md";

/// The rest of the line that begins with this word.
fn line_of<'a>(said: &'a [String], word: &str) -> &'a str {
    let line = said.iter().find_map(|line| line.strip_prefix(word));
    line.unwrap_or_else(|| panic!("no line {word} in {said:#?}")).trim()
}

fn address_in(line: &str) -> SocketAddr {
    let rest = line.split("http://").nth(1).unwrap_or_else(|| panic!("no address in {line}"));
    rest.split(['/', ' ']).next().unwrap().parse().unwrap()
}

/// The processes that name this folder in their arguments.
fn processes_with(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().unwrap();
    let all =
        fs::read_dir("/proc").unwrap().filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok());
    let lines = all.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(folder)).collect()
}

/// The page's command, on the programs that are built. Its other commands run beside it, and Prometheus has what moves.
#[test]
fn stack_moves_as_its_page_says_and_leaves_nothing() {
    let text = fs::read_to_string(repository().join(PAGE)).unwrap();
    let command = text.split("```sh\n").nth(1).and_then(|rest| rest.split("\n```").next());
    assert_eq!(command, Some("make stack"));
    let programs = program("vramctl").parent().unwrap().to_owned();
    let stack = Command::new("make")
        .current_dir(repository())
        .args(["--silent", "stack"])
        .arg(format!("ARGS=--programs '{}' --for 240", programs.display()))
        // A Prometheus of the machine would do too; here the one of the tests is certain.
        .env("PATH", format!("{}:{}", tools::folder().display(), std::env::var("PATH").unwrap()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut stack = Group(stack);
    let mut lines = BufReader::new(stack.0.stdout.take().unwrap()).lines();
    let mut said = Vec::new();
    for line in lines.by_ref() {
        said.push(line.unwrap());
        if said.last().unwrap().starts_with("Ctrl-C") {
            break;
        }
    }
    let sockets = line_of(&said, "operator").split(['=', ' ']).nth(2).unwrap().to_owned();
    let home = PathBuf::from(&sockets).parent().unwrap().to_owned();
    let server = address_in(line_of(&said, "Prometheus"));
    assert!(line_of(&said, "Grafana").starts_with("http://") || line_of(&said, "Grafana").contains("import"));

    let guide = Guide::read(PAGE);
    assert!(guide.len() >= 6, "{} commands", guide.len());
    guide.run(&Surroundings {
        folder: &home,
        programs: vec![programs],
        environment: vec![("VRAMD_SOCKET_DIR", PathBuf::from(sockets))],
        replacements: vec![("127.0.0.1:9090", server.to_string())],
    });

    let above_zero = [
        ("up{job=\"vramd\"} == 1", 1),
        ("sum by (vramd_tenant) (vramd_quota_usage_bytes) > 0", if vramd_tests::is_root() { 4 } else { 1 }),
        ("rate(vramd_pins_total[30s]) > 0", 1),
        ("sum(rate(vramd_migration_io_bytes_total{vramd_migration_outcome=\"moved\"}[30s])) > 0", 1),
        ("sum(rate(vramd_evictions_total[30s])) > 0", 1),
        ("sum(rate(vramd_prefetches_total[30s])) > 0", 1),
        ("sum(vramd_tenant_refusals_total) > 0", 1),
    ];
    for (expression, count_min) in above_zero {
        let mut found = Vec::new();
        let moves = wait::within(Duration::from_secs(60), || {
            found = prometheus::query(server, expression, "vramd_tenant");
            (found.len() >= count_min).then_some(())
        });
        assert!(moves.is_some(), "{expression} has {found:?}");
    }

    // As Ctrl-C does, to the script alone: `make` passes its end on.
    let script = process_of_script(stack.0.id());
    kill_process(Pid::from_raw(script).unwrap(), Signal::INT).unwrap();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    let status = stack.0.wait().unwrap();
    assert!(status.success(), "{status}: {rest:?}");
    assert_eq!(processes_with(&home), Vec::<String>::new());
    assert!(!home.exists(), "{} is left", home.display());
}

/// The process id of the script that `make` started.
fn process_of_script(make: u32) -> i32 {
    let children = fs::read_to_string(format!("/proc/{make}/task/{make}/children")).unwrap();
    let mut below: Vec<i32> = children.split_whitespace().map(|id| id.parse().unwrap()).collect();
    // A shell may stand between them.
    loop {
        let [process] = below.as_slice() else { panic!("make has the children {below:?}") };
        let line = fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap();
        if line.contains("python") {
            return *process;
        }
        let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
        below = children.split_whitespace().map(|id| id.parse().unwrap()).collect();
    }
}

/// By the reference implementation of compose files, which resolves every path.
#[test]
fn compose_file_is_accepted_and_names_what_exists() {
    let file = repository().join("deploy/compose/compose.yaml");
    let output = Command::new(tools::folder().join("../venv/bin/docker-compose"))
        .arg("--file")
        .arg(&file)
        .args(["config", "--format", "json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let config: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut mounted = 0;
    let rights = ["CHOWN", "DAC_READ_SEARCH", "IPC_LOCK", "KILL", "SYS_PTRACE"];
    assert_eq!(config["services"]["vramd"]["cap_add"], serde_json::json!(rights));
    for (name, service) in config["services"].as_object().unwrap() {
        let image = service["image"].as_str().unwrap_or_default();
        if let Some(build) = service["build"].as_object() {
            let context = Path::new(build["context"].as_str().unwrap());
            let dockerfile = context.join(build["dockerfile"].as_str().unwrap());
            assert!(dockerfile.is_file(), "{name}: {} is missing", dockerfile.display());
        } else {
            let version = image.rsplit(':').next().unwrap();
            assert!(version.contains('.'), "{name}: {image} is not pinned");
        }
        for volume in service["volumes"].as_array().into_iter().flatten() {
            if volume["target"] == "/run/vramd" {
                assert_eq!(service["cap_drop"], serde_json::json!(["ALL"]), "{name}");
                assert_eq!(service["security_opt"], serde_json::json!(["no-new-privileges"]), "{name}");
                assert_eq!(volume["read_only"] == true, name != "vramd", "{name}: {volume}");
            }
            if volume["type"] == "bind" {
                let source = volume["source"].as_str().unwrap();
                assert!(Path::new(source).exists(), "{name}: {source} is missing");
                mounted += 1;
            }
        }
    }
    assert!(mounted >= 4, "{mounted} files are mounted");
}
