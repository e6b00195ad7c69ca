//! Owners say which of their parts leave a device first, among the parts of their tenant.

use crate::world::{
    Client, World,
    moving::{parts, tiers},
    spec,
};
use broker_core::{
    Advice, AllocationSpec, ClientRequest, EvictionPolicy, EvictionReason, MemoryClass, Notice, PartNeed,
    PartRef, PartSpan, PartUse, Pattern, Preset, Refusal, Retention, Target, Tier,
};
use std::time::Duration;
use vramd_types::Bytes;

/// That many idle parts of 4 MiB on their device.
pub(crate) fn idle(world: &mut World, tenant: &str, count: u32) -> (Client, Vec<PartRef>) {
    let client = world.open_pinning(tenant);
    let spec = AllocationSpec { part_size: Some(Bytes::mib(4)), ..spec(4 * count) };
    let id = world.allocate(client, spec).expect("room");
    world.advance(1000);
    let parts = parts(world, id);
    (client, parts)
}

pub(crate) fn advise(world: &mut World, client: Client, part: PartRef, change: Retention) {
    let parts = Some(PartSpan { first: part.part, count: 1 });
    let advice = Advice::Retain { parts, change };
    world.call(client, ClientRequest::Advise(part.allocation, advice)).expect("it is its own");
}

/// Another program needs 4 MiB.
pub(crate) fn press(world: &mut World) {
    let client = world.open_pinning("other");
    world.allocate(client, spec(4)).expect("room can be made");
    world.run_until_idle();
}

pub(crate) fn away(world: &World, parts: &[PartRef]) -> Vec<usize> {
    let view = world.broker.show(&Target::Id(parts[0].allocation)).expect("it is there");
    let away = view.parts.iter().zip(0..).filter(|(part, _)| part.tier != Tier::Device);
    away.map(|(_, at)| at).collect()
}

#[test]
fn advice_orders_the_parts_of_a_tenant_and_no_others() {
    let mut world = tiers(32, 64);
    let (first, old) = idle(&mut world, "a", 4);
    let (_, young) = idle(&mut world, "b", 4);
    // All of the first tenant's parts are important: still its turn comes first, since they are older.
    for part in &old {
        advise(&mut world, first, *part, Retention::Importance(Some(100)));
    }
    advise(&mut world, first, old[2], Retention::Class(Some(MemoryClass::Scratch)));
    press(&mut world);
    assert_eq!((away(&world, &old), away(&world, &young)), (vec![2], vec![]));
    press(&mut world);
    assert_eq!((away(&world, &old), away(&world, &young)), (vec![0, 2], vec![]));
}

/// The parts that were chosen to leave, and why.
pub(crate) fn reasons(world: &World) -> Vec<(PartRef, EvictionReason)> {
    let chosen = world.notices.iter().filter_map(|notice| match notice {
        Notice::VictimChosen { part, reason, .. } => Some((*part, *reason)),
        _ => None,
    });
    chosen.collect()
}

#[test]
fn victims_are_told_with_the_reason_for_their_place_in_the_order() {
    let by_policy = EvictionReason::Policy(EvictionPolicy::Lru);
    for (change, place, reason) in [
        (None, 0, by_policy),
        (Some(Retention::Needed(false)), 3, EvictionReason::Advice),
        (Some(Retention::Class(Some(MemoryClass::Scratch))), 3, EvictionReason::Advice),
        (Some(Retention::Pattern(Some(Pattern::Loop))), 3, EvictionReason::Pattern),
    ] {
        let mut world = tiers(16, 64);
        let (client, all) = idle(&mut world, "a", 4);
        match change {
            Some(pattern @ Retention::Pattern(_)) => {
                advise_all(&mut world, client, all[0], pattern).expect("own")
            }
            Some(change) => advise(&mut world, client, all[3], change),
            None => {}
        }
        press(&mut world);
        assert_eq!(reasons(&world), [(all[place], reason)]);
    }
}

#[test]
fn part_that_is_not_needed_leaves_first_and_once() {
    let mut world = tiers(16, 64);
    let (client, all) = idle(&mut world, "a", 4);
    advise(&mut world, client, all[3], Retention::Needed(false));
    press(&mut world);
    assert_eq!(away(&world, &all), [3]);
    // It comes back in place of the oldest, and is then the youngest.
    world.pin_call(client, 1, &[all[3]]);
    world.run_until_idle();
    assert_eq!(away(&world, &all), [0]);
    world.frame(client, broker_core::ClientFrame::PinEnded { call: 1 });
    press(&mut world);
    assert_eq!(away(&world, &all), [0, 1]);
}

/// A session was seen to use the part, and not to pin it any more.
pub(crate) fn touch(world: &mut World, client: Client, part: PartRef) {
    world.advance(1000);
    world.event(broker_core::Event::PartsUsed(vec![PartUse {
        session: client.session,
        part,
        pinned: false,
        written: false,
    }]));
}

