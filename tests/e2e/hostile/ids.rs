//! Ids tell a client nothing about what others open, and mean the same wherever they are shown.

use std::collections::BTreeSet;

use vramd_proto::v1::{AllocateBatchRequest, CancelAllocateBatchRequest, ListAllocationsRequest};
use vramd_tests::{Config, Daemon, MIB, RawSession, session::spec};
use vramd_types::Reason;

use crate::moves::{
    line::{
        batches::{LONG_MS, until_wait},
        waits::all_waits,
    },
    parts, tiers,
};

/// Two of 32 random ids of 40 bits are that near to each other once in 10^6 runs.
const NEAR: u64 = 500;

/// Asserts that the ids, in the order in which they were given out, tell neither their order nor their number.
fn assert_do_not_count(ids: &[u64]) {
    for pair in ids.windows(2) {
        assert!(pair[0].abs_diff(pair[1]) > NEAR, "{ids:?}");
    }
    assert!(!ids.is_sorted(), "{ids:?}");
}

#[test]
fn ids_do_not_count() {
    let daemon = Daemon::new();
    let sessions: Vec<RawSession> = (0..32).map(|_| daemon.open()).collect();
    assert_do_not_count(&sessions.iter().map(RawSession::id).collect::<Vec<_>>());
    let allocations: Vec<u64> = sessions.iter().map(|it| it.reserve(spec(MIB)).allocation_id).collect();
    assert_do_not_count(&allocations);
}

/// A client that allocates until it meets the number of a session would count sessions by its allocations.
#[test]
fn sessions_and_allocations_have_no_number_in_common() {
    let daemon = Daemon::new();
    let sessions: Vec<RawSession> = (0..32).map(|_| daemon.open()).collect();
    let numbers: BTreeSet<u64> = sessions.iter().map(RawSession::id).collect();
    let allocations: BTreeSet<u64> = sessions.iter().map(|it| it.reserve(spec(MIB)).allocation_id).collect();
    let common: Vec<_> = numbers.intersection(&allocations).collect();
    assert!(common.is_empty(), "{common:?}");
}

/// A client learns the number of its own wait by cancelling it. Two such numbers do not tell how many others waited
/// between them.
#[test]
fn wait_numbers_do_not_count() {
    let daemon = Daemon::start(&tiers("4MiB", "8MiB"));
    let mut other = daemon.open();
    let held = other.allocate(parts(2)).allocation_id;
    let session = RawSession::open_with_pins(&daemon.sockets());
    let waits = (0..32).map(|number| {
        let request_id = vec![number; 16];
        let spec = session.request(vec![parts(1)]);
        let waiting = session.memory.allocate_batch(AllocateBatchRequest {
            wait_ms: LONG_MS,
            request_id: request_id.clone(),
            ..spec
        });
        until_wait(&daemon, 1);
        let listed = all_waits(&daemon)[0].wait_id;
        let cancel = CancelAllocateBatchRequest { session_id: session.id(), request_id };
        session.memory.cancel_allocate_batch(cancel).ok();
        let told = waiting.refused().is(Reason::WaitCancelled).fact("wait").parse().unwrap();
        assert_eq!(listed, told, "operators know the wait by the same number");
        told
    });
    assert_do_not_count(&waits.collect::<Vec<u64>>());
    other.free(held);
}

#[test]
fn an_id_is_the_same_everywhere() {
    let daemon = Daemon::start(&Config::default().log_level("debug"));
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let made: Vec<u64> = (0..7).map(|_| session.allocate(spec(MIB)).allocation_id).collect();

    // Pages go on where the one before ended, in the order in which the allocations were made.
    let mut request =
        ListAllocationsRequest { session_id: session.id(), page_size: Some(2), ..Default::default() };
    let mut listed = Vec::new();
    loop {
        let page = session.memory.list_allocations(request.clone()).ok();
        listed.extend(page.allocations.iter().map(|it| it.allocation_id));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(listed, made);

    // To operators, in errors and in the log.
    let state = daemon.state();
    assert_eq!(state.session(session.id()).map(|it| it.pid), Some(std::process::id()));
    assert_eq!(state.allocations.iter().map(|it| it.allocation_id).collect::<Vec<_>>(), made);
    assert!(state.allocations.iter().all(|it| it.owner_session_id == session.id()));
    assert!(session.free(made[3]).error.is_none());
    let gone = session.free(made[3]).error.expect("it is freed");
    assert_eq!(gone.reason, Reason::AllocationNotFound.name());
    assert!(gone.message.contains(&format!("a-{}", made[3])), "{}", gone.message);
    let log = daemon.log();
    assert!(log.contains(&format!("s-{}", session.id())) && log.contains(&format!("a-{}", made[0])), "{log}");
}
