//! A client that is refused again and again fills no log: the lines about one user are bounded, and the rest is told.

use std::{io::Read as _, os::unix::net::UnixStream, time::Duration};

use vramd_tests::{Config, Daemon, RawChannel, wait::until};

const REFUSALS: usize = 500;

#[test]
fn the_lines_about_one_user_are_bounded_and_the_rest_is_told() {
    let daemon = Daemon::start(&Config::default().log_level("info"));
    for _ in 0..REFUSALS {
        let channel = RawChannel::connect(&daemon.sockets()).unwrap();
        channel.send_bytes(b"no hello").unwrap();
        // The refusal, or the end of a connection that came too fast.
        channel.receive(Duration::from_secs(10));
    }
    let lines = || daemon.log().lines().filter(|line| line.contains("connection refused")).count();
    assert!((1..=REFUSALS / 4).contains(&lines()), "{} lines", lines());
    until("the daemon says how many lines it left out", || {
        daemon.log().contains("lines about a peer left out")
    });
    // A session is opened and logged again.
    daemon.open();
}

/// Lines that only debugging shows are bounded like the others.
#[test]
fn debug_lines_about_one_user_are_bounded_and_the_rest_is_told() {
    let config = Config::default().limit("connections_per_uid_max = 8").log_level("debug");
    let daemon = Daemon::start(&config);
    let socket = daemon.sockets().join("vramd.sock");
    let _open: Vec<_> = (0..8).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    for _ in 0..REFUSALS {
        let mut refused = UnixStream::connect(&socket).unwrap();
        // The daemon closes it.
        let _ = refused.read(&mut [0]);
    }
    let lines = || daemon.log().lines().filter(|line| line.contains("closed a connection")).count();
    assert!((1..=REFUSALS / 4).contains(&lines()), "{} lines", lines());
    until("the daemon says how many lines it left out", || {
        daemon.log().contains("lines about a peer left out")
    });
}
