//! Pressure: its levels, which sessions are told of them, and what the daemon does at each before it refuses
//! anything.

use std::{collections::VecDeque, time::Duration};

use crate::world::{
    Client, World, config,
    moving::{moved, to},
    pressing::{COLD, SECOND, fill, free, levels, node, on_device, pass_time, tier},
    revoking::{answer, part},
    spec,
    writing_back::{clean, write_back},
};
use broker_core::{
    Advice, AllocationSpec, Cause, ClientFrame, ClientRequest, Completion, CreateError, DeviceSelector,
    Event, Notice, OperatorRequest, PartMove, PartRef, Pressure, PressureNote, Retention, StoredQuotas,
    Target, Tier,
};
use vramd_types::{Bytes, DeviceIndex, Quantity};

#[test]
fn pressure_levels_are_entered_at_their_bound_and_left_below_it() {
    let mut world = node(0, 0);
    let client = world.open_pinning("a");
    let mut parts = fill(&mut world, client, 15);
    assert_eq!(levels(&mut world, Tier::Device), []);
    let mut seen = Vec::new();
    for _ in 0..5 {
        parts.extend(fill(&mut world, client, 1));
        seen.extend(levels(&mut world, Tier::Device));
    }
    assert_eq!(seen, [Pressure::Elevated, Pressure::High, Pressure::Critical]);
    // At 95 and 90 percent the level stays, at 85 it is left; at 80 nothing changes, at 75 it does.
    for (left, expected) in [
        (19, vec![]),
        (18, vec![Pressure::High]),
        (17, vec![Pressure::Elevated]),
        (16, vec![]),
        (15, vec![Pressure::Normal]),
    ] {
        free(&mut world, client, &parts.split_off(left));
        assert_eq!(levels(&mut world, Tier::Device), expected, "{left}");
    }
}

#[test]
fn memory_of_other_programs_counts_as_pressure() {
    let mut world = node(0, 0);
    let client = world.open_pinning("a");
    fill(&mut world, client, 10);
    let taken = |mib| {
        let unbrokered = Bytes::mib(mib);
        Event::Completion(Completion::Surveyed {
            device: DeviceIndex(0),
            unbrokered,
            contexts: 0,
            host_missing: Bytes::ZERO,
        })
    };
    world.event(taken(16));
    assert_eq!(levels(&mut world, Tier::Device), [Pressure::Elevated]);
    world.event(taken(0));
    assert_eq!(levels(&mut world, Tier::Device), [Pressure::Normal]);
}

#[test]
fn elevated_pressure_writes_cold_parts_back_and_leaves_them() {
    let mut world = node(80, 0);
    let client = world.open_pinning("a");
    let parts = fill(&mut world, client, 16);
    assert_eq!(levels(&mut world, Tier::Device), [Pressure::Elevated]);
    pass_time(&mut world, COLD - SECOND);
    assert_eq!(clean(&world, "a"), Bytes::ZERO, "it was used less long ago");
    world.harvest(client, parts[3]);
    pass_time(&mut world, SECOND * 2);
    assert_eq!((clean(&world, "a"), on_device(&world, &parts)), (Bytes::mib(30), 16));
    assert!(parts.iter().all(|part| world.maps(client, *part)), "they stay mapped");
    // A warm part is written back once it is cold; a clean part is not copied again.
    world.notices.clear();
    pass_time(&mut world, COLD * 2);
    let copied: Vec<_> = world
        .notices
        .iter()
        .filter_map(|notice| match notice {
            Notice::WrittenBack { part, .. } => Some(*part),
            _ => None,
        })
        .collect();
    assert_eq!(copied, [parts[3]]);
}

#[test]
fn part_written_again_while_mapped_is_written_back_again() {
    let mut world = node(80, 0);
    let client = world.open_pinning("a");
    let parts = fill(&mut world, client, 16);
    pass_time(&mut world, COLD * 2);
    assert_eq!(clean(&world, "a"), Bytes::mib(32));
    // Read, and then written.
    world.harvest(client, parts[3]);
    assert_eq!(clean(&world, "a"), Bytes::mib(32));
    world.write(client, parts[3], 77);
    world.harvest(client, parts[3]);
    assert_eq!(clean(&world, "a"), Bytes::mib(30));
    pass_time(&mut world, COLD + SECOND * 2);
    assert_eq!(clean(&world, "a"), Bytes::mib(32));
    world.notices.clear();
    moved(world.operate(to(parts[3].allocation, Tier::Host)));
    let copied = |notice: &Notice| matches!(notice, Notice::Moved { copied: true, .. });
    assert!(!world.notices.iter().any(copied), "it leaves without a copy");
    world.pin_call(client, 1, &[parts[3]]);
    world.run_until_idle();
    assert_eq!(world.read(client, parts[3]), 77);
}

