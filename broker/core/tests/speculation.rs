//! Parts that are brought unasked, by the order of a session's pins.

use crate::world::{
    Client, World, config,
    moving::{parts, tiers, to},
    revoking::answer,
    spec,
};
use broker_core::{
    Advice, AllocationSpec, Cause, ClientFrame, ClientRequest, Notice, PartRef, Pattern, PrefetchSpec,
    Retention, SpeculationEnd, StoredQuotas, Target, Tier,
};
use vramd_types::{AllocationId, Bytes};

/// An allocation of so many parts of 2 MiB in host memory.
fn below(world: &mut World, client: Client, count: u32) -> Vec<PartRef> {
    let spec = AllocationSpec { part_size: Some(Bytes::mib(2)), unpinned: true, ..spec(2 * count) };
    let id = world.allocate(client, spec).expect("room");
    world.operate(to(id, Tier::Host)).expect("it goes");
    parts(world, id)
}

/// Pins a part by a call that ends at once.
fn use_once(world: &mut World, client: Client, call: u64, part: PartRef) {
    world.pin_call(client, call, &[part]);
    world.run_until_idle();
    assert_eq!(answer(world, client, call), Some(&None));
    world.frame(client, ClientFrame::PinEnded { call });
    world.run_until_idle();
}

/// The parts that have come unasked, in order.
fn brought(world: &World) -> Vec<u32> {
    let arrived = world.notices.iter().filter_map(|notice| match notice {
        Notice::Moved { part, tier: Tier::Device, cause: Cause::Speculation, .. } => Some(part.part.0),
        _ => None,
    });
    arrived.collect()
}

fn ends(world: &World, of: SpeculationEnd) -> usize {
    let ends = world
        .notices
        .iter()
        .filter(|notice| matches!(notice, Notice::SpeculationEnded { end, .. } if *end == of));
    ends.count()
}

fn is_off(world: &World, id: AllocationId) -> bool {
    world.broker.show(&Target::Id(id)).expect("it is there").speculation.is_off
}

#[test]
fn parts_that_follow_in_the_order_of_the_pins_are_brought() {
    let mut world = tiers(64, 64);
    let client = world.open_pinning("a");
    let all = below(&mut world, client, 12);
    for (call, part) in (1..).zip(&all[..3]) {
        use_once(&mut world, client, call, *part);
    }
    assert_eq!(brought(&world), Vec::<u32>::new(), "two equal strides may be chance");
    use_once(&mut world, client, 4, all[3]);
    assert_eq!(brought(&world), [4]);
    for (call, part) in (5..).zip(&all[4..]) {
        use_once(&mut world, client, call, *part);
    }
    assert_eq!(brought(&world), (4..12).collect::<Vec<_>>());
    assert_eq!((ends(&world, SpeculationEnd::Used), ends(&world, SpeculationEnd::Wasted)), (8, 0));
}

#[test]
fn order_of_one_allocation_says_nothing_about_another() {
    let mut world = tiers(64, 64);
    let client = world.open_pinning("a");
    let [one, other] = [8, 8].map(|count| below(&mut world, client, count));
    for (call, part) in (1..).step_by(2).zip(&one[..4]) {
        use_once(&mut world, client, call, *part);
        use_once(&mut world, client, call + 1, other[0]);
    }
    let arrived = world.notices.iter().filter(|notice| {
        matches!(notice, Notice::Moved { part, cause: Cause::Speculation, .. } if part.allocation == other[0].allocation)
    });
    assert_eq!(arrived.count(), 0);
    assert_eq!(brought(&world), [4]);
}

#[test]
fn nothing_is_brought_where_room_or_the_link_is_wanted() {
    let mut world = tiers(16, 64);
    let client = world.open_pinning("a");
    let all = below(&mut world, client, 12);
    // The device is above its normal level with these.
    let held = world.allocate(client, spec(8)).expect("room");
    for (call, part) in (1..=4).zip(&all) {
        use_once(&mut world, client, call, *part);
    }
    assert_eq!(brought(&world), Vec::<u32>::new(), "the device is nearly full");
    world.call(client, ClientRequest::FreeBatch(vec![held])).expect("freed");
    world.run_until_idle();
    // A request for the rest is on its way: it goes first.
    let spec = PrefetchSpec { parts: all[8..].to_vec(), whole: false, within: None, priority: 0 };
    world.frame(client, ClientFrame::Prefetch { number: 1, spec });
    world.pin_call(client, 5, &all[4..5]);
    world.run_until_idle();
    assert_eq!(brought(&world), Vec::<u32>::new());
}

