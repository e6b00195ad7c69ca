//! Clients that do not answer: the daemon answers all others in the configured time, also those that wait for a slow
//! client.

use std::time::Instant;

use vramd_proto::v1::{DetachRequest, EndSessionRequest, FreeBatchRequest, Hello, SealRequest, SessionState};
use vramd_tests::{
    Config, Daemon, MIB, Memory, RawSession, proc,
    session::{hello, spec},
    wait::{PATIENCE, until},
};
use vramd_types::Reason;

use crate::has_other_users;

fn impatient() -> Daemon {
    Daemon::start(&Config::default().limit("revoke_answer_timeout_ms = 300"))
}

/// Runs this, and fails the test if it takes longer than a machine under load may take.
#[track_caller]
fn soon<T>(what: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = what();
    assert!(begun.elapsed() < PATIENCE, "took {:?}", begun.elapsed());
    done
}

#[test]
fn an_endlessly_repeated_request_delays_no_other_session() {
    if !has_other_users("an_endlessly_repeated_request_delays_no_other_session") {
        return;
    }
    let daemon = Daemon::start(&Config::default().limit("revoke_answer_timeout_ms = 600000"));
    let mut stuck = daemon.open();
    let allocation_id = stuck.allocate(spec(MIB)).allocation_id;
    let seal = SealRequest { session_id: stuck.id(), request_id: vec![7; 16], allocation_id };
    // One connection carries only a limited number of calls at once.
    let connections: Vec<_> = (0..6).map(|_| Memory::new(&daemon.sockets())).collect();
    let pending: Vec<_> =
        (0..1100).map(|call| connections[call % connections.len()].seal(seal.clone())).collect();
    until("too many of them are refused", || pending.iter().any(|call| call.is_answered()));
    let mut other = daemon.probe_as(20_002);
    other.ask("open");
    soon(|| other.ask("allocate 2097152"));
    soon(|| daemon.state());
    for call in pending {
        call.cancel();
    }
}

#[test]
fn a_session_that_does_not_end_can_still_be_killed() {
    let daemon = impatient();
    let mut probe = daemon.probe();
    let session_id = probe.ask("open")["session"].as_u64().unwrap();
    probe.ask("allocate 4194304");
    probe.freeze();
    let end = |kill| daemon.admin.end_session(EndSessionRequest { session_id, kill, ..Default::default() });
    assert_eq!(soon(|| end(false).ok()).state(), SessionState::Silent);
    assert_eq!(soon(|| end(false).ok()).state(), SessionState::Silent);
    let ended = soon(|| end(true).ok());
    assert_eq!((ended.state(), ended.still_mapped_bytes), (SessionState::Gone, 0));
    until("the process is gone", || !proc::is_alive(probe.pid()));
    daemon.drains();
}

#[test]
fn a_repeated_free_reports_the_present_charge() {
    let daemon = impatient();
    let mut session = daemon.open();
    let allocation = session.allocate(spec(4 * MIB)).allocation_id;
    let (session_id, allocation_ids) = (session.id(), vec![allocation]);
    let free = FreeBatchRequest { session_id, allocation_ids: allocation_ids.clone(), ..Default::default() };
    let first = soon(|| session.memory.free_batch(free.clone()).ok());
    assert_eq!(first.results[0].still_charged_bytes, 4 * MIB);
    // Any answer will do: the allocation was freed, or is no longer its owner's.
    soon(|| session.memory.free_batch(free).ok());
    let detach = DetachRequest { session_id, allocation_ids, ..Default::default() };
    soon(|| session.memory.detach(detach).wait()).ok();
    let revoke = session.receive_revoke();
    session.unmap_parts(revoke.parts);
    daemon.drains();
}

#[test]
fn a_seal_whose_revoke_is_not_answered_is_refused() {
    let daemon = impatient();
    let mut session = daemon.open();
    let allocation_id = session.allocate(spec(4 * MIB)).allocation_id;
    let seal = SealRequest { session_id: session.id(), allocation_id, ..Default::default() };
    let refused = soon(|| session.memory.seal(seal).refused());
    assert_eq!(refused.is(Reason::StillMapped).fact("allocation"), format!("a-{allocation_id}"));
    assert_eq!(daemon.state().charged(), 4 * MIB);
    let revoke = session.receive_revoke();
    session.unmap_parts(revoke.parts);
}

/// The end of the old channel and the hello on the new one arrive on two sockets, in any order.
#[test]
fn a_new_channel_replaces_the_old_one_in_any_order() {
    let daemon = Daemon::new();
    let mut last: Option<u64> = None;
    for _ in 0..100 {
        let unmapped_session_ids = last.into_iter().collect();
        let mut session =
            RawSession::open_with(&daemon.sockets(), Hello { unmapped_session_ids, ..hello() }).unwrap();
        session.allocate(spec(2 * MIB));
        last = Some(session.id());
    }
    let unmapped_session_ids = last.into_iter().collect();
    let session =
        RawSession::open_with(&daemon.sockets(), Hello { unmapped_session_ids, ..hello() }).unwrap();
    until("every earlier session is gone", || daemon.state().sessions.len() == 1);
    daemon.drains();
    drop(session);
}