#[test]
fn all_cold_parts_are_written_back_in_the_end() {
    let mut config = config(&[Bytes::mib(80)]);
    config.devices[0].host = Bytes::mib(80);
    config.part_size = Bytes::mib(2);
    let mut world = World::with(config, StoredQuotas::default());
    let client = world.open_pinning("a");
    fill(&mut world, client, 33);
    pass_time(&mut world, COLD * 2);
    assert_eq!(clean(&world, "a"), Bytes::mib(66), "one look is enough: each that ends begins another");
}

#[test]
fn high_pressure_evicts_least_used_parts_down_to_its_target() {
    let mut world = node(80, 0);
    let client = world.open_pinning("a");
    let parts = fill(&mut world, client, 18);
    assert_eq!(levels(&mut world, Tier::Device), [Pressure::Elevated, Pressure::High]);
    world.harvest(client, parts[0]);
    pass_time(&mut world, COLD - SECOND);
    assert_eq!(on_device(&world, &parts), 18);
    world.harvest(client, parts[1]);
    pass_time(&mut world, SECOND * 2);
    // 85 percent are 34 MiB. The first two were used since.
    assert_eq!(on_device(&world, &parts), 17);
    assert_eq!((tier(&world, parts[2]), tier(&world, parts[0])), (Tier::Host, Tier::Device));
    let by_pressure = |notice: &Notice| matches!(notice, Notice::Moved { cause: Cause::Pressure, .. });
    assert_eq!(world.notices.iter().filter(|notice| by_pressure(notice)).count(), 1);
    assert_eq!(levels(&mut world, Tier::Device), [Pressure::Elevated]);
    world.pin_call(client, 1, &[parts[2]]);
    world.run_until_idle();
    assert_eq!((answer(&world, client, 1), world.read(client, parts[2])), (Some(&None), 3));
}

#[test]
fn critical_pressure_evicts_at_once() {
    let mut world = node(80, 0);
    let client = world.open_pinning("a");
    let parts = fill(&mut world, client, 17);
    pass_time(&mut world, COLD + Duration::from_secs(10));
    assert_eq!(on_device(&world, &parts), 17);
    let more = part(world.allocate(client, spec(6)).expect("room"), 0);
    world.run_until_idle();
    assert_eq!(on_device(&world, &parts), 14, "only the new memory was sampled");
    assert_eq!(tier(&world, more), Tier::Device);
}

#[test]
fn used_guaranteed_held_or_discardable_part_stays_under_pressure() {
    let mut world = node(80, 0);
    let [a, b, c] = ["a", "b", "c"].map(|tenant| world.open_pinning(tenant));
    let quota = OperatorRequest::SetQuota {
        tenant: "a".to_owned(),
        device: DeviceSelector::All,
        tier: Tier::Device,
        guarantee: Some(Quantity::Bytes(Bytes::mib(10))),
        limit: None,
    };
    world.operate(quota).expect("there is so much");
    let guaranteed = fill(&mut world, a, 5);
    let used = fill(&mut world, b, 5);
    used.iter().for_each(|part| world.pin(b, *part));
    let held = fill(&mut world, b, 3);
    for part in &held {
        let target = Target::Id(part.allocation);
        world.operate(OperatorRequest::HoldParts { target, parts: Vec::new(), hold: true }).expect("held");
    }
    let lossy = AllocationSpec { discardable: true, ..spec(10) };
    let lossy = world.allocate(c, lossy).expect("room");
    world.run_until_idle();
    let idle = fill(&mut world, c, 2);
    assert_eq!(levels(&mut world, Tier::Device).last(), Some(&Pressure::Critical));
    pass_time(&mut world, COLD * 2);
    let stay = [guaranteed, used, held].concat();
    assert_eq!(on_device(&world, &stay), stay.len());
    assert_eq!(on_device(&world, &idle), 0, "all else is not enough");
    let shown = world.broker.show(&Target::Id(lossy)).expect("it is there");
    assert!(shown.parts.iter().all(|part| !part.dropped));
}

