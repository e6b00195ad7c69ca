//! Operators list the waiters for room, and end waits.

use std::time::{Duration, Instant};

use vramd_client::{Access, AllocationRequest, Bytes, Error};
use vramd_proto::v1::{
    AllocateBatchRequest, CancelWaitRequest, ListWaitsRequest, MappingUse, PartWait, ShowAllocationRequest,
    Wait, WaitCause, show_allocation_request::Target, wait::What,
};
use vramd_tests::{Daemon, MIB_2, RawSession, content, digest, session::spec, wait::until};
use vramd_types::Reason;

use crate::moves::{
    assert_nothing_left, evict, open_and_write, part, parts, pin_words, pins::fetch::connect, tiers,
    unpin_words, until_charged, vramctl, vramctl_json,
};

fn waits(daemon: &Daemon, request: ListWaitsRequest) -> Vec<Wait> {
    daemon.admin.list_waits(request).ok().waits
}

pub(crate) fn all_waits(daemon: &Daemon) -> Vec<Wait> {
    waits(daemon, ListWaitsRequest::default())
}

/// A device of 8 MiB. One of the first session's four parts has arrived, and three wait, since the second session has
/// the rest.
pub(crate) fn with_three_waiters(daemon: &Daemon) -> (RawSession, u64, u64, RawSession, u64) {
    let (mut session, id) = open_and_write(daemon, 4);
    evict(daemon, &mut session, id);
    until_charged(daemon, 0, 8);
    // The session has no pins, so its parts never leave.
    let mut other = daemon.open();
    let theirs = other.allocate(parts(3)).allocation_id;
    let call = session.pin((0..4).map(|index| part(id, index)).collect());
    until("three wait for room", || all_waits(daemon).len() == 3);
    (session, id, call, other, theirs)
}

/// The daemon keeps the deadline: a stopped program gives up nothing by itself.
#[test]
fn a_pin_past_its_deadline_blocks_no_waiter() {
    let daemon = Daemon::start(&tiers("8MiB", "64MiB"));
    let (mut first, large) = open_and_write(&daemon, 4);
    evict(&daemon, &mut first, large);
    let (mut next, small) = open_and_write(&daemon, 1);
    evict(&daemon, &mut next, small);
    until_charged(&daemon, 0, 10);
    let mut other = daemon.open();
    let theirs = other.allocate(parts(2)).allocation_id;
    let began = Instant::now();
    let call = first.pin_within((0..4).map(|index| part(large, index)).collect(), 1_500);
    until("it stands in the line", || !all_waits(&daemon).is_empty());
    let behind = next.pin(vec![part(small, 0)]);
    until("one more", || all_waits(&daemon).iter().any(|wait| wait.until.is_none()));
    assert!(all_waits(&daemon)[0].until.is_some(), "{:?}", all_waits(&daemon));
    let refused = first.pin_answer(call).unwrap_err();
    let by = format!("s-{}", other.id());
    refused.is(Reason::Deadline);
    assert!(refused.message.contains("it waits for") && refused.message.contains(&by), "{}", refused.message);
    assert!(began.elapsed() >= Duration::from_millis(1_500), "it had its time");
    // The room that was made for it is released again.
    let revoke = first.receive_revoke();
    first.unmap_parts(revoke.parts);
    next.pin_answer(behind).unwrap();
    assert_eq!(next.digest(small, MIB_2), digest(&content(MIB_2, small)));
    next.end_pin_call(behind);
    first.free(large);
    next.free(small);
    other.free(theirs);
    assert_nothing_left(&daemon);
}

