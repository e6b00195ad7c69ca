//! Clients find the daemon without being told where it is, and say where they looked if they do not.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use vramd_tests::{Daemon, programs::copied};

/// Runs `vramctl` as an ordinary user, in a node whose `/run` and `/tmp` this line of the shell has made.
fn as_user(daemon: &Daemon, mounts: &str, arguments: &str) -> Output {
    let copy = copied("vramctl", daemon.home().path()).unwrap();
    let line = format!(
        "{mounts} && exec setpriv --reuid=20001 --regid=20001 --clear-groups {} {arguments}",
        copy.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &line]).current_dir("/");
    command.env_remove("VRAMD_SOCKET_DIR").env_remove("XDG_RUNTIME_DIR").output().unwrap()
}

/// The line that makes `/run/vramd` the daemon's folder of sockets.
fn as_root_daemon(sockets: &Path) -> String {
    format!("mount -t tmpfs run /run && mkdir /run/vramd && mount --bind {} /run/vramd", sockets.display())
}

fn can_run(test: &str) -> bool {
    crate::has_other_users(test)
        && crate::can_mount(test, "mount -t tmpfs run /run && setpriv --reuid=20001 true")
}

#[test]
fn a_user_finds_the_daemon_of_root() {
    if !can_run("a_user_finds_the_daemon_of_root") {
        return;
    }
    let daemon = Daemon::new();
    fs::write(daemon.home().path().join("model"), "weights").unwrap();
    let mounts = as_root_daemon(&daemon.sockets());
    let put = as_user(&daemon, &mounts, &format!("put {}/model llama", daemon.home().path().display()));
    assert!(put.status.success(), "{put:?}");
    // A daemon of their own that was killed has left its sockets, and is passed over.
    let stale = "mkdir /run/own /run/own/vramd && \
                 python3 -c \"import socket; socket.socket(1, 5).bind('/run/own/vramd/channel.sock')\" && \
                 chmod 777 /run/own/vramd/channel.sock && export XDG_RUNTIME_DIR=/run/own";
    let verify = as_user(&daemon, &format!("{mounts} && {stale}"), "verify llama");
    assert!(verify.status.success(), "{verify:?}");
    // The operators' client looks in the same places: it finds the daemon that refuses it.
    let status = as_user(&daemon, &mounts, "status");
    assert!(String::from_utf8_lossy(&status.stderr).contains("NOT_OPERATOR"), "{status:?}");
}

#[test]
fn a_client_without_a_daemon_says_where_it_looked() {
    if !can_run("a_client_without_a_daemon_says_where_it_looked") {
        return;
    }
    let daemon = Daemon::new();
    let none = "mount -t tmpfs run /run && export XDG_RUNTIME_DIR=/run/user/20001";
    for arguments in ["verify llama", "status"] {
        let output = as_user(&daemon, none, arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        for part in ["/run/user/20001/vramd", "/run/vramd", "VRAMD_SOCKET_DIR"] {
            assert!(error.contains(part), "{arguments}: {part} is missing in {error}");
        }
    }
}

#[test]
fn a_folder_in_tmp_that_another_user_owns_is_passed_over() {
    if !can_run("a_folder_in_tmp_that_another_user_owns_is_passed_over") {
        return;
    }
    let daemon = Daemon::new();
    fs::create_dir("/tmp/vramd-20001").unwrap();
    let hijack = format!(
        "mount -t tmpfs run /run && chown 20002 {0} && mount --bind {0} /tmp/vramd-20001",
        daemon.sockets().display()
    );
    let output = as_user(&daemon, &hijack, "verify llama");
    fs::remove_dir("/tmp/vramd-20001").unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(error.contains("another user owns the folder"), "{error}");
}
