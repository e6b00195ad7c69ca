//! Discardable memory is dropped where other memory is copied out, and each session that gets it again is told.

use std::time::Duration;

use crate::world::{
    Client, World, config,
    moving::{charged, evict, mib, moved, tiers, to},
    revoking::{answer, part},
    set_quota, spec,
};
use broker_core::{
    AllocationSpec, ClientFrame, ClientRequest, CreateError, Kind, Lifetime, Notice, PartMove, PartRef,
    Refusal, StoredQuotas, Target, Tier,
};
use vramd_types::{Bytes, Reason};

fn discardable(mib: u32) -> AllocationSpec {
    AllocationSpec { discardable: true, ..spec(mib) }
}

fn one(world: &mut World, client: Client, spec: AllocationSpec, content: u64) -> PartRef {
    let part = part(world.allocate(client, spec).expect("room"), 0);
    world.write(client, part, content);
    part
}

fn is_dropped(world: &World, part: PartRef) -> bool {
    let view = world.broker.show(&Target::Id(part.allocation)).expect("it is there");
    assert_eq!(view.charged.is_zero(), view.parts[0].dropped, "a dropped part is not charged");
    view.parts[0].dropped
}

/// The drop count that its session was told with the last packet.
fn pinned(world: &mut World, client: Client, call: u64, part: PartRef) -> u64 {
    world.pin_call(client, call, &[part]);
    world.run_until_idle();
    assert_eq!(answer(world, client, call), Some(&None));
    world.frame(client, ClientFrame::PinEnded { call });
    world.drop_counts[&part]
}

#[test]
fn discardable_part_is_dropped_and_its_next_mapper_is_told() {
    let mut world = tiers(8, 64);
    let a = world.open_pinning("a");
    let part = one(&mut world, a, discardable(4), 7);
    assert_eq!((charged(&world), world.drop_counts[&part]), (mib(4, 0), 0), "it needs nothing below");
    for round in 1..=3 {
        // This would fail the first copy.
        world.fail_copies.push_back(Some("nothing is to be copied".to_owned()));
        assert!(matches!(evict(&mut world, part), PartMove::Moved));
        assert!(is_dropped(&world, part));
        assert_eq!(charged(&world), mib(0, 0));
        assert_eq!(pinned(&mut world, a, round, part), round);
        assert!(!is_dropped(&world, part));
        assert_eq!((charged(&world), world.read(a, part)), (mib(4, 0), 0));
        world.write(a, part, 8);
    }
    let dropped = world.notices.iter().filter(|it| matches!(it, Notice::Dropped { .. })).count();
    assert_eq!((dropped, world.fail_copies.len()), (3, 3));
    assert_eq!((pinned(&mut world, a, 4, part), world.read(a, part)), (3, 8), "it was not lost again");
}

#[test]
fn discardable_part_leaves_though_host_memory_is_full() {
    let mut world = tiers(8, 4);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let kept = one(&mut world, a, spec(4), 1);
    let scratch = one(&mut world, a, discardable(4), 2);
    world.pin(a, kept);
    let theirs = one(&mut world, b, discardable(4), 3);
    assert!(is_dropped(&world, scratch));
    assert_eq!(charged(&world), mib(8, 4));
    // In turns: each drops the other's.
    assert_eq!(pinned(&mut world, a, 1, scratch), 1);
    assert!(is_dropped(&world, theirs));
    assert_eq!(pinned(&mut world, b, 1, theirs), 1);
    assert!(is_dropped(&world, scratch));
    assert_eq!(world.read(a, kept), 1);
}