#[test]
fn a_waiting_pin_is_listed_and_cancelled() {
    let daemon = Daemon::start(&tiers("8MiB", "16MiB"));
    let (mut session, id, call, mut other, theirs) = with_three_waiters(&daemon);
    let listed = all_waits(&daemon);
    let uuid = daemon.state().devices[0].device.clone().unwrap().uuid;
    for (wait, index) in listed.iter().zip(1..) {
        assert_eq!((wait.tenant.as_str(), &wait.device, wait.bytes), (session.tenant(), &uuid, MIB_2));
        assert!(wait.began_at.is_some() && wait.until.is_none(), "{wait:?}");
        let waiting = PartWait { part: Some(part(id, index)), session_ids: vec![session.id()] };
        assert_eq!(wait.what, Some(What::Part(waiting)));
    }
    for wait in &listed {
        assert_eq!((wait.request, wait.requests_ahead), (listed[0].request, 0), "all are parts of one pin");
        let reason = wait.reason.clone().unwrap();
        assert_eq!(
            (reason.cause(), reason.held_bytes, reason.bound_bytes),
            (WaitCause::InUse, 8 << 20, 8 << 20)
        );
        assert!(reason.session_ids.contains(&other.id()), "it has no pins: {reason:?}");
    }

    let mut pages = Vec::new();
    let mut request = ListWaitsRequest { page_size: Some(2), ..Default::default() };
    loop {
        let page = daemon.admin.list_waits(request.clone()).ok();
        pages.push(page.waits.len());
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    assert_eq!(pages, [2, 1]);
    assert_eq!(waits(&daemon, ListWaitsRequest { tenant: Some("nobody".into()), ..Default::default() }), []);

    let told = vramctl_json(&daemon, &["wait", "list", session.tenant()]);
    assert_eq!(told["waits"][0]["what"]["kind"], "part");
    assert_eq!(told["waits"][2]["what"]["part_index"], 3);
    assert_eq!(told["waits"][0]["what"]["session_ids"][0], format!("s-{}", session.id()));
    let text = String::from_utf8(vramctl(&daemon, &["wait", "list"]).stdout).unwrap();
    assert_eq!(text.matches(&format!("parts 1-3 of a-{id}")).count(), 1, "one row for the pin: {text}");
    let other_name = format!("s-{}", other.id());
    assert!(text.contains("device full: 8 MiB of 8 MiB, in use by") && text.contains(&other_name), "{text}");

    let ended = listed[1].wait_id;
    assert_eq!(vramctl_json(&daemon, &["wait", "cancel", &ended.to_string()])["wait_id"], ended);
    let refused = session.pin_answer(call).unwrap_err();
    assert_eq!(refused.is(Reason::WaitCancelled).fact("wait"), ended.to_string());
    until("nobody waits", || all_waits(&daemon).is_empty());
    assert_eq!(vramctl(&daemon, &["wait", "cancel", &ended.to_string()]).status.code(), Some(1));

    // A repeated request waits again, or is served.
    other.free(theirs);
    let again = session.pin((0..4).map(|index| part(id, index)).collect());
    session.pin_answer(again).unwrap();
    assert_eq!(session.digest(id, 4 * MIB_2), digest(&content(4 * MIB_2, id)));
    session.end_pin_call(again);
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_wait_says_why_it_waits_and_behind_whom() {
    let daemon = Daemon::start(&tiers("8MiB", "64MiB"));
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let tenant = session.tenant().to_owned();
    let kept = session.allocate(parts(2)).allocation_id;
    let moved = session.allocate(parts(2)).allocation_id;
    evict(&daemon, &mut session, moved);
    until_charged(&daemon, 4, 8);
    pin_words(&session, kept, 2);
    daemon.set_quota(&tenant, "", "4MiB");
    let first = session.pin_within(vec![part(moved, 0)], 600_000);
    until("it waits", || all_waits(&daemon).len() == 1);
    let second = session.pin(vec![part(moved, 1)]);
    until("both wait", || all_waits(&daemon).len() == 2);
    let listed = all_waits(&daemon);
    for wait in &listed {
        let reason = wait.reason.clone().unwrap();
        assert_eq!(
            (reason.cause(), reason.held_bytes, reason.bound_bytes),
            (WaitCause::Limit, 4 << 20, 4 << 20)
        );
        assert_eq!(reason.session_ids, [session.id()]);
    }
    let ahead = |wait: &Wait| (wait.requests_ahead, wait.wait_id_ahead);
    assert_eq!((ahead(&listed[0]), ahead(&listed[1])), ((0, 0), (1, listed[0].wait_id)));
    let text = String::from_utf8(vramctl(&daemon, &["wait", "list"]).stdout).unwrap();
    let why = format!("limit: 4 MiB of 4 MiB, in use by s-{}", session.id());
    assert!(text.contains(&why) && text.contains(&format!("wait {}", listed[0].wait_id)), "{text}");
    assert!(text.contains("in 9 min"), "until when: {text}");

    // The limit no longer binds, but the rest of the device is guaranteed to another tenant.
    daemon.set_quota("team-b", "4MiB", "");
    daemon.set_quota(&tenant, "", "8MiB");
    let reason = all_waits(&daemon)[0].reason.clone().unwrap();
    assert_eq!((reason.cause(), &reason.tenants[..]), (WaitCause::Guarantee, &["team-b".to_owned()][..]));
    let text = String::from_utf8(vramctl(&daemon, &["wait", "list"]).stdout).unwrap();
    assert!(text.contains("guarantee of team-b"), "{text}");
    daemon.set_quota("team-b", "0", "");
    for call in [first, second] {
        session.pin_answer(call).unwrap();
        session.end_pin_call(call);
    }
    unpin_words(&session, kept, 2);
    session.free(kept);
    session.free(moved);
    assert_nothing_left(&daemon);
}

#[test]
fn an_allocation_shows_what_is_held_pinned_and_idle() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB"));
    let (mut session, id) = open_and_write(&daemon, 3);
    session.word_table().client(session.slot(id, 0)).pin(vramd_words::Access::Read).unwrap();
    let target = format!("a-{id}");
    assert!(vramctl(&daemon, &["alloc", "hold", &target, "--part", "1"]).status.success());
    let shown =
        daemon.admin.show_allocation(ShowAllocationRequest { target: Some(Target::AllocationId(id)) });
    let parts = shown.ok().allocation.unwrap().parts;
    let uses: Vec<_> = parts.iter().map(|part| (part.held, part.mappers[0].usage())).collect();
    assert_eq!(uses, [(false, MappingUse::Pinned), (true, MappingUse::Idle), (false, MappingUse::Idle)]);
    let text = String::from_utf8(vramctl(&daemon, &["alloc", "show", &target]).stdout).unwrap();
    for expected in [&format!("pinned by s-{}", session.id()), "held by an operator", "idle"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let fact = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    for name in ["held", "pinned", "idle"] {
        assert!(fact(name).ends_with("2 MiB"), "{name}: {text}");
    }
    unpin_words(&session, id, 1);
    assert!(vramctl(&daemon, &["alloc", "unhold", &target]).status.success());
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn an_unknown_wait_is_refused_and_a_repeated_request_is_known() {
    let daemon = Daemon::start(&tiers("8MiB", "16MiB"));
    let (mut session, id, call, mut other, theirs) = with_three_waiters(&daemon);
    let cancel = |request: CancelWaitRequest| daemon.admin.cancel_wait(request);
    let last = all_waits(&daemon)[2].wait_id;
    let refused = cancel(CancelWaitRequest { wait_id: last + 1, ..Default::default() }).refused();
    assert_eq!(refused.is(Reason::WaitNotFound).fact("wait"), (last + 1).to_string());
    cancel(CancelWaitRequest { request_id: vec![1], wait_id: last }).refused().is(Reason::RequestInvalid);
    let request = ListWaitsRequest { page_size: Some(1001), ..Default::default() };
    daemon.admin.list_waits(request).refused().is(Reason::RequestInvalid);
    assert_eq!(all_waits(&daemon).len(), 3);

    let once = CancelWaitRequest { request_id: vec![7; 16], wait_id: last };
    cancel(once.clone()).ok();
    cancel(once.clone()).ok();
    cancel(CancelWaitRequest { wait_id: last - 1, ..once }).refused().is(Reason::RequestIdReused);
    session.pin_answer(call).unwrap_err().is(Reason::WaitCancelled);
    other.free(theirs);
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_cancelled_wait_is_an_error_in_the_sdk() {
    let daemon = Daemon::start(&tiers("4MiB", "8MiB"));
    let client = connect(&daemon);
    let mut memory = client.allocate(AllocationRequest::new(Bytes::mib(4))).unwrap();
    memory.copy_from_host(0, &[5]).unwrap();
    memory.unpin().unwrap();
    let id = memory.id().to_string();
    until("it leaves", || vramctl_json(&daemon, &["alloc", "evict", &id])["parts"][0]["outcome"] == "moved");
    until_charged(&daemon, 0, 4);
    let mut other = daemon.open();
    let theirs = other.allocate(parts(2)).allocation_id;
    std::thread::scope(|scope| {
        let pinner = scope.spawn(|| memory.pin(Access::Read));
        until("it waits", || all_waits(&daemon).len() == 1);
        let wait_id = all_waits(&daemon)[0].wait_id;
        daemon.admin.cancel_wait(CancelWaitRequest { wait_id, ..Default::default() }).ok();
        let outcome = pinner.join().unwrap();
        assert!(matches!(outcome, Err(Error::WaitCancelled { wait, .. }) if wait == wait_id), "{outcome:?}");
    });
    other.free(theirs);
    let mut read = [0];
    memory.copy_to_host(0, &mut read).unwrap();
    assert_eq!(read, [5]);
    drop(memory);
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}

#[test]
fn a_batch_waits_no_longer_than_a_call_may_take() {
    let config = tiers("8MiB", "8MiB").limit("request_timeout_ms = 20000");
    let daemon = Daemon::start(&config);
    let session = RawSession::open_with_pins(&daemon.sockets());
    for wait_ms in [20_000, u64::MAX] {
        let batch = AllocateBatchRequest { wait_ms, ..session.request(vec![spec(1)]) };
        let refused = session.memory.allocate_batch(batch).refused();
        assert_eq!(refused.is(Reason::RequestInvalid).fact("field"), "wait_ms");
    }
    let client = connect(&daemon);
    let request = AllocationRequest::new(Bytes::mib(2));
    for wait in [Duration::from_secs(20), Duration::MAX] {
        let refused = client.allocate(request.clone().wait(wait)).unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::RequestInvalid), "{refused}");
    }
    // There is room, and no session waits.
    let memory = client.allocate(request.wait(Duration::from_secs(19))).unwrap();
    drop(memory);
    client.flush().unwrap();
    until_charged(&daemon, 0, 0);
}
