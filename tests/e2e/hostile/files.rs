//! Files that are not what their names promise: links, pipes, devices, mistyped paths, names that a terminal would obey.

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;
use vramd_client::{AllocationRequest, Error};
use vramd_tests::{Config, Daemon, Home, MIB, content, digest};

use crate::moves::pins::fetch::connect;

const USAGE: i32 = 2;
const CONFIGURATION_WRONG: i32 = 3;

fn put(daemon: &Daemon, path: &Path, words: &[&str]) -> Output {
    daemon.vramctl().arg("put").arg(path).args(words).output().unwrap()
}

#[track_caller]
fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A listed folder whose links lead to its sibling, as download caches have: `snapshots/main/model` to `blobs/7`.
fn cache() -> (tempfile::TempDir, Config) {
    let folder = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(folder.path()).unwrap();
    fs::create_dir_all(root.join("snapshots/main")).unwrap();
    fs::create_dir(root.join("blobs")).unwrap();
    fs::write(root.join("blobs/7"), content(MIB, 7)).unwrap();
    File::open(root.join("blobs/7")).unwrap().sync_data().unwrap();
    symlink("../../blobs/7", root.join("snapshots/main/model")).unwrap();
    let config = Config::default().immutable(&root.join("snapshots"));
    (folder, config)
}

#[test]
fn a_file_behind_a_link_is_copied_and_the_answer_says_why() {
    let (folder, config) = cache();
    let daemon = Daemon::start(&config);
    let path = fs::canonicalize(folder.path()).unwrap().join("snapshots/main/model");
    assert!(daemon.log().contains("links below"), "the start says so too: {}", daemon.log());
    let text = said(&put(&daemon, &path, &["model", "--in-place"]));
    for expected in ["copied, not in place", "blobs too", "beside the immutable path", "snapshots"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let json: Value =
        serde_json::from_str(&said(&put(&daemon, &path, &["other", "--in-place", "--json"]))).unwrap();
    assert_eq!(json["file"], Value::Null);
    assert!(json["copied_because"].as_str().unwrap().contains("no fs-verity"), "{json}");

    let both = Config::default()
        .immutable(path.parent().unwrap().parent().unwrap())
        .immutable(&fs::canonicalize(folder.path()).unwrap().join("blobs"));
    let daemon = Daemon::start(&both);
    let text = said(&put(&daemon, &path, &["model", "--in-place"]));
    assert!(text.contains(" in ") && !text.contains("copied"), "{text}");
}

/// Runs `vramctl put --in-place` where one folder is bind-mounted over another, in a mount namespace of its own. It needs
/// no root: the namespace is that of a user namespace.
fn put_behind_mount(daemon: &Daemon, [from, to]: [&Path; 2], path: &Path, name: &str) -> Value {
    let vramctl = daemon.vramctl();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-ec"]);
    command
        .args(["mount --bind \"$0\" \"$1\"; shift; exec \"$@\""])
        .args([from, to])
        .arg(vramctl.get_program());
    command.arg("put").arg(path).args([name, "--in-place", "--json"]);
    for (variable, value) in vramctl.get_envs() {
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
    }
    serde_json::from_str(&said(&command.output().unwrap())).unwrap()
}

#[test]
fn a_file_behind_a_clients_bind_mount_is_copied() {
    let folder = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(folder.path()).unwrap();
    let [listed, other] = ["listed", "other"].map(|name| root.join(name));
    for (dir, seed) in [(&listed, 1), (&other, 2)] {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join("model"), content(MIB, seed)).unwrap();
        File::open(dir.join("model")).unwrap().sync_data().unwrap();
    }
    let daemon = Daemon::start(&Config::default().immutable(&listed));
    let copied = |mount: [&Path; 2], path: &Path, name: &str, seed: u64| {
        let json = put_behind_mount(&daemon, mount, path, name);
        assert_eq!(
            (&json["file"], &json["digest"]),
            (&Value::Null, &Value::from(digest(&content(MIB, seed))))
        );
        let why = json["copied_because"].as_str().unwrap().to_owned();
        assert!(why.contains("the client has a mount of its own there"), "{why}");
    };
    // The file is immutable, but not by the path at which the client has it.
    copied([&listed, &other], &other.join("model"), "elsewhere", 1);
    // A client cannot pass a file of its own off as one below an immutable path.
    copied([&other, &listed], &listed.join("model"), "disguised", 2);
    // Without a mount the same path is used in place.
    let json: Value =
        serde_json::from_str(&said(&put(&daemon, &listed.join("model"), &["plain", "--in-place", "--json"])))
            .unwrap();
    assert_eq!(json["file"], listed.join("model").display().to_string());
}

