//! The engines that read and write the disk, and nodes where io_uring is not available.

use std::fs;

use vramd_tests::{Daemon, Filter, Home};

use crate::moves::{
    clients::programs::{is_intact, letting_go, send},
    disk::tier::{files, heard, text, until_held},
    nothing_is_left,
    pins::fetch::connect,
    said, tiers,
};

/// io_uring where the kernel has it, and the engine that replaces it elsewhere.
pub(crate) const ENGINES: [&str; 2] = ["auto", "threads"];

/// The engine that the daemon's log names.
#[track_caller]
pub(crate) fn engine_of(daemon: &Daemon) -> String {
    let log = daemon.log();
    let word = log.lines().find_map(|line| line.split_once("engine=")?.1.split_whitespace().next());
    word.expect("it says what disk it has").to_owned()
}

/// As in a container that filters system calls.
fn without_uring() -> Home {
    Home::new().with_filter(Filter::Refused(libc::SYS_io_uring_setup))
}

const WHY: &str = "io_uring_setup: Operation not permitted (os error 1)";

#[test]
fn a_daemon_without_io_uring_logs_it_and_copies_on_threads() {
    let home = without_uring();
    tiers("8MiB", "0").disk("8MiB").write(home.path());
    let daemon = Daemon::start_in(home);
    assert_eq!(engine_of(&daemon), "threads");
    assert!(daemon.log().contains(&format!("no_uring=\"{WHY}\"")), "{}", daemon.log());
    let client = connect(&daemon);
    let memory = letting_go(&daemon, &client, 2);
    for _ in 0..2 {
        send(&daemon, &memory, "disk");
        until_held(&daemon, [0, 0, 4]);
        assert_eq!(files(daemon.home().path()).len(), 2);
        said(&daemon, &["alloc", "bring-in", &memory.id().to_string()]);
        until_held(&daemon, [4, 0, 4]);
        is_intact(&memory, 2);
    }
    drop(memory);
    client.flush().unwrap();
    nothing_is_left(&daemon);
}

#[test]
fn a_configured_but_refused_io_uring_ends_start_and_check() {
    let home = without_uring();
    let directory = home.path().join("disk");
    fs::create_dir(&directory).unwrap();
    fs::write(home.path().join("vramd.toml"), text(&directory.display().to_string(), "8MiB", "ring"))
        .unwrap();
    for check in [true, false] {
        let mut command = home.command();
        let output = if check { command.arg("--check").output() } else { command.output() }.unwrap();
        let heard = heard(&output);
        assert_eq!(output.status.code(), Some(3), "{heard}");
        assert!(heard.contains("vramd.toml:9:10: disk.engine: ") && heard.contains(WHY), "{heard}");
    }
}
