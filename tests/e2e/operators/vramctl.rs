//! `vramctl` as people and scripts use it: text to read, JSON to parse, an exit status to branch on.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;
use vramd_tests::{
    Config, Daemon, Home, MIB, content, digest,
    programs::{copied, program},
    session::{persistent, spec},
    wait::until,
};

const REFUSED: i32 = 1;
const USAGE: i32 = 2;
const UNREACHABLE: i32 = 3;

#[track_caller]
fn text(daemon: &Daemon, words: &[&str]) -> String {
    let output = daemon.vramctl().args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn json(daemon: &Daemon, words: &[&str]) -> Value {
    let object: Value = serde_json::from_str(&text(daemon, &[words, &["--json"]].concat())).unwrap();
    assert_eq!(object["version"], 1, "{object}");
    object
}

#[track_caller]
fn fails(daemon: &Daemon, words: &[&str], status: i32) -> Output {
    let output = daemon.vramctl().args(words).output().unwrap();
    assert_eq!(output.status.code(), Some(status), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(!output.stderr.is_empty(), "{words:?} says why");
    output
}

/// Starts a process that stays attached until its standard input ends.
fn hold(daemon: &Daemon, words: &[&str]) -> (Child, String) {
    let mut command: Command = daemon.vramctl();
    let mut child =
        command.args(words).arg("--hold").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
    (child, said)
}

#[test]
fn a_file_is_put_and_verified_by_two_processes() {
    let daemon = Daemon::new();
    let file = daemon.home().path().join("model");
    let bytes = content(9 * MIB + 5, 1);
    fs::write(&file, &bytes).unwrap();
    let path = file.to_str().unwrap();
    let put = json(&daemon, &["put", path, "model"]);
    assert_eq!(put["digest"], digest(&bytes));
    assert_eq!(put["size_bytes"], 9 * MIB + 5);
    assert_eq!(put["charged_bytes"], 10 * MIB);

    let (mut first, said) = hold(&daemon, &["verify", "model", path]);
    assert!(said.starts_with(&format!("verified {}", digest(&bytes))), "{said}");
    let (mut second, said) = hold(&daemon, &["verify", put["allocation_id"].as_str().unwrap()]);
    assert!(said.starts_with(&format!("verified {}", digest(&bytes))), "{said}");
    assert_eq!(daemon.state().allocations[0].mapper_count, 2, "both at once");
    for child in [&mut first, &mut second] {
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
    until("no session maps it", || daemon.state().allocations[0].mapper_count == 0);
    until("their sessions are gone", || daemon.state().sessions.is_empty());
}

#[test]
fn verify_refuses_the_bytes_of_another_file() {
    let daemon = Daemon::new();
    let (file, other) = (daemon.home().path().join("model"), daemon.home().path().join("other"));
    fs::write(&file, content(MIB, 1)).unwrap();
    fs::write(&other, content(MIB, 2)).unwrap();
    text(&daemon, &["put", file.to_str().unwrap(), "model"]);
    let output = fails(&daemon, &["--json", "verify", "model", other.to_str().unwrap()], REFUSED);
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((&error["version"], &error["error"]["reason"]), (&1.into(), &"DIGEST_MISMATCH".into()));
    assert_eq!(error["error"]["facts"]["found"], digest(&content(MIB, 1)));
}

/// A file of two tensors in the format safetensors, the second of which has this byte in its midst.
fn checkpoint(byte: u8) -> Vec<u8> {
    let header = r#"{"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},"b":{"dtype":"F32","shape":[2,2],"data_offsets":[5,21]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend([1; 5 + 16]);
    let middle = file.len() - 8;
    file[middle] = byte;
    file
}

/// The same as `vramd.load` lays it out: each tensor aligned, and an index at the end.
fn loaded(byte: u8) -> Vec<u8> {
    let mut bytes = vec![0; 256 + 16];
    bytes[..5].fill(1);
    bytes[256..].fill(1);
    bytes[256 + 8] = byte;
    let index = br#"{"tensors":{"a":["U8",[5],0,5],"b":["F32",[2,2],256,272]},"metadata":{},"sources":[]}"#;
    bytes.extend(index);
    bytes.extend((index.len() as u64).to_le_bytes());
    bytes.extend(b"vramd index 1\0\0\0");
    bytes
}

#[test]
fn verify_compares_a_checkpoint_by_its_tensors() {
    let daemon = Daemon::new();
    let folder = daemon.home().path().join("checkpoint");
    fs::create_dir(&folder).unwrap();
    let (image, file) = (daemon.home().path().join("image"), folder.join("model.safetensors"));
    let index = folder.join("model.safetensors.index.json");
    fs::write(&file, checkpoint(7)).unwrap();
    fs::write(&index, r#"{"weight_map":{"a":"model.safetensors","b":"model.safetensors"}}"#).unwrap();
    for (name, bytes) in
        [("loaded", loaded(7)), ("in-place", checkpoint(7)), ("other", loaded(8)), ("plain", vec![3; 99])]
    {
        fs::write(&image, bytes).unwrap();
        text(&daemon, &["put", image.to_str().unwrap(), name]);
    }
    for path in [&folder, &file, &index] {
        for name in ["loaded", "in-place"] {
            let said = text(&daemon, &["verify", name, path.to_str().unwrap()]);
            assert!(said.contains("the same as"), "{said}");
        }
        let refused = fails(&daemon, &["--json", "verify", "other", path.to_str().unwrap()], REFUSED);
        let error: Value = serde_json::from_slice(&refused.stderr).unwrap();
        assert_eq!(error["error"]["reason"], "CONTENT_DIFFERS");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("tensor \"b\" has other bytes in the allocation, from byte 8 on"),
            "{message}"
        );
    }
    let refused = fails(&daemon, &["verify", "plain", folder.to_str().unwrap()], REFUSED);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("the allocation is no checkpoint"));
    let refused = fails(&daemon, &["--json", "verify", "plain", file.to_str().unwrap()], REFUSED);
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("DIGEST_MISMATCH"),
        "no checkpoint: by its digest"
    );
    for damaged in [vec![255; 40], checkpoint(7)[..60].to_vec(), [checkpoint(7), vec![0]].concat(), vec![]] {
        fs::write(&file, damaged).unwrap();
        let refused = fails(&daemon, &["verify", "loaded", file.to_str().unwrap()], USAGE);
        assert!(String::from_utf8_lossy(&refused.stderr).contains("cannot read"));
    }
    fs::remove_file(&file).unwrap();
    fails(&daemon, &["verify", "loaded", index.to_str().unwrap()], USAGE);
}

#[test]
fn a_failed_put_leaves_nothing() {
    let daemon = Daemon::new();
    let (empty, file) = (daemon.home().path().join("empty"), daemon.home().path().join("file"));
    fs::write(&empty, b"").unwrap();
    fs::write(&file, content(MIB, 1)).unwrap();
    fails(&daemon, &["put", "/no/such/file", "model"], USAGE);
    fails(&daemon, &["put", empty.to_str().unwrap(), "model"], REFUSED);
    fails(&daemon, &["put", file.to_str().unwrap(), "bad/name"], REFUSED);
    fails(&daemon, &["verify", "model"], REFUSED);
    until("nothing is left", || daemon.state().is_empty());
    text(&daemon, &["put", file.to_str().unwrap(), "model"]);
    let refused = fails(&daemon, &["put", file.to_str().unwrap(), "model"], REFUSED);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("NAME_TAKEN"));
    text(&daemon, &["put", file.to_str().unwrap(), "model", "--replace"]);
    until("the replaced one is gone", || daemon.state().charged() == 2 * MIB);
}

