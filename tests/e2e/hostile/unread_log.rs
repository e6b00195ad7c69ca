//! The daemon's standard error is a pipe that is not read, as below a supervisor that hangs.

use std::process::Stdio;

use rustix::process::Signal;
use vramd_tests::{Config, Daemon, Home, MIB_2, session::spec};

/// A pipe takes 64 KiB. Each refusal is a line of more than 64 bytes.
const REFUSALS: usize = 4 << 10;

#[test]
fn a_daemon_whose_log_nobody_reads_serves_and_stops() {
    let home = Home::new();
    Config::default().write(home.path());
    let child = home.command().stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut daemon = Daemon::started(home, child);
    let mut session = daemon.open();
    for _ in 0..REFUSALS {
        session.refused(spec(0));
    }
    let id = session.allocate(spec(MIB_2)).allocation_id;
    session.free(id);
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
}
