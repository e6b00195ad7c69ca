//! Parts that leave their device and come back, with their content.

use crate::world;

use crate::world::{
    World, config,
    moving::{charged, empty, evict, fill, mib, moved, one_written, tier, tiers, to},
    persistent,
    revoking::{answer, part},
    spec,
};
use broker_core::{
    AllocationSpec, ClientFrame, ClientRequest, Event, Kind, PartMove, Refusal, StoredQuotas, Target, Tier,
};
use vramd_types::Bytes;

#[test]
fn unpinned_part_leaves_and_comes_back_with_its_content() {
    let (mut world, client, part) = one_written();
    assert_eq!((charged(&world), tier(&world, part)), (mib(4, 4), Tier::Device));
    assert!(matches!(evict(&mut world, part), PartMove::Moved));
    assert!(!world.maps(client, part));
    assert_eq!((charged(&world), tier(&world, part)), (mib(0, 4), Tier::Host));
    assert!(matches!(evict(&mut world, part), PartMove::Moved), "it is there");

    world.pin_call(client, 1, &[part]);
    assert_eq!(answer(&world, client, 1), None);
    world.run_until_idle();
    assert_eq!(answer(&world, client, 1), Some(&None));
    assert_eq!((world.read(client, part), charged(&world), tier(&world, part)), (7, mib(4, 4), Tier::Device));
}

#[test]
fn backing_is_not_charged_to_its_allocation_twice() {
    let (mut world, client, part) = one_written();
    let charged = |world: &World| {
        let view = world.broker.show(&Target::Id(part.allocation)).expect("it is there");
        (tier(world, part) == Tier::Device).then_some(view.charged)
    };
    for round in 1..=2 {
        world.start_operator(None, to(part.allocation, Tier::Host));
        let mut steps = 0;
        while let Some(charged) = charged(&world) {
            assert_eq!(charged, Bytes::mib(4), "after {steps} steps out, round {round}");
            if !world.work_once() {
                world.answer_once(client.channel);
            }
            steps += 1;
        }
        world.pin_call(client, round, &[part]);
        world.run_until_idle();
        assert_eq!(charged(&world), Some(Bytes::mib(4)), "it is back, round {round}");
        world.frame(client, ClientFrame::PinEnded { call: round });
    }
}

#[test]
fn operator_fetches_a_part_that_no_session_wants() {
    let (mut world, client, part) = one_written();
    evict(&mut world, part);
    assert!(matches!(moved(world.operate(to(part.allocation, Tier::Device))), PartMove::Moved));
    assert_eq!((charged(&world), tier(&world, part)), (mib(4, 4), Tier::Device));
    assert!(!world.maps(client, part), "no session pinned it");
    world.pin_call(client, 1, &[part]);
    world.run_until_idle();
    assert_eq!(world.read(client, part), 7);
}

#[test]
fn pinned_part_stays_and_no_extent_is_created_for_it() {
    let (mut world, client, part) = one_written();
    world.pin(client, part);
    assert!(matches!(evict(&mut world, part), PartMove::Pinned { by } if by == [client.session]));
    assert_eq!((charged(&world), world.read(client, part)), (mib(4, 4), 7));
    world.unpin(client, part);
    let silent = world.open_pinning("b");
    let theirs = world::revoking::part(world.allocate(silent, spec(4)).expect("room"), 0);
    world.event(Event::ChannelEnded { channel: silent.channel });
    assert!(matches!(evict(&mut world, theirs), PartMove::Silent { .. }));
    assert_eq!(charged(&world), mib(8, 8));
}

#[test]
fn pin_during_an_eviction_has_the_part_back_at_once() {
    // At every step of the way.
    for steps in 0..6 {
        let (mut world, client, part) = one_written();
        let call = world.start_operator(None, to(part.allocation, Tier::Host));
        for _ in 0..steps {
            if !world.work_once() {
                world.answer_once(client.channel);
            }
        }
        world.pin_call(client, 1, &[part]);
        world.run_until_idle();
        assert_eq!(answer(&world, client, 1), Some(&None), "after {steps} steps");
        assert_eq!((world.read(client, part), charged(&world)), (7, mib(4, 4)), "after {steps} steps");
        assert!(world.replies.contains_key(&call), "after {steps} steps");
    }
}

