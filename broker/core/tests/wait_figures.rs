//! Figures of waits: how they end, and which bytes of a tenant could leave without a copy.

use crate::world;

use std::time::Duration;

use crate::world::{
    Client, World,
    moving::{empty, evict, fill, tiers},
    revoking::{answer, part},
    spec,
};
use broker_core::{
    CallId, ClientFrame, ClientRequest, Notice, OperatorRequest, PartRef, Tier, Time, WaitEnd, WaiterKind,
};
use vramd_types::Bytes;

/// How waits have ended since the last call, and after how many milliseconds; those of pins without their
/// object.
fn ended(world: &mut World) -> Vec<(Option<WaiterKind>, u64, WaitEnd)> {
    let now = world.now;
    let millis = |since: Time| (now.as_micros() - since.as_micros()) / 1000;
    let end = |notice| match notice {
        Notice::WaitEnded { waiter, since, end } => Some((Some(waiter), millis(since), end)),
        Notice::PinWaited { since, end, .. } => Some((None, millis(since), end)),
        _ => None,
    };
    world.notices.drain(..).filter_map(end).collect()
}

/// A device of 8 MiB that another one fills, and a part that is elsewhere.
fn full() -> (World, Client, PartRef, Client, vramd_types::AllocationId) {
    let mut world = tiers(8, 32);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let away = part(world.allocate(a, spec(4)).expect("room"), 0);
    evict(&mut world, away);
    let theirs = fill(&mut world, b, spec(8));
    world.notices.clear();
    (world, a, away, b, theirs)
}

fn batch(world: &mut World, client: Client) -> CallId {
    let wait = Duration::from_secs(1);
    let call = world.start(client, None, ClientRequest::AllocateBatch { items: vec![spec(4)], wait });
    world.run_until_idle();
    call
}

fn waiting(world: &World) -> (usize, usize) {
    let node = world.broker.node();
    (node.parts_waiting, node.batches_waiting)
}

#[test]
fn served_waiter_reports_how_long_it_waited() {
    let (mut world, a, away, b, theirs) = full();
    world.pin_call(a, 1, &[away]);
    let call = batch(&mut world, a);
    assert_eq!((waiting(&world), ended(&mut world)), ((1, 1), vec![]));
    world.advance(500_000);
    empty(&mut world, b, theirs);
    assert_eq!(answer(&world, a, 1), Some(&None));
    assert!(world.replies[&call].is_ok());
    assert_eq!(waiting(&world), (0, 0));
    let mut ended = ended(&mut world);
    ended.sort();
    let served = |what| (what, 500, WaitEnd::Served);
    assert_eq!(ended, [served(None), served(Some(WaiterKind::Part)), served(Some(WaiterKind::Batch))]);
}

#[test]
fn unserved_waiter_reports_how_its_wait_ended() {
    let (mut world, a, away, ..) = full();
    world.pin_call(a, 1, &[away]);
    batch(&mut world, a);
    world.advance(1_000_000);
    world.run_until_idle();
    assert_eq!(ended(&mut world), [(Some(WaiterKind::Batch), 1000, WaitEnd::Refused)]);
    world.frame(a, ClientFrame::PinEnded { call: 1 });
    world.run_until_idle();
    let left = |what| (what, 1000, WaitEnd::Left);
    assert_eq!(ended(&mut world), [left(None), left(Some(WaiterKind::Part))]);

    world.pin_call(a, 2, &[away]);
    batch(&mut world, a);
    let waits: Vec<_> = world.broker.waits().into_iter().map(|wait| wait.id).collect();
    for wait in waits {
        world.operate(OperatorRequest::CancelWait { wait }).expect("it waits");
    }
    assert_eq!(waiting(&world), (0, 0));
    let cancelled = |what| (Some(what), 0, WaitEnd::Cancelled);
    assert_eq!(
        ended(&mut world),
        [cancelled(WaiterKind::Part), (None, 0, WaitEnd::Refused), cancelled(WaiterKind::Batch)]
    );
}

#[test]
fn pin_of_a_resident_part_reports_no_wait() {
    let mut world = tiers(8, 8);
    let a = world.open_pinning("a");
    let there = part(world.allocate(a, spec(4)).expect("room"), 0);
    world.operate(world::revoking::revoke(there.allocation, false)).expect("no session pins it");
    world.pin_call(a, 1, &[there]);
    world.run_until_idle();
    assert_eq!(answer(&world, a, 1), Some(&None));
    assert_eq!(ended(&mut world), []);
}

/// Of the first tenant: clean on the device, and what its parts there have below.
fn below(world: &World) -> (u64, u64) {
    let of = |tier| world.broker.quota("a", None, tier).expect("it has one").in_force.expect("it is there");
    (of(Tier::Device).clean.get() >> 20, of(Tier::Host).backing.get() >> 20)
}

#[test]
fn fetched_part_is_clean_until_a_session_reports_a_write() {
    let mut world = tiers(8, 16);
    let a = world.open_pinning("a");
    let [one, other] = [4, 2].map(|mib| part(world.allocate(a, spec(mib)).expect("room"), 0));
    let come = |world: &mut World, call| {
        world.pin_call(a, call, &[one, other]);
        world.run_until_idle();
        world.frame(a, ClientFrame::PinEnded { call });
        world.run_until_idle();
    };
    assert_eq!(below(&world), (0, 0), "nothing is below yet");
    for part in [one, other] {
        evict(&mut world, part);
    }
    assert_eq!(below(&world), (0, 0), "they are below themselves");
    come(&mut world, 1);
    assert_eq!(below(&world), (6, 6));
    world.write(a, one, 1);
    assert_eq!(below(&world), (6, 6), "no session has reported it yet");
    world.operate(world::revoking::revoke(one.allocation, false)).expect("no session pins it");
    assert_eq!(below(&world), (2, 6));
    evict(&mut world, other);
    assert_eq!(below(&world), (0, 4));
    let moved = world.notices.iter().filter_map(|notice| match notice {
        Notice::Moved { tier: Tier::Host, copied, bytes, .. } => Some((*bytes, *copied)),
        _ => None,
    });
    let mib = Bytes::mib;
    assert_eq!(moved.collect::<Vec<_>>(), [(mib(4), true), (mib(2), true), (mib(2), false)]);
    world.call(a, ClientRequest::FreeBatch(vec![one.allocation])).expect("freed");
    world.run_until_idle();
    assert_eq!(below(&world), (0, 0));
    assert_eq!(world.broker.check(), []);
}

#[test]
fn eviction_notice_names_the_parts_that_needed_the_room() {
    let mut world = tiers(8, 32);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let away = [0, 1].map(|_| part(world.allocate(a, spec(2)).expect("room"), 0));
    for part in away {
        evict(&mut world, part);
    }
    let theirs = [0, 1].map(|_| part(world.allocate(b, spec(4)).expect("room"), 0));
    world.notices.clear();
    world.pin_call(a, 1, &away);
    world.run_until_idle();
    assert_eq!(answer(&world, a, 1), Some(&None));
    let moved = world.notices.iter().filter_map(|notice| match notice {
        Notice::Moved { part, for_parts, .. } => Some((*part, &for_parts[..])),
        _ => None,
    });
    assert_eq!(moved.collect::<Vec<_>>(), [(theirs[0], &away[..]), (away[0], &[]), (away[1], &[])]);
}
