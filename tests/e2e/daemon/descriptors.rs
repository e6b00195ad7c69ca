//! File descriptors: those in flight to a client that has died, and a daemon that has too few.

use std::{os::unix::net::UnixStream, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use vramd_proto::v1::SessionState;
use vramd_tests::{
    Config, Daemon, Home, MIB, Probe, Refused,
    wait::{always, until},
};
use vramd_types::Reason;

use crate::has_other_users;

const TEAM_A: u32 = 20_001;
const TEAM_B: u32 = 20_002;

/// A dead client with 8 MiB unread in its socket, and its forked child, which has the socket.
struct Orphan {
    daemon: Daemon,
    tenant: String,
    session: u64,
    child: Pid,
}

impl Orphan {
    #[track_caller]
    fn new() -> Self {
        let daemon = Daemon::start(&Config::default().limit("survey_interval_ms = 100"));
        let mut parent = daemon.probe();
        let opened = parent.ask("open");
        parent.ask("reserve 8388608");
        until("the descriptors are on their way", || daemon.log().contains("packet sent channel=1 fds=1"));
        let child = parent.ask("fork-heir")["pid"].as_i64().unwrap();
        parent.kill();
        Self {
            daemon,
            tenant: opened["tenant"].as_str().unwrap().to_owned(),
            session: opened["session"].as_u64().unwrap(),
            child: Pid::from_raw(i32::try_from(child).unwrap()).unwrap(),
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.child, signal).unwrap();
    }
}

#[test]
fn descriptors_in_flight_to_a_forked_child_stay_charged_until_it_ends() {
    let orphan = Orphan::new();
    let daemon = &orphan.daemon;
    until("its session is silent", || {
        daemon.state().session(orphan.session).is_some_and(|row| row.state() == SessionState::Silent)
    });
    always("its bytes are charged", Duration::from_millis(1500), || {
        let state = daemon.state();
        state.charged_to(&orphan.tenant) == 8 * MIB && state.session(orphan.session).is_some()
    });
    orphan.signal(Signal::KILL);
    daemon.drains();
    until("its session is gone", || daemon.state().session(orphan.session).is_none());
}

#[test]
fn memory_received_by_a_forked_child_is_unreturned_until_it_ends() {
    let orphan = Orphan::new();
    let daemon = &orphan.daemon;
    orphan.signal(Signal::USR1);
    until("its session is gone", || daemon.state().session(orphan.session).is_none());
    until("its bytes are unreturned", || daemon.state().unreturned() == 8 * MIB);
    let state = daemon.state();
    assert_eq!(state.charged_to(&orphan.tenant), 8 * MIB, "charged to the tenant that was sent them");
    assert_eq!(state.unbrokered(), 0, "a tenant explains them");
    orphan.signal(Signal::KILL);
    daemon.drains();
}

fn open(daemon: &Daemon, uid: u32) -> Probe {
    let mut probe = daemon.probe_as(uid);
    probe.ask("open");
    probe
}

#[test]
fn a_tenant_cannot_use_up_the_daemons_descriptors() {
    if !has_other_users("a_tenant_cannot_use_up_the_daemons_descriptors") {
        return;
    }
    let home = Home::new().with_open_files(256);
    Config::default().tenant(TEAM_A, "team-a").tenant(TEAM_B, "team-b").write(home.path());
    let daemon = Daemon::start_in(home);
    let mut greedy = open(&daemon, TEAM_A);
    let mut parts = 0;
    let refused = loop {
        if greedy.answer("allocate 2097152").get("refused").is_some() {
            break greedy.refused("allocate 2097152");
        }
        parts += 1;
        assert!(parts < 256, "each part is a descriptor of the daemon");
    };
    // The refusal comes before the daemon asks the driver, which would have failed.
    assert_eq!(refused.is(Reason::AllocationsTooMany).number("limit_count"), parts);
    let mut other = open(&daemon, TEAM_B);
    other.ask("allocate 8388608 part=2097152");
    let node = daemon.grpcurl("admin.sock").call("vramd.v1.AdminService/GetNode", &json!({}));
    assert_eq!(node["sessionCount"], 2);
    greedy.kill();
    other.kill();
    daemon.drains();
}

#[test]
fn a_user_with_many_sessions_keeps_no_other_user_out() {
    if !has_other_users("a_user_with_many_sessions_keeps_no_other_user_out") {
        return;
    }
    let home = Home::new().with_open_files(256);
    Config::default().tenant(TEAM_A, "team-a").tenant(TEAM_B, "team-b").write(home.path());
    let daemon = Daemon::start_in(home);
    let sockets = daemon.sockets();
    let mut sessions = Vec::new();
    let refused: Refused = loop {
        match vramd_tests::RawSession::open_with(&sockets, vramd_tests::session::hello()) {
            Ok(session) => sessions.push(session),
            Err(refused) => break refused,
        }
        assert!(sessions.len() < 128, "each session takes two descriptors of the daemon");
    };
    refused.is(Reason::OpenFilesLimit);
    assert!(refused.message.contains("256 open files"), "{refused:?}");
    let (mut one, mut two) = (open(&daemon, TEAM_A), open(&daemon, TEAM_B));
    one.ask("allocate 2097152");
    two.ask("allocate 2097152");
}

#[test]
fn operators_connect_while_clients_use_up_all_connections() {
    let home = Home::new().with_open_files(128);
    Config::default().write(home.path());
    let daemon = Daemon::start_in(home);
    let mut session = daemon.open();
    session.allocate(vramd_tests::spec(MIB));
    let sockets = daemon.sockets();
    let crowd: Vec<_> = (0..200).map(|_| UnixStream::connect(sockets.join("vramd.sock")).unwrap()).collect();
    let node = daemon.grpcurl("admin.sock").call("vramd.v1.AdminService/GetNode", &json!({}));
    assert_eq!(node["sessionCount"], 1);
    // Earlier sessions are served.
    session.allocate(vramd_tests::spec(MIB));
    // Once the daemon has read from all connections of the crowd.
    let refused: Refused = vramd_tests::wait::eventually("another is refused", || {
        vramd_tests::RawSession::open_with(&sockets, vramd_tests::session::hello()).err()
    });
    assert_eq!(refused.is(Reason::OpenFilesLimit).number("limit_count"), 128);
    drop(crowd);
    vramd_tests::wait::eventually("others get in again", || {
        vramd_tests::RawSession::open_with(&sockets, vramd_tests::session::hello()).ok()
    });
}