#[test]
fn quotas_are_set_listed_and_deleted() {
    let daemon = Daemon::new();
    let set =
        json(&daemon, &["quota", "set", "team-a", "--device", "0", "--guarantee", "64MiB", "--limit", "50%"]);
    assert_eq!(set["quota"]["guarantee_bytes"], 64 * MIB);
    assert_eq!(set["quota"]["limit"], "50%");
    assert_eq!(
        json(&daemon, &["quota", "get", "team-a"])["quota"]["limit_bytes"],
        set["quota"]["limit_bytes"]
    );
    let listed = text(&daemon, &["quota", "list"]);
    assert!(listed.contains("team-a") && listed.contains("64 MiB"), "{listed}");
    text(&daemon, &["quota", "delete", "team-a", "--device", "0"]);
    fails(&daemon, &["quota", "delete", "team-a", "--device", "0"], REFUSED);
    let refused = fails(&daemon, &["--json", "quota", "set", "team-a", "--limit", "24gib"], REFUSED);
    let error: Value = serde_json::from_slice(&refused.stderr).unwrap();
    assert_eq!(error["error"]["reason"], "QUANTITY_INVALID");
    assert_eq!(error["error"]["facts"]["quantity"], "24gib");
    fails(&daemon, &["quota", "set", "team-a"], USAGE);
    fails(&daemon, &["quota", "set", "team-a", "--device", "9", "--limit", "1GiB"], REFUSED);
}