#[test]
fn a_check_refuses_paths_that_do_not_exist_and_explains_links() {
    let home = Home::new();
    let config = |path: &Path| Config::default().immutable(path).write(home.path());
    config(Path::new("/no/such/modles"));
    let output = home.command().arg("--check").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(CONFIGURATION_WRONG), "{text}");
    assert!(text.contains("immutable_paths") && text.contains("/no/such/modles"), "{text}");

    let (folder, _) = cache();
    config(&folder.path().join("snapshots"));
    let output = home.command().arg("--check").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("blobs, which is not listed"), "{text}");
}

#[test]
fn a_pipe_a_device_or_a_folder_in_place_of_a_file_is_refused_at_once() {
    let daemon = Daemon::new();
    let pipe = daemon.home().path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let file = daemon.home().path().join("file");
    fs::write(&file, content(MIB, 1)).unwrap();
    said(&put(&daemon, &file, &["model"]));
    let client = connect(&daemon);
    // No process ever writes to the pipe: each call would wait without end.
    for (path, kind) in [
        (pipe.as_path(), "a pipe"),
        (Path::new("/dev/zero"), "a device"),
        (daemon.home().path(), "a directory"),
    ] {
        for words in [&["other"][..], &["other", "--in-place"]] {
            let output = put(&daemon, path, words);
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(USAGE), "{text}");
            assert!(text.contains(&format!("not a regular file but {kind}")), "{text}");
        }
        let verified = daemon.vramctl().args(["verify", "model"]).arg(path).output().unwrap();
        assert_eq!(verified.status.code(), Some(USAGE), "{}", String::from_utf8_lossy(&verified.stderr));
        let refused = client.load(path, 0, AllocationRequest::whole_file());
        let Err(Error::FileInvalid { problem, .. }) = refused else { panic!("{refused:?}") };
        assert!(problem.contains(&format!("not a regular file but {kind}")), "{problem}");
    }
}

#[test]
fn control_characters_of_a_file_name_reach_no_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(folder.path()).unwrap();
    let daemon = Daemon::start(&Config::default().immutable(&root));
    let evil = root.join("m\u{1b}[2J\u{7}");
    fs::write(&evil, content(MIB, 3)).unwrap();
    File::open(&evil).unwrap().sync_data().unwrap();
    let missing = root.join("gone\u{1b}]0;title\u{7}");
    let shown = |output: &Output| {
        let text = [&output.stdout[..], &output.stderr].concat();
        assert!(!text.iter().any(|byte| matches!(byte, 0x1b | 0x07)), "{}", String::from_utf8_lossy(&text));
        String::from_utf8_lossy(&text).into_owned()
    };
    assert!(shown(&put(&daemon, &evil, &["model", "--in-place"])).contains(" in "));
    assert!(shown(&put(&daemon, &missing, &["other"])).contains("cannot read"));
    let verify = daemon.vramctl().args(["verify", "model"]).arg(&evil).output().unwrap();
    assert!(shown(&verify).contains("the same as"));
    shown(&daemon.vramctl().args(["alloc", "list"]).output().unwrap());
    let id = &daemon.state().allocations[0].allocation_id.to_string();
    shown(&daemon.vramctl().args(["alloc", "show", &format!("a-{id}")]).output().unwrap());
    let refused = connect(&daemon).load(&missing, 0, AllocationRequest::whole_file()).unwrap_err();
    assert!(refused.to_string().contains("gone\u{fffd}]0;title\u{fffd}"), "{refused}");
    assert!(!daemon.log().contains('\u{1b}'), "{}", daemon.log());
}
