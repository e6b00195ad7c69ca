//! Batches of allocations that wait for room: until they get it, until their deadline, or until their session leaves.

use std::{
    thread,
    time::{Duration, Instant},
};

use vramd_client::{Access, AllocationRequest, Bytes, Client};
use vramd_proto::v1::{AllocateBatchRequest, AllocateBatchResponse, CancelAllocateBatchRequest, wait::What};
use vramd_tests::{
    Daemon, MIB_2, Pending, RawSession, content, digest,
    wait::{always, until},
};
use vramd_types::Reason;

use crate::moves::{
    assert_nothing_left,
    clients::programs::{allocate_unpinned, is_intact},
    evict, fetch_by_pin,
    line::waits::all_waits,
    open_and_write, part, parts, pin_words,
    pins::fetch::connect,
    tiers, unpin_words, until_charged,
};

/// Longer than any of these tests waits.
pub(crate) const LONG_MS: u64 = 200_000;

pub(crate) fn batch(session: &RawSession, count: u64, wait_ms: u64) -> Pending<AllocateBatchResponse> {
    session.memory.allocate_batch(AllocateBatchRequest { wait_ms, ..session.request(vec![parts(count)]) })
}

#[track_caller]
pub(crate) fn served(session: &mut RawSession, batch: Pending<AllocateBatchResponse>) -> u64 {
    let id = batch.ok().allocations[0].allocation_id;
    session.map_all(id);
    id
}

#[track_caller]
pub(crate) fn until_wait(daemon: &Daemon, count: usize) {
    until("this many wait", || all_waits(daemon).len() == count);
}

/// Two parts of a session without pins, which therefore never leave. They fill the device.
fn filled(daemon: &Daemon) -> (RawSession, [u64; 2]) {
    let mut other = daemon.open();
    let ids = [(); 2].map(|()| other.allocate(parts(1)).allocation_id);
    (other, ids)
}