#[test]
fn failed_copy_leaves_the_source() {
    let (mut world, client, part) = one_written();
    world.fail_copies.push_back(Some("a cable was pulled".to_owned()));
    assert!(
        matches!(evict(&mut world, part), PartMove::Failed { problem } if problem == "a cable was pulled")
    );
    assert_eq!((charged(&world), tier(&world, part)), (mib(4, 4), Tier::Device));
    evict(&mut world, part);
    world.fail_copies.push_back(Some("again".to_owned()));
    world.pin_call(client, 1, &[part]);
    world.run_until_idle();
    assert!(matches!(answer(&world, client, 1), Some(Some(Refusal::DriverFailed { .. }))));
    assert_eq!((charged(&world), tier(&world, part)), (mib(0, 4), Tier::Host));
    world.frame(client, ClientFrame::PinEnded { call: 1 });
    world.pin_call(client, 2, &[part]);
    world.run_until_idle();
    assert_eq!(world.read(client, part), 7);
}

#[test]
fn part_freed_during_its_move_leaves_nothing() {
    for towards in [Tier::Host, Tier::Device] {
        for steps in 0..7 {
            let (mut world, client, part) = one_written();
            if towards == Tier::Device {
                evict(&mut world, part);
            }
            let call = world.start_operator(None, to(part.allocation, towards));
            for _ in 0..steps {
                if !world.work_once() {
                    world.answer_once(client.channel);
                }
            }
            world.call(client, ClientRequest::FreeBatch(vec![part.allocation])).expect("freed");
            world.run_until_idle();
            assert_eq!(charged(&world), mib(0, 0), "to {towards:?} after {steps} steps");
            assert!(world.replies.contains_key(&call), "to {towards:?} after {steps} steps");
        }
    }
}

#[test]
fn session_that_ends_during_a_move_leaves_nothing() {
    // Out, in, and in for itself.
    for (towards, by_pin) in [(Tier::Host, false), (Tier::Device, false), (Tier::Device, true)] {
        for steps in 0..7 {
            let (mut world, client, part) = one_written();
            if towards == Tier::Device {
                evict(&mut world, part);
            }
            let call = (!by_pin).then(|| world.start_operator(None, to(part.allocation, towards)));
            if by_pin {
                world.pin_call(client, 1, &[part]);
            }
            for _ in 0..steps {
                if !world.work_once() {
                    world.answer_once(client.channel);
                }
            }
            world.end_process(client);
            world.run_until_idle();
            assert_eq!(charged(&world), mib(0, 0), "to {towards:?} after {steps} steps");
            assert!(call.is_none_or(|call| world.replies.contains_key(&call)), "{towards:?} after {steps}");
        }
    }
}

#[test]
fn full_tier_refuses_a_move() {
    let mut world = tiers(16, 4);
    let client = world.open_pinning("a");
    let parts: Vec<_> = (0..2).map(|_| part(world.allocate(client, spec(4)).expect("room"), 0)).collect();
    assert!(matches!(evict(&mut world, parts[0]), PartMove::Moved));
    let refused = evict(&mut world, parts[1]);
    assert!(
        matches!(&refused, PartMove::Refused { refusal }
            if matches!(**refusal, Refusal::QuotaLimit { tier: Tier::Host, .. })),
        "{refused:?}"
    );
    assert_eq!((charged(&world), world.maps(client, parts[1])), (mib(4, 4), true));
    let none = world.operate(to(parts[0].allocation, Tier::Disk));
    assert_eq!(none.unwrap_err(), Refusal::TierUnsupported { tier: Tier::Disk });
    let mut world = World::new(8);
    let client = world.open_pinning("a");
    let id = world.allocate(client, spec(4)).expect("room");
    let none = world.operate(to(id, Tier::Host));
    assert_eq!(none.unwrap_err(), Refusal::TierUnsupported { tier: Tier::Host });
}