#[test]
fn drop_notice_names_the_parts_that_needed_the_room() {
    let mut world = tiers(8, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let wanted = [1, 2].map(|content| one(&mut world, a, spec(2), content));
    for part in wanted {
        evict(&mut world, part);
    }
    let scratch = [3, 4].map(|content| one(&mut world, b, discardable(4), content));
    world.pin_call(a, 1, &wanted);
    world.run_until_idle();
    assert_eq!(answer(&world, a, 1), Some(&None));
    evict(&mut world, scratch[1]);
    let dropped = world.notices.iter().filter_map(|notice| match notice {
        Notice::Dropped { part, for_parts, .. } => Some((*part, &for_parts[..])),
        _ => None,
    });
    assert_eq!(dropped.collect::<Vec<_>>(), [(scratch[0], &wanted[..]), (scratch[1], &[])]);
}

#[test]
fn pin_during_a_drop_keeps_the_part_or_learns_of_the_drop() {
    for steps in 0..6 {
        let mut world = tiers(8, 64);
        let a = world.open_pinning("a");
        let part = one(&mut world, a, discardable(4), 7);
        let call = world.start_operator(None, to(part.allocation, Tier::Host));
        for _ in 0..steps {
            if !world.work_once() {
                world.answer_once(a.channel);
            }
        }
        let losses = pinned(&mut world, a, 1, part);
        let has = world.read(a, part);
        assert_eq!(has, if losses == 0 { 7 } else { 0 }, "after {steps} steps: {losses} losses");
        let reply = world.replies.remove(&call).expect("an answer");
        assert_eq!(matches!(moved(reply), PartMove::Moved), losses == 1, "after {steps} steps");
        assert_eq!(charged(&world), mib(4, 0), "after {steps} steps");
    }
}

#[test]
fn failed_recreation_of_a_dropped_part_is_tried_again() {
    let mut world = tiers(8, 64);
    let a = world.open_pinning("a");
    let part = one(&mut world, a, discardable(4), 7);
    evict(&mut world, part);
    world.fail_creates.push_back(Some(CreateError::Failed("no".to_owned())));
    world.pin_call(a, 1, &[part]);
    world.run_until_idle();
    assert!(matches!(answer(&world, a, 1), Some(Some(Refusal::DriverFailed { .. }))));
    world.frame(a, ClientFrame::PinEnded { call: 1 });
    assert!(is_dropped(&world, part));
    assert_eq!((pinned(&mut world, a, 2, part), charged(&world)), (1, mib(4, 0)));
}

#[test]
fn freed_dropped_part_leaves_nothing() {
    // At every step of its way back, too.
    for steps in 0..5 {
        let mut world = tiers(8, 64);
        let a = world.open_pinning("a");
        let part = one(&mut world, a, discardable(4), 7);
        evict(&mut world, part);
        if steps > 0 {
            world.pin_call(a, 1, &[part]);
        }
        for _ in 1..steps {
            if !world.work_once() {
                world.answer_once(a.channel);
            }
        }
        world.call(a, ClientRequest::FreeBatch(vec![part.allocation])).expect("freed");
        assert_eq!((charged(&world), world.broker.node().allocations), (mib(0, 0), 0), "after {steps} steps");
    }
}

/// Found by the simulator: a fetched part left at once for a later waiter, and so for ever.
#[test]
fn fetched_part_is_not_evicted_for_a_later_waiter() {
    let mut world = tiers(4, 64);
    let clients = [(); 3].map(|()| world.open_pinning("a"));
    let parts = clients.map(|client| one(&mut world, client, discardable(4), 7));
    assert_eq!(parts.map(|part| is_dropped(&world, part)), [true, true, false]);
    world.pin(clients[2], parts[2]);
    world.harvest(clients[2], parts[2]);
    for at in [0, 1] {
        world.pin_call(clients[at], 1, &[parts[at]]);
        world.run_until_idle();
        assert_eq!(answer(&world, clients[at], 1), None);
    }
    world.unpin(clients[2], parts[2]);
    world.harvest(clients[2], parts[2]);
    world.run_until_idle();
    assert_eq!([0, 1].map(|at| answer(&world, clients[at], 1)), [Some(&None), None]);
    world.frame(clients[0], ClientFrame::PinEnded { call: 1 });
    world.harvest(clients[0], parts[0]);
    world.run_until_idle();
    assert_eq!(answer(&world, clients[1], 1), Some(&None));
}

/// Found by the simulator: a part fetched by right of a guarantee left at once for an earlier batch that it did
/// not help. The next one got its memory, and so for ever.
#[test]
fn fetched_part_is_sent_before_it_leaves_for_an_earlier_waiter() {
    let mut config = config(&[Bytes::mib(16)]);
    config.devices[0].host = Bytes::mib(64);
    config.limits.cached_bytes_per_tenant_max = Bytes::mib(64);
    let mut world = World::with(config, StoredQuotas::default());
    world.operate(set_quota("a", 4, 16)).expect("there is room for it");
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let used = [3, 4].map(|content| one(&mut world, b, spec(4), content));
    world.pin_call(b, 1, &used);
    let lost = [1, 2].map(|content| one(&mut world, a, discardable(4), content));
    for part in lost {
        evict(&mut world, part);
    }
    let kept = world.allocate(a, spec(4)).expect("room");
    world.call(a, ClientRequest::FreeBatch(vec![kept])).expect("freed");
    assert_eq!(world.broker.devices()[0].cached, Bytes::mib(4));
    // It would reuse the cached extent, and finds room for one part of the two others.
    let items = vec![AllocationSpec { uninitialized: true, ..spec(12) }];
    let batch = world.start(a, None, ClientRequest::AllocateBatch { items, wait: Duration::from_secs(60) });
    world.pin_call(a, 1, &lost);
    world.run_until_idle();
    assert!(answer(&world, a, 1).is_none() && !world.replies.contains_key(&batch));
    assert_eq!(lost.map(|part| world.maps(a, part)), [true, false], "one of them is guaranteed");
}

#[test]
fn operator_moves_a_discardable_part_out_and_back() {
    let mut config = config(&[Bytes::mib(8)]);
    config.devices[0].host = Bytes::mib(64);
    config.limits.cached_bytes_per_tenant_max = Bytes::mib(8);
    let mut world = World::with(config, StoredQuotas::default());
    let a = world.open_pinning("a");
    let part = part(world.allocate(a, AllocationSpec { unpinned: true, ..discardable(4) }).expect("room"), 0);
    evict(&mut world, part);
    assert!(matches!(moved(world.operate(to(part.allocation, Tier::Device))), PartMove::Moved));
    assert!(!is_dropped(&world, part));
    assert!(matches!(evict(&mut world, part), PartMove::Moved));
    assert_eq!(pinned(&mut world, a, 2, part), 2, "no session had it in between");
    // Found by the simulator: it is fetched at once into memory that is cached for the tenant.
    let freed = world.allocate(a, spec(4)).expect("room");
    evict(&mut world, part);
    world.call(a, ClientRequest::FreeBatch(vec![freed])).expect("freed");
    assert_eq!(world.broker.devices()[0].cached, Bytes::mib(4));
    assert!(matches!(moved(world.operate(to(part.allocation, Tier::Device))), PartMove::Moved));
}

#[test]
fn discardable_is_refused_for_memory_that_is_sealed_or_never_leaves() {
    let mut config = config(&[Bytes::mib(16)]);
    config.devices[0].makes_fixed = true;
    config.devices[0].host = Bytes::mib(16);
    let mut world = World::with(config, StoredQuotas::default());
    let a = world.open_pinning("a");
    let named = || AllocationSpec { name: Some("x".to_owned()), ..discardable(4) };
    for wrong in [
        AllocationSpec { lifetime: Lifetime::Persistent, ..named() },
        AllocationSpec { replace: true, ..named() },
        AllocationSpec { readers: vec!["b".to_owned()], ..discardable(4) },
        AllocationSpec { kind: Kind::Fixed, ..discardable(4) },
    ] {
        let refused = world.allocate(a, wrong).expect_err("it makes no sense");
        assert!(matches!(refused, Refusal::RequestInvalid { field: "discardable", .. }), "{refused}");
    }
    let id = world.allocate(a, named()).expect("room");
    let refused = world.call(a, ClientRequest::Seal(id)).expect_err("it may be lost");
    assert_eq!(refused.reason(), Reason::KindUnsupported);
}