#[test]
fn waste_ends_it_until_the_owner_advises_a_pattern() {
    let mut world = tiers(128, 128);
    let client = world.open_pinning("a");
    let all = below(&mut world, client, 48);
    let id = all[0].allocation;
    let mut calls = 1..;
    let mut walk = |world: &mut World, parts: &[u32]| {
        for index in parts {
            use_once(world, client, calls.next().unwrap(), all[*index as usize]);
        }
    };
    // Four in a row, then elsewhere: what was brought last is wasted each time.
    for begin in [0, 30, 6, 36, 12, 42, 18, 24] {
        assert!(!is_off(&world, id), "after {begin}");
        walk(&mut world, &[begin, begin + 1, begin + 2, begin + 3]);
    }
    walk(&mut world, &[0]);
    assert!(is_off(&world, id), "{} are wasted", ends(&world, SpeculationEnd::Wasted));
    let so_far = brought(&world).len();
    world.operate(to(id, Tier::Host)).expect("it goes");
    walk(&mut world, &[0, 1, 2, 3, 4, 5]);
    assert_eq!(brought(&world).len(), so_far);

    let change = Retention::Pattern(Some(Pattern::Loop));
    world
        .call(client, ClientRequest::Advise(id, Advice::Retain { parts: None, change }))
        .expect("it is its owner's");
    walk(&mut world, &[6]);
    assert_eq!(brought(&world).len(), so_far + 1, "{:?}", brought(&world));
}

#[test]
fn zero_bytes_mean_never() {
    let mut config = config(&[Bytes::mib(64)]);
    config.devices[0].host = Bytes::mib(64);
    config.limits.speculation_bytes_max = Bytes::ZERO;
    let mut world = World::with(config, StoredQuotas::default());
    let client = world.open_pinning("a");
    let all = below(&mut world, client, 8);
    for (call, part) in (1..).zip(&all) {
        use_once(&mut world, client, call, *part);
    }
    assert_eq!(brought(&world), Vec::<u32>::new());
}

#[test]
fn several_steps_come_where_a_copy_takes_longer_than_a_step() {
    let mut world = tiers(128, 128);
    let client = world.open_pinning("a");
    // No client has ever made a request: a pin shows how slow the link is.
    let slow = below(&mut world, client, 1);
    world.copy_time = 20_000;
    use_once(&mut world, client, 1, slow[0]);
    world.copy_time = 0;
    let all = below(&mut world, client, 12);
    for (call, part) in (2..).zip(&all[..4]) {
        world.advance(1_000);
        use_once(&mut world, client, call, *part);
    }
    assert!(brought(&world).len() >= 3, "a copy takes some 4 ms, and a step 1 ms: {:?}", brought(&world));
}

#[test]
fn brought_part_does_not_raise_the_level() {
    let mut world = tiers(100, 100);
    let client = world.open_pinning("a");
    let all = below(&mut world, client, 12);
    world.allocate(client, spec(70)).expect("room");
    for (call, part) in (1..=4).zip(&all) {
        use_once(&mut world, client, call, *part);
    }
    // At 78 MiB it is normal, and at 80 MiB elevated.
    assert_eq!(brought(&world), Vec::<u32>::new());
}

#[test]
fn waste_for_one_tenant_ends_nothing_for_another() {
    let mut world = tiers(256, 256);
    let owner = world.open_pinning("a");
    let mut spec = AllocationSpec { part_size: Some(Bytes::mib(2)), unpinned: true, ..spec(96) };
    spec.readers = vec!["b".to_owned()];
    let id = world.sealed(owner, spec);
    let all = parts(&world, id);
    let reader = world.open_pinning("b");
    world.call(reader, ClientRequest::Attach(Target::Id(id))).expect("a reader");
    world.operate(to(id, Tier::Host)).expect("it goes");
    let mut calls = 1..;
    let mut walk = |world: &mut World, client, indices: std::ops::Range<usize>| {
        for part in &all[indices] {
            use_once(world, client, calls.next().unwrap(), *part);
        }
    };
    for begin in [0, 30, 6, 36, 12, 42, 18, 24] {
        walk(&mut world, reader, begin..begin + 4);
    }
    walk(&mut world, reader, 0..1);
    assert!(is_off(&world, id), "{} are wasted", ends(&world, SpeculationEnd::Wasted));
    world.operate(to(id, Tier::Host)).expect("it goes");
    let before = brought(&world).len();
    walk(&mut world, reader, 0..6);
    assert_eq!(brought(&world).len(), before, "it is off for the reader");
    world.operate(to(id, Tier::Host)).expect("it goes");
    walk(&mut world, owner, 0..5);
    assert_eq!(brought(&world)[before..], [4, 5]);
}