#[test]
fn nothing_leaves_where_nothing_is_ever_cold() {
    let mut config = config(&[Bytes::mib(40)]);
    config.devices[0].host = Bytes::mib(80);
    config.part_size = Bytes::mib(2);
    config.pressure.cold_after = Duration::ZERO;
    let mut world = World::with(config, StoredQuotas::default());
    let client = world.open_pinning("a");
    let parts = fill(&mut world, client, 20);
    pass_time(&mut world, COLD * 10);
    assert_eq!((on_device(&world, &parts), clean(&world, "a")), (20, Bytes::ZERO));
}

#[test]
fn part_wanted_during_an_eviction_for_pressure_stays() {
    let mut world = node(80, 0);
    let client = world.open_pinning("a");
    let parts = fill(&mut world, client, 18);
    world.advance(u64::try_from((COLD * 2).as_micros()).expect("short"));
    assert!(world.broker.moves().iter().any(|it| it.cause == Cause::Pressure && it.part == parts[0]));
    // Its client unmaps it, and wants it again at once.
    while world.maps(client, parts[0]) {
        assert!(world.work_once() || world.answer_once(client.channel), "it is to unmap it");
    }
    world.pin_call(client, 1, &[parts[0]]);
    world.run_until_idle();
    assert_eq!((answer(&world, client, 1), tier(&world, parts[0])), (Some(&None), Tier::Device));
    assert_eq!(world.read(client, parts[0]), 1);
    let stopped = |notice: &Notice| matches!(notice, Notice::MoveStopped { part, cause: Cause::Pressure, .. } if *part == parts[0]);
    assert!(world.notices.iter().any(stopped));
}

#[test]
fn cold_part_in_a_full_host_moves_to_disk() {
    let mut world = node(20, 40);
    let client = world.open_pinning("a");
    let parts = fill(&mut world, client, 10);
    for part in &parts[..6] {
        let gone = moved(world.operate(to(part.allocation, Tier::Host)));
        assert!(matches!(gone, PartMove::Moved), "{gone:?}");
    }
    assert_eq!((world.charged_in_host(), world.charged_on_disk()), (Bytes::mib(20), Bytes::ZERO));
    assert_eq!(levels(&mut world, Tier::Host).last(), Some(&Pressure::Critical));
    pass_time(&mut world, COLD - SECOND);
    assert_eq!(world.charged_on_disk(), Bytes::ZERO);
    // One part is fetched, and leaves again: it has not been there for long.
    world.pin_call(client, 1, &[parts[0]]);
    world.run_until_idle();
    world.frame(client, ClientFrame::PinEnded { call: 1 });
    moved(world.operate(to(parts[0].allocation, Tier::Host)));
    pass_time(&mut world, SECOND * 2);
    // 85 percent of 20 MiB are 17: two parts go.
    let tiers: VecDeque<_> = parts.iter().map(|part| tier(&world, *part)).collect();
    let went: Vec<_> = (0..10).filter(|at| tiers[*at] == Tier::Disk).collect();
    assert_eq!((went, world.charged_in_host()), (vec![1, 2], Bytes::mib(16)));
    assert_eq!(levels(&mut world, Tier::Host).last(), Some(&Pressure::Elevated));
    for (call, at) in [(2, 1), (3, 2)] {
        world.pin_call(client, call, &[parts[at]]);
        world.run_until_idle();
        assert_eq!(world.read(client, parts[at]), at as u64 + 1);
    }
}

fn advise(world: &mut World, client: Client, part: PartRef, change: Retention) {
    let advice = Advice::Retain { parts: None, change };
    world.call(client, ClientRequest::Advise(part.allocation, advice)).expect("it is its own");
}

#[test]
fn read_mostly_part_is_written_back_before_it_is_cold() {
    let mut world = node(80, 0);
    let client = world.open_pinning("a");
    let parts = fill(&mut world, client, 16);
    advise(&mut world, client, parts[3], Retention::ReadMostly(true));
    world.notices.clear();
    pass_time(&mut world, SECOND * 2);
    assert_eq!((clean(&world, "a"), on_device(&world, &parts)), (Bytes::mib(2), 16));
    let copied = |notice: &Notice| match notice {
        Notice::WrittenBack { part, .. } => Some(*part),
        _ => None,
    };
    assert_eq!(world.notices.iter().filter_map(copied).collect::<Vec<_>>(), [parts[3]]);
}

