//! A request that is sent twice is done once, whatever became of the first answer.

use std::time::Duration;

use vramd_proto::v1::{AllocateBatchRequest, FreeBatchRequest, SealRequest, SetQuotaRequest};
use vramd_tests::{
    Config, Daemon, MIB, RawSession, Refused, beyond_deadline::status_beyond_deadline, config::Effect,
    daemon::quota, session::spec, wait::until,
};
use vramd_types::Reason;

fn request(session: &RawSession, size: u64, id: u8) -> AllocateBatchRequest {
    AllocateBatchRequest { request_id: vec![id; 16], ..session.request(vec![spec(size)]) }
}

#[test]
fn a_repeated_allocation_is_the_first_one() {
    let daemon = Daemon::new();
    let mut session = daemon.open();
    let first = session.memory.allocate_batch(request(&session, 4 * MIB, 1)).ok();
    session.map_all(first.allocations[0].allocation_id);
    let again = session.memory.allocate_batch(request(&session, 4 * MIB, 1)).ok();
    assert_eq!(again.allocations[0].allocation_id, first.allocations[0].allocation_id);
    assert_eq!(daemon.state().charged(), 4 * MIB);
    let state = daemon.settled_state();
    let refused = session.memory.allocate_batch(request(&session, 6 * MIB, 1)).refused();
    assert_eq!(refused.is(Reason::RequestIdReused).fact("request_id"), "01".repeat(16));
    assert_eq!(daemon.state(), state);
    // An id is unique within a session: another session may use the same one.
    let other = daemon.open();
    let second = other.memory.allocate_batch(request(&other, 4 * MIB, 1)).ok();
    assert_ne!(second.allocations[0].allocation_id, first.allocations[0].allocation_id);
}

#[test]
fn an_id_is_unique_within_its_method() {
    let daemon = Daemon::new();
    let mut session = daemon.open();
    let allocated = session.memory.allocate_batch(request(&session, 4 * MIB, 1)).ok();
    let allocation_id = allocated.allocations[0].allocation_id;
    session.map_all(allocation_id);
    session.unmap(allocation_id);
    let free = FreeBatchRequest {
        session_id: session.id(),
        request_id: vec![1; 16],
        allocation_ids: vec![allocation_id],
    };
    let first = session.memory.free_batch(free.clone()).ok();
    assert_eq!(first.results[0].error, None);
    let again = session.memory.free_batch(free).ok();
    assert_eq!(again, first, "freed once, and told twice");
    daemon.drains();
}

#[test]
fn a_repeated_call_finds_the_result_after_its_deadline() {
    let daemon = Daemon::start(&Config::default().fault("create", 1, Effect::Hold));
    let mut session = daemon.open();
    let hasty = session.memory.with_deadline(Duration::from_millis(1000));
    hasty.allocate_batch(request(&session, 4 * MIB, 9)).wait().unwrap_err();
    daemon.end_holds();
    let patient = session.memory.allocate_batch(request(&session, 4 * MIB, 9)).ok();
    session.map_all(patient.allocations[0].allocation_id);
    let state = daemon.state();
    assert_eq!((state.charged(), state.allocations.len()), (4 * MIB, 1), "done once");
}

#[test]
fn a_passed_deadline_is_reported_as_such() {
    // The driver has made nothing by the deadline, however late the caller hears of it.
    let daemon = Daemon::start(&Config::default().fault("create", 1, Effect::Hold));
    let session = daemon.open();
    let status = status_beyond_deadline(
        &daemon.sockets().join("vramd.sock"),
        "vramd.v1.MemoryService/AllocateBatch",
        &request(&session, 4 * MIB, 9),
        Duration::from_millis(1000),
    );
    Refused::from_status(&status).is(Reason::Deadline);
    daemon.end_holds();
    let found = session.memory.allocate_batch(request(&session, 4 * MIB, 9)).ok();
    assert_eq!(found.allocations.len(), 1);
    assert_eq!(daemon.state().charged(), 4 * MIB);
}

#[test]
fn no_call_takes_longer_than_the_daemon_allows() {
    let config = Config::default().fault("create", 1, Effect::Hold).limit("request_timeout_ms = 1000");
    let daemon = Daemon::start(&config);
    let session = daemon.open();
    session.memory.allocate_batch(request(&session, 4 * MIB, 9)).refused().is(Reason::Deadline);
    daemon.end_holds();
    // The allocation that had begun is finished, and stays.
    until("it is allocated", || daemon.state().allocations.iter().any(|row| row.resident_bytes == 4 * MIB));
    let found = session.memory.allocate_batch(request(&session, 4 * MIB, 9)).ok();
    assert_eq!(found.allocations.len(), 1);
    assert_eq!(daemon.state().charged(), 4 * MIB);
}

#[test]
fn two_equal_requests_at_once_are_done_once() {
    let daemon = Daemon::start(&Config::default().fault("create", 1, Effect::Hold));
    let session = daemon.open();
    let calls: Vec<_> =
        (0..4).map(|_| session.memory.allocate_batch(request(&session, 4 * MIB, 3))).collect();
    until("one of them is being done", || daemon.state().charged() == 4 * MIB);
    daemon.end_holds();
    let ids: Vec<u64> = calls.into_iter().map(|call| call.ok().allocations[0].allocation_id).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(daemon.state().charged(), 4 * MIB);
}

#[test]
fn a_caller_that_hangs_up_changes_nothing() {
    let daemon = Daemon::start(&Config::default().fault("create", 1, Effect::Hold));
    let mut session = daemon.open();
    let left = session.memory.allocate_batch(request(&session, 4 * MIB, 5));
    until("it has begun", || daemon.state().charged() == 4 * MIB);
    left.cancel();
    daemon.end_holds();
    let again = session.memory.allocate_batch(request(&session, 4 * MIB, 5)).ok();
    session.map_all(again.allocations[0].allocation_id);
    assert_eq!(daemon.state().charged(), 4 * MIB);
}

#[test]
fn a_repeated_seal_returns_the_same_digest() {
    let daemon = Daemon::new();
    let mut session = daemon.open();
    let allocation_id = session.allocate(spec(4 * MIB)).allocation_id;
    let request = SealRequest { session_id: session.id(), request_id: vec![4; 16], allocation_id };
    let pending = session.memory.seal(request.clone());
    let revoke = session.receive_revoke();
    session.unmap_parts(revoke.parts);
    let first = pending.ok();
    assert_eq!(
        session.memory.seal(request).ok().allocation.unwrap().digest,
        first.allocation.unwrap().digest
    );
}

#[test]
fn an_operators_repeated_request_is_known_after_a_restart() {
    let daemon = Daemon::new();
    let request = SetQuotaRequest { request_id: vec![8; 16], ..quota("team-a", "*", "1MiB", "64MiB") };
    daemon.admin.set_quota(request.clone()).ok();
    daemon.set_quota("team-a", "", "32MiB");
    // The request is not done again: later changes stay.
    daemon.admin.set_quota(request.clone()).ok();
    let limit = |daemon: &Daemon| {
        daemon.state().quotas.iter().find(|row| row.tenant == "team-a").unwrap().limit.clone()
    };
    assert_eq!(limit(&daemon), "32MiB");
    let daemon = Daemon::start_in(daemon.kill());
    daemon.admin.set_quota(request.clone()).ok();
    assert_eq!(limit(&daemon), "32MiB");
    let other = SetQuotaRequest { limit: Some("65MiB".to_owned()), ..request };
    daemon.admin.set_quota(other).refused().is(Reason::RequestIdReused);
}
