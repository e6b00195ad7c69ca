//! Parts that operators hold on their device.

use vramd_proto::v1::{
    AllocationEvent, EventKind, HoldPartsRequest, MoveOutcome as Outcome, Tier, WatchRequest,
    allocation_event::Change, hold_parts_request::Target, watch_response::Event,
};
use vramd_tests::{Daemon, MIB, MIB_2, RawSession, Watching, content, digest};
use vramd_types::Reason;

use crate::moves::{
    assert_nothing_left, evict, fetch_by_pin, open_and_write, outcomes, parts, start_move, tiers,
    until_charged, vramctl, vramctl_json,
};

#[test]
fn a_held_part_stays_until_the_operator_lets_it_go() {
    let daemon = Daemon::start(&tiers("8MiB", "16MiB"));
    let kinds = vec![EventKind::Allocation.into()];
    let mut watching = Watching::start(&daemon.admin, WatchRequest { kinds, ..Default::default() }).unwrap();
    let (mut session, id) = open_and_write(&daemon, 4);
    let target = format!("a-{id}");
    let told = vramctl_json(&daemon, &["alloc", "hold", &target, "--part", "0", "--part", "2"]);
    assert_eq!((&told["held"], &told["part_indexes"]), (&true.into(), &serde_json::json!([0, 2])));
    let shown = vramctl_json(&daemon, &["alloc", "show", &target]);
    let held = |at: usize| shown["allocation"]["parts"][at]["held"].as_bool().unwrap();
    assert_eq!([0, 1, 2, 3].map(held), [true, false, true, false]);
    let text = String::from_utf8(vramctl(&daemon, &["alloc", "show", &target]).stdout).unwrap();
    assert_eq!(text.matches("held by an operator").count(), 2, "{text}");

    // A waiter gets the room of the other parts. There is no more.
    let mut other = RawSession::open_with_pins(&daemon.sockets());
    let theirs = std::thread::scope(|scope| {
        let allocating = scope.spawn(|| other.allocate(parts(2)).allocation_id);
        let mut left = 2;
        while left > 0 {
            let revoke = session.receive_revoke();
            left -= revoke.parts.len();
            session.unmap_parts(revoke.parts);
        }
        allocating.join().unwrap()
    });
    until_charged(&daemon, 8, 12);
    crate::moves::pin_words(&other, theirs, 2);
    other.refused(parts(1)).is(Reason::QuotaLimit);
    let answer = start_move(&daemon, id, Tier::Host).ok();
    assert_eq!(outcomes(&answer), [Outcome::Held, Outcome::Moved, Outcome::Held, Outcome::Moved]);
    let text = String::from_utf8(vramctl(&daemon, &["alloc", "evict", &target]).stdout).unwrap();
    assert_eq!(text.matches("held").count(), 2, "{text}");

    let told = vramctl_json(&daemon, &["alloc", "unhold", &target]);
    assert_eq!((&told["held"], &told["part_indexes"]), (&false.into(), &serde_json::json!([0, 1, 2, 3])));
    let changes = std::iter::from_fn(|| match watching.read().event {
        Some(Event::Allocation(told)) if told.allocation_id == id => Some(told),
        _ => Some(AllocationEvent::default()),
    });
    let of = |told: &AllocationEvent| matches!(told.change(), Change::Held | Change::LetGo);
    let changes: Vec<_> = changes.filter(of).map(|told| (told.change(), told.part_count)).take(2).collect();
    assert_eq!(changes, [(Change::Held, 2), (Change::LetGo, 2)]);
    evict(&daemon, &mut session, id);
    crate::moves::unpin_words(&other, theirs, 2);
    other.free(theirs);
    until_charged(&daemon, 0, 8);
    fetch_by_pin(&mut session, id, 4);
    assert_eq!(session.digest(id, 8 * MIB), digest(&content(8 * MIB, id)));
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_part_held_while_it_leaves_stays() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB"));
    let (mut session, id) = open_and_write(&daemon, 1);
    let evicting = start_move(&daemon, id, Tier::Host);
    let revoke = session.receive_revoke();
    vramctl_json(&daemon, &["alloc", "hold", &format!("a-{id}")]);
    session.unmap_parts(revoke.parts);
    assert_eq!(outcomes(&evicting.ok()), [Outcome::Held]);
    fetch_by_pin(&mut session, id, 1);
    assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, id)));
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn an_invalid_hold_is_refused() {
    let daemon = Daemon::new();
    let (mut session, id) = open_and_write(&daemon, 1);
    let ask = |id, part_indexes| {
        let target = Some(Target::AllocationId(id));
        daemon.admin.hold_parts(HoldPartsRequest { target, part_indexes, ..Default::default() }).refused()
    };
    assert_eq!(ask(id, vec![1]).is(Reason::RequestInvalid).fact("field"), "part_indexes");
    ask(id, vec![0, 0]).is(Reason::RequestInvalid);
    ask(id + 1, vec![]).is(Reason::AllocationNotFound);
    let named = Some(Target::Name("nobody/nothing".to_owned()));
    let named = HoldPartsRequest { target: named, ..Default::default() };
    daemon.admin.hold_parts(named).refused().is(Reason::AllocationNotFound);
    daemon.admin.hold_parts(HoldPartsRequest::default()).refused().is(Reason::RequestInvalid);
    assert_eq!(vramctl(&daemon, &["alloc", "hold", &format!("a-{}", id + 1)]).status.code(), Some(1));
    session.free(id);
    daemon.drains();
}
