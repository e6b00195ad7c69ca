//! The engines that read and write the disk, and nodes where io_uring is not available.

use std::fs;

use vramd_tests::{Daemon, Home, SyscallFilter};

use crate::moves::{
    assert_nothing_left,
    clients::programs::{allocate_unpinned, is_intact, send},
    disk::tier::{files, heard, text, until_charged},
    pins::fetch::connect,
    tiers, vramctl_json,
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
    Home::new().with_filter(SyscallFilter::Refused(libc::SYS_io_uring_setup))
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
    let memory = allocate_unpinned(&daemon, &client, 2);
    for _ in 0..2 {
        send(&daemon, &memory, "disk");
        until_charged(&daemon, [0, 0, 4]);
        assert_eq!(files(daemon.home().path()).len(), 2);
        vramctl_json(&daemon, &["alloc", "bring-in", &memory.id().to_string()]);
        until_charged(&daemon, [4, 0, 4]);
        is_intact(&memory, 2);
    }
    drop(memory);
    client.flush().unwrap();
    assert_nothing_left(&daemon);
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