#[test]
fn fixed_memory_stays_where_it_is() {
    let mut config = config(&[Bytes::mib(8)]);
    (config.devices[0].host, config.devices[0].makes_fixed) = (Bytes::mib(8), true);
    let mut world = World::with(config, StoredQuotas::default());
    let client = world.open_pinning("a");
    let id = world.allocate(client, AllocationSpec { kind: Kind::Fixed, ..spec(4) }).expect("room");
    for tier in [Tier::Host, Tier::Device] {
        let refused = world.operate(to(id, tier)).expect_err("it never moves");
        assert_eq!(refused, Refusal::KindUnsupported { kind: "movable fixed" });
    }
    assert_eq!(charged(&world), mib(4, 0));
}

#[test]
fn waiters_without_room_wait_in_order_of_arrival() {
    let mut world = tiers(8, 16);
    let clients: Vec<_> = (0..3).map(|_| world.open_pinning("a")).collect();
    let mut parts = Vec::new();
    for client in &clients {
        let part = part(world.allocate(*client, spec(4)).expect("room"), 0);
        world.write(*client, part, parts.len() as u64 + 1);
        evict(&mut world, part);
        parts.push(part);
    }
    let filler: Vec<_> = (0..2).map(|_| fill(&mut world, clients[0], spec(4))).collect();
    for (at, client) in clients.iter().enumerate() {
        world.pin_call(*client, 1, &[parts[at]]);
    }
    world.run_until_idle();
    let answered =
        |world: &World| clients.iter().map(|client| answer(world, *client, 1).is_some()).collect::<Vec<_>>();
    assert_eq!(answered(&world), [false, false, false]);
    empty(&mut world, clients[0], filler[0]);
    assert_eq!(answered(&world), [true, false, false]);
    // A waiter that gives up loses its position.
    world.frame(clients[1], ClientFrame::PinEnded { call: 1 });
    empty(&mut world, clients[0], filler[1]);
    assert_eq!(answered(&world), [true, false, true]);
    assert_eq!((world.read(clients[2], parts[2]), charged(&world)), (3, mib(8, 12)));
}

#[test]
fn sealed_memory_is_hashed_where_it_lies_and_fetched_for_an_attach() {
    let (mut world, client, part) = one_written();
    evict(&mut world, part);
    world.call(client, ClientRequest::Seal(part.allocation)).expect("sealed");
    world.run_until_idle();
    assert_eq!(tier(&world, part), Tier::Host, "no session asked for it");
    world.pin_call(client, 1, &[part]);
    world.frame(client, ClientFrame::PinEnded { call: 1 });
    world.run_until_idle();
    let reader = world.open_pinning("a");
    evict(&mut world, part);
    assert_eq!(tier(&world, part), Tier::Host);
    world.call(reader, ClientRequest::Attach(Target::Id(part.allocation))).expect("attached");
    world.run_until_idle();
    assert_eq!((world.read(reader, part), tier(&world, part)), (7, Tier::Device));
    assert!(!world.maps(client, part), "it did not ask");
}

#[test]
fn persistent_memory_outlives_its_session_in_the_host() {
    let mut world = tiers(8, 8);
    let client = world.open_pinning("a");
    let id = world.sealed(client, persistent(4, "weights"));
    let part = part(id, 0);
    evict(&mut world, part);
    world.end_process(client);
    assert_eq!(tier(&world, part), Tier::Host);
    let reader = world.open_pinning("a");
    world.call(reader, ClientRequest::Attach(Target::Name("weights".to_owned()))).expect("attached");
    world.run_until_idle();
    assert!(world.maps(reader, part));
}

#[test]
fn free_during_a_fetch_is_answered_though_nothing_moves() {
    let (mut world, client, part) = one_written();
    evict(&mut world, part);
    let source = world.contents.keys().next().copied().expect("it was written");
    world.still_open.insert(source);
    world.fail_creates.push_back(Some(broker_core::CreateError::OutOfMemory));
    world.pin_call(client, 1, &[part]);
    let free = world.start(client, None, ClientRequest::FreeBatch(vec![part.allocation]));
    // The source is released first, and not given back; then the destination could not be made.
    world.work.rotate_left(1);
    world.run_until_idle();
    assert!(matches!(&world.replies[&free], Ok(broker_core::Reply::Released(items)) if items[0].1.is_ok()));
}