#[test]
fn of_cold_parts_in_a_full_host_those_for_the_disk_leave_first() {
    let mut world = node(20, 40);
    let client = world.open_pinning("a");
    let parts = fill(&mut world, client, 10);
    for part in &parts[..6] {
        moved(world.operate(to(part.allocation, Tier::Host)));
    }
    advise(&mut world, client, parts[0], Retention::Location(Some(Tier::Host)));
    advise(&mut world, client, parts[5], Retention::Location(Some(Tier::Disk)));
    pass_time(&mut world, COLD + SECOND * 2);
    let went: Vec<_> = (0..10).filter(|at| tier(&world, parts[*at]) == Tier::Disk).collect();
    assert_eq!((went, world.charged_in_host()), (vec![1, 5], Bytes::mib(16)));
}

/// Found through the socket: a look came just then, and as much left again.
#[test]
fn bytes_still_charged_after_a_demotion_evict_nothing_else() {
    let mut world = node(20, 40);
    let client = world.open_pinning("a");
    let parts = fill(&mut world, client, 10);
    for part in &parts {
        moved(world.operate(to(part.allocation, Tier::Host)));
    }
    let on_disk = |world: &World| parts.iter().filter(|part| tier(world, **part) == Tier::Disk).count();
    world.defers_releases = true;
    pass_time(&mut world, COLD + SECOND);
    for _ in 0..3 {
        assert_eq!(
            (on_disk(&world), world.charged_in_host()),
            (2, Bytes::mib(20)),
            "the driver has it still"
        );
        pass_time(&mut world, SECOND);
    }
    world.defers_releases = false;
    world.work.extend(world.deferred.drain(..));
    pass_time(&mut world, SECOND);
    assert_eq!((on_disk(&world), world.charged_in_host()), (2, Bytes::mib(16)));
    // It was counted while it was moving alone: the next one makes others leave again.
    let more = fill(&mut world, client, 2);
    moved(world.operate(to(more[0].allocation, Tier::Host)));
    pass_time(&mut world, COLD + SECOND * 2);
    assert_eq!(world.charged_in_host(), Bytes::mib(16));
}

/// The pressure notes of a client since the last call: tier, level, factor, and how soon it is full.
fn told(world: &mut World, client: Client) -> Vec<(Tier, Pressure, u32, Option<u64>)> {
    let (its, others) = world.pressure_notes.drain(..).partition(|(channel, _)| *channel == client.channel);
    world.pressure_notes = others;
    let its: Vec<(_, PressureNote)> = its;
    let full_in = |note: &PressureNote| note.full_in.map(|it| it.as_secs());
    its.iter().map(|(_, note)| (note.tier, note.pressure, note.batch_factor, full_in(note))).collect()
}

#[test]
fn subscribed_session_hears_the_first_pressure_and_each_change() {
    let mut world = node(0, 0);
    let deaf = world.open_pinning("a");
    world.subscribes_to_pressure = true;
    let client = world.open_pinning("a");
    assert_eq!(told(&mut world, client), [(Tier::Device, Pressure::Normal, 1000, None)]);
    let parts = fill(&mut world, deaf, 16);
    assert_eq!(told(&mut world, client), [(Tier::Device, Pressure::Elevated, 1000, None)]);
    // It has grown by 32 MiB in a second, as it seems: a third of that counts, and 8 are left.
    pass_time(&mut world, SECOND);
    assert_eq!(told(&mut world, client), [(Tier::Device, Pressure::Elevated, 940, Some(0))]);
    for _ in 0..60 {
        pass_time(&mut world, SECOND);
    }
    let later = told(&mut world, client);
    assert_eq!(later.last().map(|it| (it.2, it.3)), Some((800, None)), "{later:?}");
    let late = world.open_pinning("b");
    assert_eq!(told(&mut world, late), [(Tier::Device, Pressure::Elevated, 800, None)]);
    free(&mut world, deaf, &parts[..1]);
    assert_eq!(told(&mut world, late)[0].1, Pressure::Normal);
    assert_eq!(told(&mut world, deaf), []);
}

