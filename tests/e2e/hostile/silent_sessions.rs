//! Sessions of one process that never answer a revoke. A waiter loses one deadline to the first of them, and no
//! further one to each other.

use vramd_proto::v1::{RevokeReason, SessionState};
use vramd_tests::{Config, Daemon, MIB_2, Probe, RawSession, session::spec, wait::until};

use crate::moves::tiers;

const SESSIONS: usize = 10;

/// The daemon asked them one after the other if this many are silent. Some of them may be on a busy machine.
const IN_SERIES: usize = 5;

fn config(device: &str) -> Config {
    tiers(device, "64MiB").limit("unmap_answer_timeout_ms = 1000")
}

/// Sessions of this process with an unpinned part each, which they have used in this order.
fn open(daemon: &Daemon) -> Vec<RawSession> {
    let open = |_| {
        let mut session = RawSession::open_with_pins(&daemon.sockets());
        session.allocate(spec(MIB_2));
        session
    };
    (0..SESSIONS).map(open).collect()
}

/// Another process, which waits for room for one part.
fn waiter(daemon: &Daemon) -> Probe {
    until("all maps are answered", || daemon.state().node.fds_in_flight == 0);
    let mut waiter = daemon.probe();
    waiter.ask("sdk open");
    waiter.tell(ALLOCATE);
    waiter
}

const ALLOCATE: &str = "sdk allocate 2097152 wait=60000";

fn silent(daemon: &Daemon) -> usize {
    daemon.state().sessions.iter().filter(|row| row.state() == SessionState::Silent).count()
}

#[test]
fn a_waiter_gets_the_part_of_another_process_after_one_silence() {
    let daemon = Daemon::start(&config("22MiB"));
    let sessions = open(&daemon);
    let mut honest = daemon.probe();
    honest.ask("sdk open");
    honest.ask("sdk allocate 2097152");
    honest.ask("sdk unhold");
    let mut waiter = waiter(&daemon);
    waiter.listen(ALLOCATE);
    let silent = silent(&daemon);
    assert!((1..IN_SERIES).contains(&silent), "{silent} are silent");
    for session in &sessions {
        assert_eq!(
            session.receive_revoke().reason(),
            RevokeReason::Evicted,
            "its turn would have come before"
        );
    }
    waiter.leave();
    honest.leave();
}

#[test]
fn a_waiter_gets_the_part_of_the_first_session_that_answers() {
    let daemon = Daemon::start(&config("20MiB"));
    let mut sessions = open(&daemon);
    let mut waiter = waiter(&daemon);
    let revokes: Vec<_> = sessions.iter().map(RawSession::receive_revoke).collect();
    let silent = silent(&daemon);
    assert!((1..IN_SERIES).contains(&silent), "{silent} are silent once all were asked");
    let last = revokes.into_iter().next_back().unwrap();
    sessions.last_mut().unwrap().unmap_parts(last.parts);
    waiter.listen(ALLOCATE);
    waiter.leave();
}