pub(crate) fn advise_all(
    world: &mut World,
    client: Client,
    part: PartRef,
    change: Retention,
) -> Result<(), Refusal> {
    let advice = Advice::Retain { parts: None, change };
    world.call(client, ClientRequest::Advise(part.allocation, advice)).map(|_| ())
}

#[test]
fn parts_preferred_below_leave_first_and_those_preferred_here_last() {
    let mut world = tiers(16, 64);
    let (client, all) = idle(&mut world, "a", 4);
    advise(&mut world, client, all[0], Retention::Location(Some(Tier::Device)));
    advise(&mut world, client, all[3], Retention::Location(Some(Tier::Host)));
    press(&mut world);
    assert_eq!(away(&world, &all), [3]);
    press(&mut world);
    press(&mut world);
    assert_eq!(away(&world, &all), [1, 2, 3]);
}

#[test]
fn part_needed_soon_leaves_last_until_it_is_used_or_time_is_over() {
    let soon = Retention::NeededWithin(Duration::from_secs(1));
    for ends in ["never", "used", "over"] {
        let mut world = tiers(16, 64);
        let (client, all) = idle(&mut world, "a", 4);
        advise(&mut world, client, all[0], soon);
        match ends {
            "used" => {
                touch(&mut world, client, all[0]);
                for part in &all[1..] {
                    touch(&mut world, client, *part);
                }
            }
            "over" => world.advance(2_000_000),
            _ => world.advance(1_900_000),
        }
        let view = world.broker.show(&Target::Id(all[0].allocation)).expect("it is there");
        let stands = view.advice.iter().any(|view| matches!(view.advice.need, PartNeed::Soon { .. }));
        assert_eq!(stands, ends == "never", "{ends}");
        press(&mut world);
        assert_eq!(away(&world, &all), [usize::from(ends == "never")], "{ends}");
    }
}

#[test]
fn loop_gives_up_the_part_that_was_just_used_and_a_pass_what_lies_behind() {
    let cases = [(Pattern::Loop, [1, 0, 3]), (Pattern::Sequential, [0, 1, 3]), (Pattern::Random, [2, 3, 0])];
    for (pattern, expected) in cases {
        let mut world = tiers(16, 64);
        let (client, all) = idle(&mut world, "a", 4);
        advise_all(&mut world, client, all[0], Retention::Pattern(Some(pattern))).expect("it is its own");
        touch(&mut world, client, all[0]);
        touch(&mut world, client, all[1]);
        let mut gone = Vec::new();
        for next in expected {
            press(&mut world);
            gone.push(next);
            gone.sort_unstable();
            assert_eq!(away(&world, &all), gone, "{pattern:?}");
        }
    }
}

#[test]
fn contradictions_and_impossible_advice_are_refused_and_change_nothing() {
    let mut world = tiers(32, 64);
    let (client, all) = idle(&mut world, "a", 4);
    advise(&mut world, client, all[1], Retention::ReadMostly(true));
    advise(&mut world, client, all[2], Retention::Location(Some(Tier::Device)));
    let shown =
        |world: &World| world.broker.show(&Target::Id(all[0].allocation)).expect("it is there").advice;
    let before = shown(&world);
    assert_eq!(before.len(), 2);
    let contradicts = |refused: Result<(), Refusal>| matches!(refused, Err(Refusal::AdviceContradicts { allocation, .. }) if allocation == all[0].allocation);
    let scratch = Retention::Class(Some(MemoryClass::Scratch));
    assert!(contradicts(advise_all(&mut world, client, all[0], scratch)));
    let in_place = ClientRequest::Advise(all[0].allocation, Advice::SetAccessedBy);
    assert!(contradicts(world.call(client, in_place).map(|_| ())));
    let wrong = [
        (Retention::Location(Some(Tier::Disk)), Refusal::TierUnsupported { tier: Tier::Disk }),
        (
            Retention::NeededWithin(Duration::ZERO),
            Refusal::RequestInvalid { field: "needed_within_ms", problem: "is zero, or more than a day" },
        ),
        (
            Retention::NeededWithin(Duration::from_secs(86_401)),
            Refusal::RequestInvalid { field: "needed_within_ms", problem: "is zero, or more than a day" },
        ),
    ];
    for (change, expected) in wrong {
        assert_eq!(advise_all(&mut world, client, all[0], change), Err(expected), "{change:?}");
    }
    assert_eq!(shown(&world), before);
    // Of the parts that the preset is for, it replaces what would contradict it.
    advise_all(&mut world, client, all[0], Retention::Preset(Preset::Staging)).expect("no contradiction");
    assert_eq!(shown(&world).len(), 1);

    let spec = AllocationSpec { discardable: true, ..spec(4) };
    let dropped = world.allocate(client, spec).expect("room");
    let dropped = parts(&world, dropped)[0];
    for change in [Retention::ReadMostly(true), Retention::Location(Some(Tier::Host))] {
        let refused = advise_all(&mut world, client, dropped, change);
        assert_eq!(refused, Err(Refusal::KindUnsupported { kind: "advised discardable" }), "{change:?}");
    }
    advise_all(&mut world, client, dropped, Retention::Location(Some(Tier::Device))).expect("it lies there");
}