#[test]
fn host_memory_of_other_programs_raises_pressure_and_lowers_capacity() {
    let mut world = node(40, 80);
    let client = world.open_pinning("a");
    let parts = fill(&mut world, client, 12);
    assert_eq!((world.charged_in_host(), world.charged_on_disk()), (Bytes::mib(24), Bytes::ZERO));
    for part in &parts[..6] {
        moved(world.operate(to(part.allocation, Tier::Host)));
    }
    assert_eq!(levels(&mut world, Tier::Host), []);
    pass_time(&mut world, COLD * 2);
    let lacking = |mib| {
        let (unbrokered, host_missing) = (Bytes::ZERO, Bytes::mib(mib));
        Event::Completion(Completion::Surveyed {
            device: DeviceIndex(0),
            unbrokered,
            contexts: 0,
            host_missing,
        })
    };
    world.event(lacking(16));
    world.run_until_idle();
    // 24 MiB of 24: at once two parts go, and that is enough for 85 percent.
    assert_eq!((world.charged_in_host(), world.charged_on_disk()), (Bytes::mib(20), Bytes::mib(4)));
    let more = fill(&mut world, client, 4);
    assert_eq!(
        (world.charged_in_host(), world.charged_on_disk()),
        (Bytes::mib(20), Bytes::mib(12)),
        "it is full once more, and two more go"
    );
    world.event(lacking(0));
    assert_eq!(levels(&mut world, Tier::Host).last(), Some(&Pressure::Normal));
    assert_eq!(on_device(&world, &more), 4);
}

#[test]
fn guaranteed_or_held_part_in_the_host_stays_there() {
    let mut world = node(20, 40);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let quota = OperatorRequest::SetQuota {
        tenant: "a".to_owned(),
        device: DeviceSelector::All,
        tier: Tier::Host,
        guarantee: Some(Quantity::Bytes(Bytes::mib(8))),
        limit: None,
    };
    world.operate(quota).expect("there is so much");
    let (guaranteed, other) = (fill(&mut world, a, 5), fill(&mut world, b, 5));
    let target = Target::Id(other[0].allocation);
    world.operate(OperatorRequest::HoldParts { target, parts: Vec::new(), hold: true }).expect("held");
    for part in guaranteed.iter().chain(&other[1..]) {
        moved(world.operate(to(part.allocation, Tier::Host)));
    }
    assert_eq!(world.charged_in_host(), Bytes::mib(20));
    pass_time(&mut world, COLD * 2);
    let on_disk = |parts: &[PartRef]| parts.iter().filter(|part| tier(&world, **part) == Tier::Disk).count();
    assert_eq!(
        (on_disk(&guaranteed), on_disk(&other)),
        (1, 1),
        "17 MiB may stay, and of these 8 are its own"
    );
    assert_eq!(tier(&world, other[0]), Tier::Device);
}

/// Moves and write-backs that failed since the last time.
fn failed(world: &mut World) -> usize {
    world.notices.drain(..).filter(|notice| matches!(notice, Notice::MoveFailed { .. })).count()
}

fn looked_at() -> Event {
    let (unbrokered, host_missing) = (Bytes::ZERO, Bytes::ZERO);
    Event::Completion(Completion::Surveyed { device: DeviceIndex(0), unbrokered, contexts: 0, host_missing })
}

#[test]
fn failed_write_back_ahead_is_tried_again_only_after_a_survey() {
    let mut world = without_looks(80, 0);
    let client = world.open_pinning("a");
    let parts = fill(&mut world, client, 16);
    world.fail_creates = (0..1000).map(|_| Some(CreateError::OutOfMemory)).collect();
    pass_time(&mut world, COLD);
    (0..20).for_each(|_| pass_time(&mut world, SECOND));
    assert_eq!(failed(&mut world), 16, "each once");
    world.event(looked_at());
    (0..20).for_each(|_| pass_time(&mut world, SECOND));
    assert_eq!(failed(&mut world), 16, "and once more");
    world.fail_creates.clear();
    world.event(looked_at());
    pass_time(&mut world, SECOND);
    assert_eq!((clean(&world, "a"), on_device(&world, &parts)), (Bytes::mib(32), 16));
}

/// A node without regular surveys.
fn without_looks(host: u32, disk: u32) -> World {
    let mut config = config(&[Bytes::mib(40)]);
    (config.devices[0].host, config.devices[0].disk) = (Bytes::mib(host), Bytes::mib(disk));
    (config.part_size, config.limits.survey_interval) = (Bytes::mib(2), Duration::from_secs(100_000));
    World::with(config, StoredQuotas::default())
}