#[test]
fn a_refusal_names_tenant_limit_and_sizes() {
    let daemon = Daemon::new();
    let session = daemon.open();
    let file = daemon.home().path().join("model");
    fs::write(&file, content(9 * MIB, 1)).unwrap();
    text(&daemon, &["quota", "set", session.tenant(), "--limit", "8MiB"]);
    let refused = fails(&daemon, &["put", file.to_str().unwrap(), "model"], REFUSED);
    let said = String::from_utf8_lossy(&refused.stderr);
    for expected in ["QUOTA_LIMIT", session.tenant(), "8 MiB", "10 MiB", "0 B"] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn tables_show_tenants_allocations_tiers_and_bytes() {
    let daemon = Daemon::new();
    let mut session = daemon.open();
    let allocation = session.allocate(spec(5 * MIB)).allocation_id;
    let id = format!("a-{allocation}");
    let status = text(&daemon, &["status"]);
    for expected in ["sim", session.tenant(), &id, "device", "6 MiB", "5 MiB", "1 GiB"] {
        assert!(status.contains(expected), "{expected}: {status}");
    }
    assert!(text(&daemon, &["ls"]).contains(&id));
    assert_eq!(text(&daemon, &["ls"]), text(&daemon, &["alloc", "list"]));
    assert!(text(&daemon, &["alloc", "show", &id]).contains("open"));
    assert!(text(&daemon, &["session", "list"]).contains(&format!("s-{}", session.id())));
    let devices = text(&daemon, &["device", "list"]);
    assert!(devices.contains("Simulated GPU 0") && !devices.contains("GPU-"), "{devices}");
    for words in [&["device", "list"][..], &["quota", "list"], &["status"]] {
        let listed = text(&daemon, &[words, &["--uuids"]].concat());
        assert!(listed.contains("GPU-"), "{words:?}: {listed}");
    }

    let status = json(&daemon, &["status"]);
    assert_eq!(status["node"]["driver"], "sim");
    assert_eq!(status["allocations"][0]["allocation_id"], id);
    assert_eq!(status["allocations"][0]["charged_bytes"], 6 * MIB);
    assert_eq!(status["devices"][0]["held_bytes"], 6 * MIB);
    assert_eq!(
        json(&daemon, &["session", "list"])["sessions"][0]["session_id"],
        format!("s-{}", session.id())
    );
}

#[test]
fn operators_end_and_free_by_id() {
    let daemon = Daemon::start(&Config::default().limit("revoke_answer_timeout_ms = 200"));
    let mut probe = daemon.probe();
    let session = probe.ask("open")["session"].as_u64().unwrap();
    let id = format!("a-{}", probe.ask("allocate 4194304")["allocation"]);
    let freed = json(&daemon, &["alloc", "free", &id]);
    assert_eq!(
        (&freed["allocation_id"], &freed["still_charged_bytes"]),
        (&id.clone().into(), &(4 * MIB).into())
    );
    let again = text(&daemon, &["alloc", "free", &id]);
    let kept = format!(
        "{id} is freed; 4 MiB stay charged until these sessions unmap it: s-{session} (its owner, which does not answer)"
    );
    assert_eq!(again.trim_end(), kept);
    text(&daemon, &["session", "end", &format!("s-{session}"), "--kill"]);
    daemon.drains();
    fails(&daemon, &["session", "end", &format!("s-{session}")], REFUSED);
    fails(&daemon, &["session", "end", "seven"], USAGE);
    assert_eq!(json(&daemon, &["node", "drain"])["draining"], true);
    assert!(text(&daemon, &["node", "show"]).contains("draining"));
    assert_eq!(json(&daemon, &["node", "undrain"])["draining"], false);
    assert_eq!(json(&daemon, &["node", "show"])["node"]["draining"], false);
}

#[test]
fn a_user_who_is_no_operator_sees_and_frees_what_is_its_own() {
    let is_other = crate::has_other_users("a_user_who_is_no_operator_sees_and_frees_what_is_its_own");
    let daemon = Daemon::new();
    let file = daemon.home().path().join("model");
    fs::write(&file, content(3 * MIB, 1)).unwrap();
    let path = file.to_str().unwrap();
    let copy = copied("vramctl", daemon.home().path()).unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(&copy);
        command.env("VRAMD_SOCKET_DIR", daemon.sockets()).args(words).current_dir("/");
        if is_other {
            command.uid(20_001).gid(20_001);
        }
        command.output().unwrap()
    };
    let said = |words: &[&str]| {
        let output = run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let mine = || -> Value { serde_json::from_str(&said(&["mine", "--json"])).unwrap() };
    let tenant = mine()["tenant"].as_str().unwrap().to_owned();
    assert!(!is_other || tenant == "uid-20001", "{tenant}");
    daemon.set_quota(&tenant, "", "64MiB");
    said(&["put", path, "model"]);
    let theirs = daemon.open().allocate(spec(2 * MIB)).allocation_id;

    let own = mine();
    let quota = &own["quotas"][0];
    assert_eq!((&quota["limit_bytes"], &quota["tier"]), (&(64 * MIB).into(), &"device".into()));
    assert_eq!(own["allocations"][0]["name"], format!("{tenant}/model"));
    if is_other {
        assert_eq!((&quota["used_bytes"], &quota["free_bytes"]), (&(4 * MIB).into(), &(60 * MIB).into()));
        assert_eq!(own["allocations"].as_array().unwrap().len(), 1, "not those of others: a-{theirs}");
        assert_eq!(run(&["status"]).status.code(), Some(REFUSED), "it is no operator");
    }
    let text = said(&["mine"]);
    for expected in [&tenant, "64 MiB", "model", "FREE", "persistent"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let freed = said(&["mine", "free", "model"]);
    assert!(freed.contains("is freed"), "{freed}");
    assert_eq!(run(&["mine", "free", "model"]).status.code(), Some(REFUSED), "it is gone");
    until("its bytes are returned", || daemon.state().charged() <= 2 * MIB);
}

#[test]
fn show_prints_one_session_device_or_allocation() {
    let daemon = Daemon::start(&Config::devices(&["1GiB", "2GiB"]));
    let mut owner = daemon.open();
    let allocation = owner.allocate(persistent("weights", 6 * MIB)).allocation_id;
    owner.seal(allocation);
    let reader = daemon.open();
    let (session, id) = (format!("s-{}", owner.id()), format!("a-{allocation}"));

    let shown = json(&daemon, &["session", "show", &session]);
    assert_eq!(
        (&shown["session"]["session_id"], &shown["session"]["state"]),
        (&session.clone().into(), &"live".into())
    );
    assert_eq!(shown["allocations"][0]["allocation_id"], id);
    let text_of_it = text(&daemon, &["session", "show", &session]);
    assert!(text_of_it.contains("client") && text_of_it.contains(&id), "{text_of_it}");
    let gone = fails(&daemon, &["--json", "session", "show", "s-77"], REFUSED);
    let error: Value = serde_json::from_slice(&gone.stderr).unwrap();
    assert_eq!(
        (&error["error"]["reason"], &error["error"]["facts"]["session"]),
        (&"SESSION_NOT_FOUND".into(), &"s-77".into())
    );

    let second = json(&daemon, &["device", "show", "1"]);
    assert_eq!(second["device"]["total_bytes"], 2u64 << 30);
    let uuid = second["device"]["uuid"].as_str().unwrap();
    assert_eq!(json(&daemon, &["device", "show", uuid]), second);
    assert_eq!(json(&daemon, &["device", "show", "0"])["quotas"][0]["held_bytes"], 6 * MIB);
    assert!(text(&daemon, &["device", "show", "0"]).contains("capacity"));
    fails(&daemon, &["device", "show", "2"], REFUSED);

    // One session maps the part, another has been offered it and does not answer.
    reader.memory.attach(reader.attach_request("weights")).ok();
    let part = json(&daemon, &["alloc", "show", &id])["allocation"]["parts"][0].clone();
    assert_eq!((&part["tier"], &part["extent_state"]), (&"device".into(), &"live".into()));
    assert_eq!(
        part["mappers"][0],
        serde_json::json!({ "session_id": session, "state": "mapped", "use": "standing" })
    );
    let other = format!("s-{}", reader.id());
    assert_eq!(
        part["mappers"][1],
        serde_json::json!({ "session_id": other, "state": "offered", "use": "standing" })
    );
    assert_eq!(part["mapper_session_ids"], serde_json::json!([session, other]));
    let shown = text(&daemon, &["alloc", "show", &id]);
    assert!(
        shown.contains(&format!("{session} mapped, {other} offered")) && shown.contains("live"),
        "{shown}"
    );
}

#[test]
fn shells_complete_subcommands() {
    let daemon = Daemon::new();
    for (shell, word) in
        [("bash", "_vramctl()"), ("zsh", "#compdef vramctl"), ("fish", "complete -c vramctl")]
    {
        let script = text(&daemon, &["completions", shell]);
        assert!(script.contains(word) && script.contains("undrain"), "{shell}: {script}");
        assert_eq!(
            json(&daemon, &["completions", shell])["script"].as_str().map(str::trim),
            Some(script.trim())
        );
    }
    // The completion that bash finds.
    let folder = program("vramctl");
    let asked = "eval \"$(vramctl completions bash)\"; COMP_WORDS=(vramctl node und); COMP_CWORD=2; \
                 _vramctl vramctl und node; echo \"${COMPREPLY[@]}\"";
    let path = format!("{}:/usr/bin:/bin", folder.parent().unwrap().display());
    let output = Command::new("bash").args(["-c", asked]).env("PATH", path).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "undrain", "{output:?}");
    fails(&daemon, &["completions", "tcsh"], USAGE);
}

#[test]
fn a_missing_daemon_is_status_3() {
    let home = Home::new();
    let daemon = Daemon::new();
    for words in [&["status"][..], &["quota", "list"], &["verify", "model"], &["watch"], &["node", "show"]] {
        let mut command = daemon.vramctl();
        let output = command.args(words).arg("--socket-dir").arg(home.path()).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(UNREACHABLE),
            "{words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn a_user_without_access_to_the_admin_socket_is_refused() {
    if !crate::has_other_users("a_user_without_access_to_the_admin_socket_is_refused") {
        return;
    }
    let daemon = Daemon::new();
    let mut command = Command::new(copied("vramctl", daemon.home().path()).unwrap());
    command.env("VRAMD_SOCKET_DIR", daemon.sockets()).uid(20_001).gid(20_001).current_dir("/");
    let output = command.args(["--json", "status"]).output().unwrap();
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((output.status.code(), &error["error"]["reason"]), (Some(REFUSED), &"NOT_OPERATOR".into()));
    assert_eq!(error["error"]["facts"]["uid"], 20_001);
}

#[test]
fn vramctl_gives_up_on_a_daemon_that_does_not_answer() {
    let daemon = Daemon::new();
    daemon.freeze();
    let output = daemon.vramctl().args(["--timeout", "1", "node", "show"]).output().unwrap();
    daemon.signal(rustix::process::Signal::CONT);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("DEADLINE"), "{said}");
}

#[test]
fn an_estimate_takes_the_own_limit_and_names_a_bad_configuration() {
    let own = rustix::process::geteuid().as_raw();
    let daemon = Daemon::start(&Config::devices(&["64MiB"]).tenant(own, "team-a"));
    text(&daemon, &["quota", "set", "team-a", "--limit", "48MiB"]);
    let folder = daemon.home().path().join("model");
    fs::create_dir(&folder).unwrap();
    let path = folder.to_str().unwrap();
    let config = |text: &str| fs::write(folder.join("config.json"), text).unwrap();
    config(r#"{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000}"#);
    let estimate = json(&daemon, &["estimate", path]);
    assert_eq!((&estimate["memory_bytes"], &estimate["fits"]), (&(48 * MIB).into(), &false.into()));
    assert_eq!(estimate["weights_from"], "shape");
    assert_eq!(json(&daemon, &["estimate", path, "--memory", "1GiB"])["fits"], true);
    for bad in ["{", "[]", r#"{"hidden_size": 64}"#, r#"{"hidden_size": 0}"#, r#"{"hidden_size": -1}"#] {
        config(bad);
        let output = fails(&daemon, &["estimate", path], USAGE);
        assert!(String::from_utf8_lossy(&output.stderr).contains("model/config.json: "), "{output:?}");
    }
    fails(&daemon, &["estimate", "/dev/null"], USAGE);
}