#[test]
fn a_batch_is_served_once_all_of_it_has_room() {
    let daemon = Daemon::start(&tiers("4MiB", "8MiB"));
    let (mut other, ids) = filled(&daemon);
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let waiting = batch(&session, 2, LONG_MS);
    until_wait(&daemon, 1);
    let wait = all_waits(&daemon).remove(0);
    assert!(matches!(wait.what, Some(What::Batch(_))) && wait.until.is_some(), "{wait:?}");
    other.free(ids[0]);
    until("half of it is there", || daemon.state().charged() == MIB_2);
    always("it waits for the rest", Duration::from_millis(100), || {
        !waiting.is_answered() && all_waits(&daemon).len() == 1
    });
    other.free(ids[1]);
    let id = served(&mut session, waiting);
    until_wait(&daemon, 0);
    session.write(id, &content(2 * MIB_2, 5));
    assert_eq!(session.digest(id, 2 * MIB_2), digest(&content(2 * MIB_2, 5)));
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_batch_does_not_overtake_a_pin() {
    let daemon = Daemon::start(&tiers("4MiB", "16MiB").memory("harvest_ms = 5"));
    let (mut pinner, id) = open_and_write(&daemon, 2);
    evict(&daemon, &mut pinner, id);
    until_charged(&daemon, 0, 4);
    let (mut other, ids) = filled(&daemon);
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let call = pinner.pin(vec![part(id, 0), part(id, 1)]);
    until_wait(&daemon, 2);
    let waiting = batch(&session, 1, LONG_MS);
    until_wait(&daemon, 3);

    other.free(ids[0]);
    until_wait(&daemon, 2);
    assert!(!waiting.is_answered(), "it came after the pin, whose first part has the room");
    other.free(ids[1]);
    pinner.pin_answer(call).unwrap();
    pin_words(&pinner, id, 2);
    pinner.end_pin_call(call);
    always("it waits for what is pinned", Duration::from_millis(100), || {
        !waiting.is_answered() && all_waits(&daemon).len() == 1
    });
    unpin_words(&pinner, id, 2);
    // Once the daemon knows that no session pins them.
    let revoke = pinner.receive_revoke();
    assert_eq!(revoke.parts.len(), 1, "as much as the batch wants");
    pinner.unmap_parts(revoke.parts);
    let theirs = served(&mut session, waiting);
    session.free(theirs);
    fetch_by_pin(&mut pinner, id, 2);
    assert_eq!(pinner.digest(id, 2 * MIB_2), digest(&content(2 * MIB_2, id)));
    pinner.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_pin_does_not_overtake_a_batch_that_holds() {
    let daemon = Daemon::start(&tiers("4MiB", "16MiB").limit("hold_after_ms = 0"));
    let (mut pinner, id) = open_and_write(&daemon, 1);
    evict(&daemon, &mut pinner, id);
    until_charged(&daemon, 0, 2);
    let (mut other, ids) = filled(&daemon);
    // The session keeps its memory until it frees it.
    let mut session = daemon.open();
    let waiting = batch(&session, 2, LONG_MS);
    until_wait(&daemon, 1);
    let call = pinner.pin(vec![part(id, 0)]);
    until_wait(&daemon, 2);
    other.free(ids[0]);
    until("there would be room for the pin", || daemon.state().charged() == MIB_2);
    always("it does not overtake", Duration::from_millis(100), || {
        !waiting.is_answered() && all_waits(&daemon).len() == 2
    });
    other.free(ids[1]);
    let theirs = served(&mut session, waiting);
    until_wait(&daemon, 1);
    assert_eq!(daemon.state().charged(), 2 * MIB_2);
    session.free(theirs);
    pinner.pin_answer(call).unwrap();
    assert_eq!(pinner.digest(id, MIB_2), digest(&content(MIB_2, id)));
    pinner.end_pin_call(call);
    pinner.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_batch_is_refused_at_its_deadline_and_not_before() {
    let daemon = Daemon::start(&tiers("6MiB", "8MiB"));
    let (mut other, ids) = filled(&daemon);
    // Otherwise the batch would meet its tenant's limit.
    daemon.set_quota("team-z", "2MiB", "");
    let session = RawSession::open_with_pins(&daemon.sockets());
    let client = connect(&daemon);
    for wait in [Duration::ZERO, Duration::from_millis(700)] {
        let begun = Instant::now();
        let wait_ms = u64::try_from(wait.as_millis()).unwrap();
        batch(&session, 1, wait_ms).refused().is(Reason::DeviceFull);
        let refused = client.allocate(AllocationRequest::new(Bytes::mib(2)).wait(wait)).unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::DeviceFull), "{refused}");
        let took = begun.elapsed();
        assert!(took >= 2 * wait, "{took:?} of {wait:?} each");
        assert_eq!(all_waits(&daemon), []);
    }
    ids.into_iter().for_each(|id| _ = other.free(id));
    assert_nothing_left(&daemon);
}

#[test]
fn a_session_that_loses_its_channel_or_process_leaves_the_line() {
    let daemon = Daemon::start(&tiers("4MiB", "8MiB"));
    let (mut other, ids) = filled(&daemon);
    let mut ends = RawSession::open_with_pins(&daemon.sockets());
    let lost = batch(&ends, 1, LONG_MS);
    until_wait(&daemon, 1);
    let mut probe = daemon.probe();
    let probes = probe.ask("sdk open")["session"].as_u64().unwrap();
    probe.tell(&format!("sdk allocate {MIB_2} wait={LONG_MS}"));
    until_wait(&daemon, 2);
    ends.channel.close().unwrap();
    until_wait(&daemon, 1);
    lost.refused().is(Reason::SessionLost);
    let wait = all_waits(&daemon).remove(0);
    assert!(matches!(&wait.what, Some(What::Batch(of)) if of.session_id == probes), "{wait:?}");
    probe.kill();
    until_wait(&daemon, 0);
    // The daemon makes nothing for a session that has ended.
    ids.into_iter().for_each(|id| _ = other.free(id));
    assert_nothing_left(&daemon);
}

/// As with any request: the batch is done, and a repeated request gets its answer.
#[test]
fn a_caller_that_hangs_up_finds_its_batch_still_in_the_line() {
    let daemon = Daemon::start(&tiers("4MiB", "8MiB"));
    let (mut other, ids) = filled(&daemon);
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let ask = || {
        let request = session.request(vec![parts(1)]);
        AllocateBatchRequest { wait_ms: LONG_MS, request_id: vec![3; 16], ..request }
    };
    let left = session.memory.allocate_batch(ask());
    until_wait(&daemon, 1);
    let stands = all_waits(&daemon);
    left.cancel();
    let again = session.memory.allocate_batch(ask());
    always("it is one batch, where it stood", Duration::from_millis(100), || all_waits(&daemon) == stands);
    assert!(!again.is_answered());
    other.free(ids[0]);
    let id = served(&mut session, again);
    assert_eq!(daemon.state().charged(), 2 * MIB_2);
    session.free(id);
    other.free(ids[1]);
    assert_nothing_left(&daemon);
}

#[test]
fn an_sdk_batch_waits_until_pinned_parts_may_leave() {
    let daemon = Daemon::start(&tiers("4MiB", "16MiB").memory("harvest_ms = 5"));
    let (first, second): (Client, Client) = (connect(&daemon), connect(&daemon));
    let memory = allocate_unpinned(&daemon, &first, 2);
    let pinned = memory.pin(Access::Write).unwrap();
    thread::scope(|scope| {
        let wait = Duration::from_millis(LONG_MS);
        let waiting = scope.spawn(move || second.allocate(AllocationRequest::new(Bytes::mib(4)).wait(wait)));
        until_wait(&daemon, 1);
        always("it waits", Duration::from_millis(100), || !waiting.is_finished());
        drop(pinned);
        let mut theirs = waiting.join().unwrap().unwrap();
        let bytes = content(2 * MIB_2, 6);
        theirs.copy_from_host(0, &bytes).unwrap();
        let mut read = vec![0; bytes.len()];
        theirs.copy_to_host(0, &mut read).unwrap();
        assert!(read == bytes);
        theirs.unpin().unwrap();
        is_intact(&memory, 2);
    });
    drop(memory);
    first.flush().unwrap();
    assert_nothing_left(&daemon);
}

#[test]
fn a_task_that_stops_waiting_does_not_block_the_release() {
    let daemon = Daemon::start(&tiers("4MiB", "8MiB"));
    let mut other = daemon.open();
    let theirs = other.allocate(parts(1)).allocation_id;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let request = |mib| AllocationRequest::new(Bytes::mib(mib));
    let client = vramd_client::aio::Client::from(connect(&daemon));
    let own = runtime.block_on(client.allocate(request(2))).unwrap();
    let given_up = runtime.block_on(async {
        let waits = client.allocate(request(4).wait(Duration::from_millis(LONG_MS)));
        tokio::time::timeout(Duration::from_millis(300), waits).await.is_err()
    });
    assert!(given_up, "there is no room for it");
    drop(own);
    // Room comes only later.
    until("memory dropped after it is freed", || daemon.state().charged() == MIB_2);
    other.free(theirs);
    drop(client);
    assert_nothing_left(&daemon);
}

#[test]
fn client_cancels_its_own_waiting_batch() {
    let daemon = Daemon::start(&tiers("4MiB", "8MiB"));
    let (mut other, ids) = filled(&daemon);
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let spec = session.request(vec![parts(2)]);
    let request = AllocateBatchRequest { wait_ms: LONG_MS, request_id: vec![7; 16], ..spec };
    let waiting = session.memory.allocate_batch(request.clone());
    until_wait(&daemon, 1);
    let cancel = |session: &RawSession, request_id| {
        let request = CancelAllocateBatchRequest { session_id: session.id(), request_id };
        session.memory.cancel_allocate_batch(request)
    };
    for malformed in [vec![], vec![7; 15]] {
        let refused = cancel(&session, malformed).refused();
        assert_eq!(refused.is(Reason::RequestInvalid).fact("field"), "request_id");
    }
    cancel(&session, vec![8; 16]).refused().is(Reason::WaitNotFound);
    cancel(&other, vec![7; 16]).refused().is(Reason::WaitNotFound);
    assert_eq!(all_waits(&daemon).len(), 1, "it is not the other session's to cancel");

    cancel(&session, vec![7; 16]).ok();
    waiting.refused().is(Reason::WaitCancelled);
    assert_eq!(all_waits(&daemon), []);
    cancel(&session, vec![7; 16]).refused().is(Reason::WaitNotFound);

    // A refused request is not remembered, and may be made again.
    let again = session.memory.allocate_batch(request);
    until_wait(&daemon, 1);
    for id in ids {
        other.free(id);
    }
    let id = served(&mut session, again);
    cancel(&session, vec![7; 16]).refused().is(Reason::WaitNotFound);
    session.free(id);
    assert_nothing_left(&daemon);
}
