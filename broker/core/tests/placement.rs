//! Parts in host memory that a session pins: they move, or are read where they lie.

use crate::world::{
    Client, World,
    moving::{parts, tiers, to},
    revoking::answer,
    spec,
};
use broker_core::{
    Advice, AllocationSpec, Cause, ClientFrame, ClientRequest, Notice, OperatorRequest, PartRange, PartRef,
    Pattern, PlacedBy, PlacementSum, PrefetchSpec, Retention, SequenceSpec, Target, Tier,
};
use vramd_types::{Bytes, PartIndex};

/// Two parts of 4 MiB that one allocation has, with a pattern for both.
fn with_pattern(pattern: Pattern) -> (World, Client, [PartRef; 2]) {
    let mut world = tiers(32, 32);
    world.copy_time = 5_000;
    let client = world.open_pinning("a");
    let spec = AllocationSpec { part_size: Some(Bytes::mib(4)), unpinned: true, ..spec(8) };
    let id = world.sealed(client, spec);
    let change = Retention::Pattern(Some(pattern));
    world
        .call(client, ClientRequest::Advise(id, Advice::Retain { parts: None, change }))
        .expect("it is its owner's");
    let parts = parts(&world, id);
    (world, client, [parts[0], parts[1]])
}

fn below(world: &mut World, part: PartRef) {
    world.operate(to(part.allocation, Tier::Host)).expect("it goes");
}

/// Pins the part by a call, uses it so often, and leaves it.
fn use_for(world: &mut World, client: Client, call: u64, (part, uses): (PartRef, usize)) {
    world.pin_call(client, call, &[part]);
    world.run_until_idle();
    assert_eq!(answer(world, client, call), Some(&None));
    world.frame(client, ClientFrame::PinEnded { call });
    for _ in 0..uses {
        use_mapped(world, client, part);
        world.advance(1_000);
    }
    world.run_until_idle();
}

/// Pins the part by its word, and unpins it. The daemon sees both.
fn use_mapped(world: &mut World, client: Client, part: PartRef) {
    world.pin(client, part);
    world.harvest(client, part);
    world.unpin(client, part);
    world.harvest(client, part);
}

fn tier(world: &World, part: PartRef) -> Tier {
    world.broker.show(&Target::Id(part.allocation)).expect("it is there").parts[part.part.0 as usize].tier
}

fn chosen(world: &World) -> Vec<(PlacementSum, bool)> {
    let chosen = world.notices.iter().filter_map(|notice| match notice {
        Notice::PlacementChosen { sum, in_place, .. } => Some((*sum, *in_place)),
        _ => None,
    });
    chosen.collect()
}

/// A part that the daemon has chosen to be read in host memory, mapped there and unpinned, and another part beside it.
fn in_place() -> (World, Client, [PartRef; 2]) {
    let (mut world, client, [part, other]) = with_pattern(Pattern::Sparse);
    below(&mut world, part);
    use_for(&mut world, client, 1, (part, 1));
    below(&mut world, part);
    use_for(&mut world, client, 2, (part, 1));
    assert!(world.maps(client, part) && tier(&world, part) == Tier::Host, "{:?}", chosen(&world));
    (world, client, [part, other])
}

fn advise(world: &mut World, client: Client, part: PartRef, advice: Advice) {
    world.call(client, ClientRequest::Advise(part.allocation, advice)).expect("it is its owner's");
    world.run_until_idle();
}

fn retain(change: Retention) -> Advice {
    Advice::Retain { parts: None, change }
}

#[test]
fn part_without_a_pattern_moves_and_part_that_is_used_once_stays() {
    let (mut world, client, [part, _]) = with_pattern(Pattern::Random);
    below(&mut world, part);
    use_for(&mut world, client, 1, (part, 1));
    assert_eq!(tier(&world, part), Tier::Device, "nothing is known yet");
    assert_eq!(chosen(&world), []);
    below(&mut world, part);
    use_for(&mut world, client, 2, (part, 1));
    assert_eq!(tier(&world, part), Tier::Host);
    let [(sum, true)] = chosen(&world)[..] else { panic!("{:?}", chosen(&world)) };
    assert!(!sum.pays() && sum.expected_uses == 100, "{sum:?}");
    let view = world.broker.show(&Target::Id(part.allocation)).expect("it is there");
    let placement = view.parts[0].placement.expect("it has moved");
    assert_eq!((placement.by, placement.sum), (PlacedBy::ReadInPlace, Some(sum)));

    let change = Retention::Pattern(None);
    let advice = Advice::Retain { parts: None, change };
    world.call(client, ClientRequest::Advise(part.allocation, advice)).expect("it is its owner's");
    world.run_until_idle();
    assert!(!world.maps(client, part), "it is unmapped there");
    use_for(&mut world, client, 3, (part, 1));
    assert_eq!(tier(&world, part), Tier::Device);
}

