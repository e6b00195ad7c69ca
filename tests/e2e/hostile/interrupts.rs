//! Ctrl-C ends `vramctl` within a second, whatever it waits for, and nothing of its request arrives afterwards.

use std::{
    fs,
    os::unix::process::ExitStatusExt as _,
    process::Child,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use vramd_client::{AllocationRequest, Bytes, Client};
use vramd_proto::v1::ListWaitsRequest;
use vramd_tests::{Config, Daemon, MIB, content, wait::until};

/// Sends Ctrl-C, which must end the process within a second. The second is what an operator notices, so it is measured.
fn interrupt(mut child: Child) {
    let begun = Instant::now();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::INT.as_raw()), "{status}");
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[test]
fn an_interrupted_attach_of_vramctl_leaves_no_wait() {
    let daemon = Daemon::start(&Config::devices(&["16MiB"]).memory("host_size = \"64MiB\""));
    let file = daemon.home().path().join("model");
    fs::write(&file, content(8 * MIB, 1)).unwrap();
    assert!(daemon.vramctl().arg("put").arg(&file).arg("model").status().unwrap().success());
    let client = Client::builder().socket_dir(daemon.sockets()).connect().unwrap();
    let held = client
        .allocate(AllocationRequest::new(Bytes::mib(16)).wait(Duration::from_secs(20)))
        .expect("the model can leave the device");

    let child = daemon.vramctl().args(["verify", "model", "--hold"]).spawn().unwrap();
    let waits = || daemon.admin.list_waits(ListWaitsRequest::default()).ok().waits;
    until("it waits for room", || !waits().is_empty());
    interrupt(child);
    until("its wait has ended", || waits().is_empty());
    until("its session has ended", || daemon.state().sessions.len() == 1);
    held.free().unwrap();
    let model = daemon.state().allocations.into_iter().find(|row| row.name.ends_with("/model")).unwrap();
    assert_eq!((model.mapper_count, model.resident_bytes), (0, 0), "no session fetches it");
}

#[test]
fn vramctl_is_interrupted_while_the_daemon_does_not_answer() {
    let daemon = Daemon::new();
    daemon.freeze();
    for words in [&["status"][..], &["verify", "model"], &["watch"]] {
        let child = daemon.vramctl().args(words).spawn().unwrap();
        interrupt(child);
    }
    daemon.signal(Signal::CONT);
    until("no session is left", || daemon.state().sessions.is_empty());
}