#[test]
fn cold_part_behind_many_discardable_ones_leaves() {
    let mut config = config(&[Bytes::mib(2400)]);
    (config.devices[0].host, config.part_size) = (Bytes::mib(2400), Bytes::mib(2));
    let mut world = World::with(config, StoredQuotas::default());
    let client = world.open_pinning("a");
    let lossy = AllocationSpec { discardable: true, ..spec(2048) };
    world.allocate(client, lossy).expect("room");
    world.run_until_idle();
    let parts = fill(&mut world, client, 60);
    assert_eq!(levels(&mut world, Tier::Device).last(), Some(&Pressure::High));
    pass_time(&mut world, COLD);
    (0..3).for_each(|_| pass_time(&mut world, SECOND));
    assert_eq!(on_device(&world, &parts), 0, "the first 1024 are to stay");
}

#[test]
fn write_back_ahead_leaves_extents_to_others() {
    let mut config = config(&[Bytes::mib(40)]);
    (config.devices[0].host, config.part_size) = (Bytes::mib(80), Bytes::mib(2));
    config.limits.extents_max = 20;
    let mut world = World::with(config, StoredQuotas::default());
    let client = world.open_pinning("a");
    fill(&mut world, client, 16);
    pass_time(&mut world, COLD * 2);
    assert_eq!(clean(&world, "a"), Bytes::mib(4), "of twenty, two are left");
    fill(&mut world, client, 2);
}

#[test]
fn part_that_left_for_pressure_goes_on_leaving_for_a_waiter() {
    let mut world = node(80, 0);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let parts = fill(&mut world, a, 20);
    parts[1..].iter().for_each(|part| world.pin(a, *part));
    parts[1..].iter().for_each(|part| world.harvest(a, *part));
    world.advance(u64::try_from((COLD * 2).as_micros()).expect("short"));
    assert!(world.broker.moves().iter().any(|it| it.cause == Cause::Pressure && it.part == parts[0]));
    let items = vec![spec(2)];
    let call = world.start(b, None, ClientRequest::AllocateBatch { items, wait: COLD });
    world.pin_call(a, 1, &[parts[0]]);
    world.run_until_idle();
    assert!(matches!(world.replies.get(&call), Some(Ok(_))), "the first waiter has the room");
    let stopped = |notice: &Notice| matches!(notice, Notice::MoveStopped { part, .. } if *part == parts[0]);
    assert!(!world.notices.iter().any(stopped));
}

#[test]
fn write_back_by_an_operator_starts_no_other() {
    let mut config = config(&[Bytes::mib(40)]);
    (config.devices[0].host, config.part_size) = (Bytes::mib(80), Bytes::mib(2));
    config.pressure.sample_interval = COLD * 2;
    let mut world = World::with(config, StoredQuotas::default());
    let client = world.open_pinning("a");
    let parts = fill(&mut world, client, 16);
    pass_time(&mut world, COLD + SECOND);
    assert!(matches!(write_back(&mut world, parts[7]), PartMove::Moved));
    assert_eq!(clean(&world, "a"), Bytes::mib(2));
    pass_time(&mut world, COLD);
    assert_eq!(clean(&world, "a"), Bytes::mib(32), "the next look comes in its time");
}

#[test]
fn growth_of_other_programs_is_forecast() {
    let mut world = node(0, 0);
    world.subscribes_to_pressure = true;
    let client = world.open_pinning("a");
    fill(&mut world, client, 2);
    for _ in 0..60 {
        pass_time(&mut world, SECOND);
    }
    told(&mut world, client);
    for taken in 1..=6 {
        world.other_programs = Bytes::mib(taken * 4);
        world.event(Event::Completion(Completion::Surveyed {
            device: DeviceIndex(0),
            unbrokered: world.other_programs,
            contexts: 0,
            host_missing: Bytes::ZERO,
        }));
        pass_time(&mut world, SECOND);
    }
    // 12 MiB are left, and 4 more go each second, of which most is seen by now.
    let full_in = told(&mut world, client).last().and_then(|it| it.3);
    assert!(full_in.is_some_and(|seconds| (3..=6).contains(&seconds)), "{full_in:?}");
}

#[test]
fn filling_after_a_rest_is_forecast_as_at_first() {
    let mut world = without_looks(0, 0);
    world.subscribes_to_pressure = true;
    let client = world.open_pinning("a");
    fill(&mut world, client, 1);
    for _ in 0..60 {
        pass_time(&mut world, SECOND);
    }
    pass_time(&mut world, SECOND * 3600);
    told(&mut world, client);
    fill(&mut world, client, 10);
    pass_time(&mut world, SECOND);
    // By 20 MiB in a second, of which a third counts: 18 are left.
    let full_in = told(&mut world, client).last().and_then(|it| it.3);
    assert_eq!(full_in, Some(3));
}