#[test]
fn part_moves_with_the_next_pin_once_it_is_used_often() {
    let (mut world, client, [part, _]) = with_pattern(Pattern::Sequential);
    // The first copy shows how fast the link is, and one use.
    below(&mut world, part);
    use_for(&mut world, client, 1, (part, 1));
    below(&mut world, part);
    world.advance(1_000_000);
    use_for(&mut world, client, 2, (part, 1));
    assert_eq!(tier(&world, part), Tier::Host);
    for _ in 0..20 {
        use_mapped(&mut world, client, part);
        world.run_until_idle();
        if !world.maps(client, part) {
            break;
        }
    }
    assert!(!world.maps(client, part), "it is used so often that it is to move");
    use_for(&mut world, client, 3, (part, 1));
    assert_eq!(tier(&world, part), Tier::Device);
    let Some((sum, false)) = chosen(&world).last().copied() else { panic!("{:?}", chosen(&world)) };
    let moved = world.notices.iter().rev().find_map(|notice| match notice {
        Notice::Moved { tier: Tier::Device, cause: Cause::Demand, sum, .. } => Some(*sum),
        _ => None,
    });
    assert_eq!(moved, Some(Some(sum)), "the move says why");
}

#[test]
fn requested_and_held_parts_come_whatever_the_sum() {
    let (mut world, client, [part, other]) = with_pattern(Pattern::Sparse);
    below(&mut world, part);
    use_for(&mut world, client, 1, (part, 1));
    below(&mut world, part);
    let spec = broker_core::PrefetchSpec { parts: vec![other], whole: true, within: None, priority: 0 };
    world.frame(client, ClientFrame::Prefetch { number: 1, spec });
    use_for(&mut world, client, 2, (other, 1));
    assert_eq!(tier(&world, other), Tier::Device);
    use_for(&mut world, client, 3, (part, 1));
    assert_eq!(tier(&world, part), Tier::Host);
}

#[test]
fn part_that_is_chosen_as_it_is_unmapped_stays_mapped() {
    let (mut world, client, [part, _]) = with_pattern(Pattern::Sparse);
    below(&mut world, part);
    use_for(&mut world, client, 1, (part, 1));
    below(&mut world, part);
    let advise = |world: &mut World, advice| {
        world.call(client, ClientRequest::Advise(part.allocation, advice)).expect("it is its owner's");
    };
    // It is mapped in place by advice, and is to be unmapped there once it is unpinned.
    advise(&mut world, Advice::SetAccessedBy);
    use_for(&mut world, client, 2, (part, 1));
    assert!(world.maps(client, part));
    advise(&mut world, Advice::UnsetAccessedBy);
    // A pin comes before the client has unmapped it: it does not pay to move it for that.
    world.pin_call(client, 3, &[part]);
    world.run_until_idle();
    assert_eq!(answer(&world, client, 3), Some(&None));
    assert_eq!((tier(&world, part), chosen(&world).len()), (Tier::Host, 1));
    world.frame(client, ClientFrame::PinEnded { call: 3 });
    for _ in 0..2 {
        use_mapped(&mut world, client, part);
        world.run_until_idle();
        assert!(world.maps(client, part), "it is not unmapped after each use");
    }
}

#[test]
fn parts_that_come_without_a_copy_measure_no_speed() {
    let (mut world, client, [part, _]) = with_pattern(Pattern::Sparse);
    below(&mut world, part);
    use_for(&mut world, client, 1, (part, 1));
    below(&mut world, part);
    // They are made anew each time: no byte crosses the link.
    let dropped = AllocationSpec { discardable: true, unpinned: true, ..spec(4) };
    let id = world.allocate(client, dropped).expect("room");
    let [dropped] = parts(&world, id)[..] else { panic!("one part") };
    for call in 2..32 {
        world.operate(to(id, Tier::Host)).expect("it is dropped");
        world.pin_call(client, call, &[dropped]);
        world.run_until_idle();
        world.frame(client, ClientFrame::PinEnded { call });
    }
    use_for(&mut world, client, 32, (part, 1));
    let (sum, _) = chosen(&world)[0];
    assert!(sum.cost.as_micros() >= 5_000, "the only copy took 5 ms: {sum:?}");
}

