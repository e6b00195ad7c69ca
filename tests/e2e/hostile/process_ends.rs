//! Ends of client processes that are not what they seem: a killed process whose child keeps the socket, one that the
//! daemon may not kill, one that executes itself anew. And ordinary ends, of which no operator hears.

use vramd_proto::v1::{EndSessionRequest, SessionState};
use vramd_tests::{Config, Daemon, Home, MIB, Probe, proc, session::spec, wait::until};

fn end(daemon: &Daemon, session: u64) -> vramd_proto::v1::EndSessionResponse {
    let request = EndSessionRequest { session_id: session, kill: true, ..Default::default() };
    daemon.admin.end_session(request).ok()
}

fn open(probe: &mut Probe) -> u64 {
    probe.ask("open")["session"].as_u64().unwrap()
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn a_session_whose_socket_a_child_keeps_is_answered_as_silent() {
    let limits =
        Config::default().limit("revoke_answer_timeout_ms = 200").limit("map_answer_timeout_ms = 200");
    let daemon = Daemon::start(&limits);
    let mut probe = daemon.probe();
    let id = open(&mut probe);
    // The packet with the descriptors stays unread.
    probe.ask("reserve 4194304");
    let child = u32::try_from(probe.ask("fork")["pid"].as_u64().unwrap()).unwrap();
    probe.freeze();
    let ended = end(&daemon, id);
    assert_eq!((ended.state(), ended.still_mapped_bytes), (SessionState::Silent, 4 * MIB));
    assert_eq!(ended.pid, probe.pid());
    assert!(
        ended.silent_reason.contains("another process") && ended.silent_reason.contains("socket"),
        "{ended:?}"
    );
    let state = daemon.state();
    assert_eq!(state.session(id).unwrap().silent_reason, ended.silent_reason);
    assert_eq!(state.charged(), 4 * MIB, "another process may still receive the memory");
    // Once more, now that the process has ended.
    let vramctl = daemon.vramctl().args(["session", "end", &format!("s-{id}"), "--kill"]).output().unwrap();
    let said = String::from_utf8_lossy(&vramctl.stdout);
    assert!(vramctl.status.success() && said.contains(&format!("process {}", probe.pid())), "{vramctl:?}");
    kill(child);
    daemon.drains();
}

#[test]
fn a_process_that_the_daemon_may_not_kill_is_reported() {
    let home = Home::new().with_wrapper(&["setpriv", "--bounding-set=-kill", "--"]);
    Config::default().limit("revoke_answer_timeout_ms = 200").write(home.path());
    let daemon = Daemon::start_in(home);
    let mut probe = daemon.probe_as(12_345);
    let id = open(&mut probe);
    probe.ask("allocate 4194304");
    probe.freeze();
    let ended = end(&daemon, id);
    assert_eq!(
        (ended.state(), ended.still_mapped_bytes, ended.pid),
        (SessionState::Silent, 4 * MIB, probe.pid())
    );
    assert!(
        ended.silent_reason.contains("cannot be killed") && ended.silent_reason.contains("CAP_KILL"),
        "{ended:?}"
    );
    assert!(proc::is_alive(probe.pid()));
    probe.kill();
    daemon.drains();
}

/// Each image has 64 MiB on a device of 256, and the daemon would kill a silent process soon.
#[test]
fn a_program_that_executes_itself_anew_leaves_no_session_behind() {
    let config = Config::devices(&["256MiB"]).limit("end_silent_after_ms = 1000");
    let daemon = Daemon::start(&config);
    let mut probe = daemon.probe();
    for image in 1..=6 {
        let id = open(&mut probe);
        probe.ask(&format!("allocate {}", 64 * MIB));
        probe.ask("exec");
        until(&format!("image {image}'s session is gone"), || daemon.state().session(id).is_none());
    }
    open(&mut probe);
    assert!(!daemon.log().contains("WARN"), "{}", daemon.log());
    drop(probe);
    daemon.drains();
}

#[test]
fn a_program_that_inherits_its_own_socket_is_not_killed_for_it() {
    let daemon = Daemon::start(&Config::default().limit("revoke_answer_timeout_ms = 200"));
    let mut probe = daemon.probe();
    let id = open(&mut probe);
    probe.ask("allocate 4194304");
    probe.ask("exec inheriting");
    let new = open(&mut probe);
    let request = EndSessionRequest { session_id: id, kill: true, ..Default::default() };
    // The daemon may have noticed before. The new program could still receive what lies unread in the socket.
    if let Ok(ended) = daemon.admin.end_session(request).wait() {
        let is_kept = ended.silent_reason.contains("keeps its socket");
        assert!(ended.state() == SessionState::Gone || is_kept, "{ended:?}");
    }
    assert_eq!(daemon.state().session(new).unwrap().state(), SessionState::Live);
    assert!(proc::is_alive(probe.pid()));
    drop(probe);
    daemon.drains();
}

#[test]
fn ordinary_ends_of_clients_are_no_warnings() {
    let daemon = Daemon::new();
    for round in 0..20 {
        let mut probe = daemon.probe();
        open(&mut probe);
        probe.ask("allocate 4194304");
        if round % 2 == 0 { probe.leave() } else { probe.kill() }
    }
    daemon.drains();
    let log = daemon.log();
    assert_eq!(log.matches("session gone").count(), 20, "{log}");
    assert!(!log.contains("WARN") && !log.contains("silent"), "{log}");
    // A client that closes its channel and keeps its memory is one.
    let mut keeper = daemon.probe();
    open(&mut keeper);
    let mut session = daemon.open();
    session.allocate(spec(4 * MIB));
    drop(session);
    until("it is silent", || daemon.log().contains("its channel has ended"));
}