#[test]
fn advice_to_access_a_part_takes_over_from_the_choice() {
    let (mut world, client, [part, _]) = in_place();
    advise(&mut world, client, part, Advice::SetAccessedBy);
    for _ in 0..2 {
        use_mapped(&mut world, client, part);
        world.run_until_idle();
        assert!(world.maps(client, part), "it stays mapped as long as that is advised");
    }
    advise(&mut world, client, part, Advice::UnsetAccessedBy);
    assert!(!world.maps(client, part));
}

#[test]
fn choice_ends_with_advice_of_owner_or_operator() {
    let ways = [Retention::Pattern(None), Retention::Location(Some(Tier::Device))];
    for (change, by_operator) in ways.into_iter().flat_map(|change| [(change, false), (change, true)]) {
        let (mut world, client, [part, _]) = in_place();
        match by_operator {
            false => advise(&mut world, client, part, retain(change)),
            true => {
                let (target, change) = (Target::Id(part.allocation), Some(change));
                let asked = OperatorRequest::AdviseParts { target, parts: None, change };
                world.operate(asked).expect("advised");
                world.run_until_idle();
            }
        }
        assert!(!world.maps(client, part), "{change:?}, by an operator: {by_operator}");
        use_for(&mut world, client, 3, (part, 1));
        assert_eq!(tier(&world, part), Tier::Device, "{change:?}, by an operator: {by_operator}");
    }
}

#[test]
fn choice_ends_with_the_call_that_counts_on_it() {
    let (mut world, client, [part, _]) = in_place();
    world.pin_call(client, 3, &[part]);
    world.run_until_idle();
    advise(&mut world, client, part, retain(Retention::Pattern(None)));
    assert!(world.maps(client, part), "a call counts on it");
    world.frame(client, ClientFrame::PinEnded { call: 3 });
    world.run_until_idle();
    assert!(!world.maps(client, part));
}

#[test]
fn request_sequence_and_hold_come_before_the_choice() {
    let request = |world: &mut World, client, part| {
        let spec = PrefetchSpec { parts: vec![part], whole: true, within: None, priority: 0 };
        world.frame(client, ClientFrame::Prefetch { number: 1, spec });
    };
    let sequence = |world: &mut World, client, part: PartRef| {
        let range = PartRange { allocation: part.allocation, first: PartIndex(0), count: 1 };
        let spec = SequenceSpec { steps: vec![vec![range]], passes: 1 };
        world.frame(client, ClientFrame::Sequence { number: 1, spec });
    };
    for (at, way) in [request as fn(&mut World, Client, PartRef), sequence].iter().enumerate() {
        let (mut world, client, [part, _]) = in_place();
        way(&mut world, client, part);
        // A request tries again after a while.
        (0..10).for_each(|_| {
            world.run_until_idle();
            world.advance(100_000);
        });
        world.run_until_idle();
        assert_eq!(tier(&world, part), Tier::Device, "way {at}");
    }
    let (mut world, client, [part, _]) = in_place();
    let target = Target::Id(part.allocation);
    world.operate(OperatorRequest::HoldParts { target, parts: Vec::new(), hold: true }).expect("held");
    world.run_until_idle();
    assert!(!world.maps(client, part));
}

#[test]
fn choice_outlives_advice_that_comes_and_goes_during_a_call() {
    let (mut world, client, [part, _]) = in_place();
    world.pin_call(client, 3, &[part]);
    world.run_until_idle();
    advise(&mut world, client, part, Advice::SetAccessedBy);
    advise(&mut world, client, part, Advice::UnsetAccessedBy);
    world.frame(client, ClientFrame::PinEnded { call: 3 });
    for _ in 0..2 {
        world.run_until_idle();
        assert!(world.maps(client, part), "it is not unmapped after each use");
        use_mapped(&mut world, client, part);
    }
}
