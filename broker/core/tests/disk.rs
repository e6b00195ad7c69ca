//! Parts whose backing lies on disk. They leave their device for it and come back as others do from host
//! memory.

use crate::world;

use crate::world::{
    Client, World,
    moving::{evict, moved, parts, three_tiers, to},
    named,
    revoking::{answer, part},
    spec, unmapped,
    writing_back::{clean, write_back},
};
use broker_core::{
    AllocationSpec, ClientFrame, ClientRequest, Command, DeviceSelector, Limits, Notice, OperatorRequest,
    PartMove, PartRef, Refusal, Target, Tier, UnmappedPart,
};
use vramd_types::{AllocationId, Bytes, Quantity};

/// The bytes charged on the device, in the host and on disk.
fn charged(world: &World) -> [Bytes; 3] {
    [world.charged(), world.charged_in_host(), world.charged_on_disk()]
}

fn mib(device: u32, host: u32, disk: u32) -> [Bytes; 3] {
    [device, host, disk].map(Bytes::mib)
}

fn tier(world: &World, part: PartRef) -> Tier {
    let view = world.broker.show(&Target::Id(part.allocation)).expect("it is there");
    view.parts.iter().find(|shown| shown.index == part.part).expect("a part").tier
}

fn send(world: &mut World, part: PartRef, tier: Tier) -> PartMove {
    moved(world.operate(to(part.allocation, tier)))
}

/// Pins the part, and reads it.
fn use_it(world: &mut World, client: Client, call: u64, part: PartRef) -> u64 {
    world.pin_call(client, call, &[part]);
    world.run_until_idle();
    assert_eq!(answer(world, client, call), Some(&None), "{part:?}");
    let seen = world.read(client, part);
    world.frame(client, ClientFrame::PinEnded { call });
    seen
}

/// With a session that has written 7 to one part of 4 MiB, whose backing lies in the host.
fn one_written() -> (World, Client, PartRef) {
    let mut world = three_tiers(8, 8, 8);
    let client = world.open_pinning("a");
    let part = part(world.allocate(client, spec(4)).expect("room"), 0);
    world.write(client, part, 7);
    assert_eq!(charged(&world), mib(4, 4, 0));
    (world, client, part)
}

/// Found by the simulator: the part was copied from a file in which nothing was.
#[test]
fn false_write_report_of_an_unmapped_part_is_ignored() {
    let mut world = three_tiers(8, 0, 16);
    let client = world.open_pinning("a");
    let large = AllocationSpec { unpinned: true, part_size: Some(Bytes::mib(4)), ..spec(12) };
    let id = world.allocate(client, large).expect("room on disk");
    let last = PartRef { allocation: id, part: vramd_types::PartIndex(2) };
    assert_eq!(tier(&world, last), Tier::Disk);
    let first = OperatorRequest::MoveParts {
        target: Target::Id(id),
        parts: vec![vramd_types::PartIndex(0)],
        tier: Tier::Disk,
    };
    world.operate(first).expect("it leaves");
    // Its mappings last until its process ends, so all of it stays.
    use_it(&mut world, client, 1, PartRef { allocation: id, part: vramd_types::PartIndex(1) });
    world.pin_call(client, 2, &[last]);
    let lie = UnmappedPart { written: true, ..unmapped(last) };
    world.frame(client, ClientFrame::Unmapped(vec![lie]));
    assert!(world.closed.contains(&client.channel), "it is quarantined");
    let copied = |world: &World| world.work.iter().any(|work| matches!(work, Command::Copy { .. }));
    let mut seen = copied(&world);
    while world.work_once() {
        seen |= copied(&world);
    }
    assert!(!seen, "there is nothing to be copied");
}

#[test]
fn backing_fills_the_host_then_the_disk_and_parts_leave_for_their_own() {
    let mut world = three_tiers(12, 4, 4);
    let client = world.open_pinning("a");
    let ids: Vec<_> = (0..3).map(|_| part(world.allocate(client, spec(4)).expect("room"), 0)).collect();
    for (content, part) in (1..).zip(&ids) {
        world.write(client, *part, content);
    }
    assert_eq!(charged(&world), mib(12, 4, 4));
    let other = world.open_pinning("b");
    let refused = world.allocate(other, spec(12)).expect_err("one can go nowhere");
    assert!(matches!(refused, Refusal::DeviceFull { tier: Tier::Device, .. }), "{refused:?}");
    let taken = world.allocate(other, spec(8)).expect("two leave");
    assert_eq!(
        ids.iter().map(|part| tier(&world, *part)).collect::<Vec<_>>(),
        [Tier::Host, Tier::Disk, Tier::Device]
    );
    assert_eq!(charged(&world), mib(12, 4, 4));
    world.call(other, ClientRequest::FreeBatch(vec![taken])).expect("freed");
    world.run_until_idle();
    for (call, part) in (1..).zip(&ids) {
        assert_eq!(use_it(&mut world, client, call, *part), call);
    }
    assert_eq!((charged(&world), clean(&world, "a")), (mib(12, 4, 4), Bytes::mib(8)));
    let backing =
        |tier| world.broker.quota("a", None, tier).expect("a tenant").in_force.expect("there").backing;
    assert_eq!(
        [Tier::Device, Tier::Host, Tier::Disk].map(backing),
        [Bytes::ZERO, Bytes::mib(4), Bytes::mib(4)]
    );
}

#[test]
fn backing_lies_on_disk_without_a_host_tier() {
    let mut world = three_tiers(8, 0, 16);
    let client = world.open_pinning("a");
    let ids: Vec<_> =
        (0..4).map(|_| part(world.allocate(client, spec(4)).expect("room is made"), 0)).collect();
    assert_eq!(charged(&world), mib(8, 0, 16));
    let none = world.operate(to(ids[0].allocation, Tier::Host));
    assert_eq!(none.expect_err("there is none"), Refusal::TierUnsupported { tier: Tier::Host });
    for (call, part) in (1..).zip(&ids) {
        assert_eq!(use_it(&mut world, client, call, *part), 0);
        world.write(client, *part, call);
    }
    for (call, part) in (1..).zip(&ids) {
        assert_eq!(use_it(&mut world, client, call + 4, *part), call);
    }
}

fn limit_in(world: &mut World, tenant: &str, tier: Tier, mib: u32) {
    let (guarantee, limit) = (None, Some(Quantity::Bytes(Bytes::mib(mib))));
    let (tenant, device) = (tenant.to_owned(), DeviceSelector::All);
    world.operate(OperatorRequest::SetQuota { tenant, device, tier, guarantee, limit }).expect("set");
}

#[test]
fn parts_without_backing_get_it_in_the_tier_where_it_comes_free() {
    for tier in [Tier::Host, Tier::Disk] {
        let mut world = three_tiers(16, 16, 16);
        let client = world.open_pinning("a");
        [Tier::Host, Tier::Disk].into_iter().for_each(|tier| limit_in(&mut world, "a", tier, 4));
        let ids: Vec<_> = (0..4).map(|_| part(world.allocate(client, spec(4)).expect("room"), 0)).collect();
        assert_eq!(charged(&world), mib(16, 4, 4));
        limit_in(&mut world, "a", tier, 8);
        let (host, disk) = if tier == Tier::Host { (8, 4) } else { (4, 8) };
        assert_eq!(charged(&world), mib(16, host, disk));
        let backed = world.notices.iter().filter_map(|notice| match notice {
            Notice::Backed { part, tier, .. } => Some((*part, *tier)),
            _ => None,
        });
        let backed: Vec<_> = backed.collect();
        assert_eq!(backed, [(ids[2], tier)], "the oldest that has none");
    }
}

#[test]
fn unpinned_memory_begins_in_the_host_then_on_disk() {
    let unpinned = |mib| AllocationSpec { unpinned: true, part_size: Some(Bytes::mib(4)), ..spec(mib) };
    let mut world = three_tiers(4, 10, 64);
    let client = world.open_pinning("a");
    let id = world.allocate(client, unpinned(30)).expect("room below");
    assert_eq!(charged(&world), mib(4, 10, 20));
    let tiers: Vec<_> = parts(&world, id).iter().map(|part| tier(&world, *part)).collect();
    let (host, disk) = (Tier::Host, Tier::Disk);
    assert_eq!(tiers, [Tier::Device, host, disk, disk, disk, disk, disk, host], "the last one is smaller");
    let view = world.broker.show(&Target::Id(id)).expect("it is there");
    assert_eq!((view.resident, view.in_host, view.on_disk), (Bytes::mib(4), Bytes::mib(6), Bytes::mib(20)));
    assert_eq!(view.charged, Bytes::mib(30));
    let refused = world.allocate(client, unpinned(48)).expect_err("more than there is");
    let Refusal::QuotaLimit { tier: Tier::Disk, limit, charged: has, requested: asked, .. } = refused else {
        panic!("{refused:?}")
    };
    assert_eq!([limit, has, asked], [64, 20, 48].map(Bytes::mib), "the last tier that was tried");
    world.call(client, ClientRequest::FreeBatch(vec![id])).expect("freed");
    world.run_until_idle();
    assert_eq!(charged(&world), mib(0, 0, 0));
}

/// The driver does not read unwritten memory: the fake driver takes that for a bug.
#[test]
fn unwritten_part_on_disk_is_zeros_and_is_not_copied() {
    let mut world = three_tiers(4, 4, 16);
    let client = world.open_pinning("a");
    let other = world::moving::fill(&mut world, client, spec(4));
    let unpinned = AllocationSpec { unpinned: true, ..spec(4) };
    let [first, second] = [(); 2].map(|()| part(world.allocate(client, unpinned.clone()).expect("room"), 0));
    assert_eq!([first, second].map(|part| tier(&world, part)), [Tier::Disk; 2]);
    let copied = |world: &World| {
        world.notices.iter().filter(|it| matches!(it, Notice::Moved { copied: true, .. })).count()
    };
    world::moving::empty(&mut world, client, other);
    for (call, part) in [(1, first), (2, second), (3, first)] {
        assert_eq!(use_it(&mut world, client, call, part), 0);
    }
    assert_eq!(copied(&world), 0, "no session has written anything");
    world.write(client, first, 9);
    assert_eq!(use_it(&mut world, client, 4, second), 0);
    assert_eq!((tier(&world, first), copied(&world)), (Tier::Disk, 1));
    // Another tier has zeros for zeros too.
    assert!(matches!(send(&mut world, second, Tier::Disk), PartMove::Moved));
    assert!(matches!(send(&mut world, second, Tier::Host), PartMove::Moved));
    assert_eq!((tier(&world, second), charged(&world), copied(&world)), (Tier::Host, mib(0, 4, 4), 1));
    assert_eq!(use_it(&mut world, client, 5, second), 0);
    assert_eq!(use_it(&mut world, client, 6, first), 9);
}

/// A cached extent that others may reuse is released: it is no room for zeros.
#[test]
fn cached_extent_is_not_reused_for_an_unwritten_part() {
    let mut config = world::config(&[Bytes::mib(4)]);
    config.devices[0].disk = Bytes::mib(16);
    config.limits.cached_bytes_per_tenant_max = Bytes::mib(4);
    let mut world = World::with(config, Default::default());
    let client = world.open_pinning("a");
    let other = part(world.allocate(client, spec(4)).expect("room"), 0);
    world.write(client, other, 5);
    world.pin(client, other);
    let unpinned = AllocationSpec { unpinned: true, ..spec(4) };
    let zeros = part(world.allocate(client, unpinned).expect("room"), 0);
    world::moving::empty(&mut world, client, other.allocation);
    assert_eq!(use_it(&mut world, client, 1, zeros), 0);
}

#[test]
fn operator_moves_a_part_to_a_named_tier_and_frees_its_other_backing() {
    let (mut world, client, part) = one_written();
    let ways = [
        (Tier::Disk, mib(0, 0, 4)),
        (Tier::Host, mib(0, 4, 0)),
        (Tier::Device, mib(4, 4, 0)),
        (Tier::Disk, mib(0, 0, 4)),
    ];
    for (towards, should) in ways {
        assert!(matches!(send(&mut world, part, towards), PartMove::Moved), "to {towards:?}");
        assert_eq!((tier(&world, part), charged(&world)), (towards, should));
    }
    assert!(matches!(send(&mut world, part, Tier::Disk), PartMove::Moved), "it is there");
    assert_eq!((use_it(&mut world, client, 1, part), charged(&world)), (7, mib(4, 0, 4)));
    // Clean, but for the other tier that is no shadow.
    assert_eq!(clean(&world, "a"), Bytes::mib(4));
    assert!(matches!(evict(&mut world, part), PartMove::Moved));
    assert_eq!((use_it(&mut world, client, 2, part), charged(&world)), (7, mib(4, 4, 0)));
}

#[test]
fn full_tier_below_refuses_a_move() {
    let mut world = three_tiers(8, 8, 2);
    let client = world.open_pinning("a");
    let part = part(world.allocate(client, spec(4)).expect("room"), 0);
    world.write(client, part, 7);
    for towards in [Tier::Disk, Tier::Host, Tier::Disk] {
        let outcome = send(&mut world, part, towards);
        if towards == Tier::Host {
            assert!(matches!(outcome, PartMove::Moved));
            continue;
        }
        let PartMove::Refused { refusal } = outcome else { panic!("{outcome:?}") };
        assert!(matches!(*refusal, Refusal::DeviceFull { tier: Tier::Disk, .. }), "{refusal:?}");
    }
    assert_eq!((tier(&world, part), charged(&world)), (Tier::Host, mib(0, 4, 0)));
    assert_eq!(use_it(&mut world, client, 1, part), 7);
}

/// From the device beside backing in the host, from the host to the disk, and back.
const WAYS: [(Option<Tier>, Tier); 3] =
    [(None, Tier::Disk), (Some(Tier::Host), Tier::Disk), (Some(Tier::Disk), Tier::Host)];

fn begun(first: Option<Tier>, towards: Tier, steps: usize) -> (World, Client, PartRef, broker_core::CallId) {
    let (mut world, client, part) = one_written();
    if let Some(first) = first {
        send(&mut world, part, first);
    }
    let call = world.start_operator(None, to(part.allocation, towards));
    for _ in 0..steps {
        if !world.work_once() {
            world.answer_once(client.channel);
        }
    }
    (world, client, part, call)
}

#[test]
fn pin_of_a_part_between_two_tiers_below_gets_it() {
    for (first, towards) in WAYS {
        for steps in 0..7 {
            let (mut world, client, part, call) = begun(first, towards, steps);
            let said = format!("{first:?} to {towards:?} after {steps} steps");
            assert_eq!(use_it(&mut world, client, 1, part), 7, "{said}");
            let [device, host, disk] = charged(&world);
            assert_eq!((device, host.saturating_add(disk)), (Bytes::mib(4), Bytes::mib(4)), "{said}");
            assert!(world.replies.contains_key(&call), "{said}");
        }
    }
}

#[test]
fn part_freed_between_two_tiers_below_leaves_nothing() {
    for (first, towards) in WAYS {
        for steps in 0..7 {
            for ends in [false, true] {
                let (mut world, client, part, call) = begun(first, towards, steps);
                match ends {
                    true => world.end_process(client),
                    false => {
                        _ = world
                            .call(client, ClientRequest::FreeBatch(vec![part.allocation]))
                            .expect("freed")
                    }
                }
                world.run_until_idle();
                assert_eq!(charged(&world), mib(0, 0, 0), "{first:?} to {towards:?} after {steps} steps");
                assert!(world.replies.contains_key(&call), "{first:?} to {towards:?} after {steps} steps");
            }
        }
    }
}

#[test]
fn failed_copy_between_tiers_below_leaves_part_and_backing() {
    for (first, towards) in WAYS {
        let (mut world, client, part) = one_written();
        if let Some(first) = first {
            send(&mut world, part, first);
        }
        let before = (charged(&world), tier(&world, part));
        world.fail_copies.push_back(Some("a platter cracked".to_owned()));
        let outcome = send(&mut world, part, towards);
        assert!(
            matches!(&outcome, PartMove::Failed { problem } if problem == "a platter cracked"),
            "{outcome:?}"
        );
        assert_eq!((charged(&world), tier(&world, part)), before, "{first:?} to {towards:?}");
        world.fail_creates.push_back(Some(broker_core::CreateError::OutOfDisk("it is full".to_owned())));
        let outcome = send(&mut world, part, towards);
        let PartMove::Refused { refusal } = outcome else { panic!("{outcome:?}") };
        assert!(
            matches!(&*refusal, Refusal::TierExhausted { tier, problem, .. } if *tier == towards && problem == "it is full"),
            "{refusal:?}"
        );
        assert_eq!((charged(&world), tier(&world, part)), before, "{first:?} to {towards:?}");
        assert_eq!(use_it(&mut world, client, 1, part), 7);
    }
}

#[test]
fn part_written_back_to_disk_leaves_without_a_copy() {
    let mut world = three_tiers(8, 0, 8);
    let client = world.open_pinning("a");
    let part = part(world.allocate(client, spec(4)).expect("room"), 0);
    world.write(client, part, 7);
    assert!(matches!(write_back(&mut world, part), PartMove::Moved));
    let told =
        world.notices.iter().find(|notice| matches!(notice, Notice::WrittenBack { tier: Tier::Disk, .. }));
    assert!(told.is_some());
    send(&mut world, part, Tier::Disk);
    assert!(
        world.notices.iter().any(|it| matches!(it, Notice::Moved { tier: Tier::Disk, copied: false, .. }))
    );
    assert_eq!(use_it(&mut world, client, 1, part), 7);
}

/// A write-back to the host is running when an operator moves the part to disk.
#[test]
fn write_back_and_move_to_another_tier_end_well_in_any_order() {
    for steps in 0..8 {
        let (mut world, client, part) = one_written();
        world.start_operator(None, world::writing_back::back(part.allocation));
        for _ in 0..steps {
            if !world.work_once() {
                world.answer_once(client.channel);
            }
        }
        let outcome = send(&mut world, part, Tier::Disk);
        world.run_until_idle();
        if matches!(outcome, PartMove::Moved) {
            assert_eq!(
                (tier(&world, part), charged(&world)),
                (Tier::Disk, mib(0, 0, 4)),
                "after {steps} steps"
            );
        }
        assert_eq!(use_it(&mut world, client, 1, part), 7, "after {steps} steps");
    }
}

#[test]
fn discardable_part_is_dropped_and_has_nothing_below() {
    let mut world = three_tiers(8, 0, 8);
    let client = world.open_pinning("a");
    let id: AllocationId =
        world.allocate(client, AllocationSpec { discardable: true, ..spec(4) }).expect("room");
    let part = part(id, 0);
    world.write(client, part, 7);
    assert!(matches!(send(&mut world, part, Tier::Disk), PartMove::Moved));
    assert_eq!(charged(&world), mib(0, 0, 0));
    assert!(world.broker.show(&Target::Id(id)).expect("there").parts[0].dropped);
    assert_eq!(use_it(&mut world, client, 1, part), 0);
}

#[test]
fn damaged_part_on_disk_is_lost_for_its_pins_alone() {
    let mut world = three_tiers(8, 0, 16);
    let client = world.open_pinning("a");
    let id =
        world.allocate(client, AllocationSpec { part_size: Some(Bytes::mib(4)), ..spec(8) }).expect("room");
    let both = parts(&world, id);
    let [lost, whole] = both[..] else { panic!("two parts") };
    world.write(client, lost, 7);
    world.write(client, whole, 8);
    world.operate(to(id, Tier::Disk)).expect("they leave");
    damage(&mut world, 7);
    for call in 1..3 {
        world.pin_call(client, call, &[lost]);
        world.run_until_idle();
        let refused = answer(&world, client, call).cloned().flatten().expect("it cannot be had");
        assert!(
            matches!(&refused, Refusal::ContentLost { allocation, part, .. }
            if (*allocation, *part) == (id, lost.part)),
            "{refused:?}"
        );
        assert_eq!(refused.reason(), vramd_types::Reason::ContentLost);
        world.frame(client, ClientFrame::PinEnded { call });
    }
    let PartMove::Refused { refusal } = moved_of(&mut world, lost, Tier::Device) else {
        panic!("it cannot be had")
    };
    assert!(matches!(*refusal, Refusal::ContentLost { .. }), "{refusal:?}");
    assert_eq!((use_it(&mut world, client, 3, whole), charged(&world)), (8, mib(4, 0, 8)));
    world.call(client, ClientRequest::FreeBatch(vec![id])).expect("freed");
    world.run_until_idle();
    assert_eq!(charged(&world), mib(0, 0, 0));
}

/// Damages everything of an allocation that lies on disk and was written.
fn damage(world: &mut World, written: u64) {
    let extent = world.contents.iter().find(|(_, content)| **content == written).map(|(extent, _)| *extent);
    world.damaged.insert(extent.expect("it was copied"));
}

/// Of two sealed parts on disk the first is damaged, which another session attaches without `unheld`.
#[test]
fn attach_waiter_of_a_damaged_part_is_told_at_once() {
    let mut world = three_tiers(8, 0, 16);
    let writer = world.open_pinning("a");
    let weights = AllocationSpec { readers: vec!["b".to_owned()], ..named(8, "weights") };
    let id = world.allocate(writer, weights).expect("room");
    let [lost, whole] = parts(&world, id)[..] else { panic!("two parts") };
    world.write(writer, lost, 7);
    world.write(writer, whole, 8);
    world.call(writer, ClientRequest::Seal(id)).expect("sealed");
    world.run_until_idle();
    world.operate(to(id, Tier::Disk)).expect("they leave");
    damage(&mut world, 7);
    let reader = world.open_pinning("b");
    world.call(reader, ClientRequest::Attach(Target::Id(id))).expect("attached");
    world.run_until_idle();
    assert_eq!((&world.lost[..], world.maps(reader, whole)), (&[(reader.channel, lost)][..], true));
    let failed =
        |world: &World| world.notices.iter().filter(|it| matches!(it, Notice::MoveFailed { .. })).count();
    assert!(world.broker.waits().is_empty() && failed(&world) == 1, "{:?}", world.broker.waits());
    for _ in 0..3 {
        let next = Limits::default().survey_interval.as_micros();
        world.advance(u64::try_from(next).expect("it is short"));
        world.run_until_idle();
    }
    assert_eq!(failed(&world), 1, "no session waits for it");
    world.damaged.clear();
    assert_eq!(use_it(&mut world, reader, 1, lost), 7, "the next reading may go well");
}

/// A session that wants it meanwhile is told, as if it were on its way to the device.
#[test]
fn pin_of_a_part_found_damaged_on_its_way_to_the_host_is_refused() {
    let mut world = three_tiers(8, 8, 16);
    let client = world.open_pinning("a");
    let part = part(world.allocate(client, spec(4)).expect("room"), 0);
    world.write(client, part, 7);
    assert!(matches!(send(&mut world, part, Tier::Disk), PartMove::Moved));
    damage(&mut world, 7);
    world.start_operator(None, to(part.allocation, Tier::Host));
    // The host has its extent, and the copy is under way.
    assert!(world.work_once());
    world.pin_call(client, 1, &[part]);
    world.run_until_idle();
    let refused = answer(&world, client, 1).cloned().flatten();
    assert!(matches!(refused, Some(Refusal::ContentLost { .. })), "{refused:?}");
}

#[test]
fn seal_of_damaged_memory_names_the_lost_part() {
    let mut world = three_tiers(8, 0, 16);
    let client = world.open_pinning("a");
    let id = world.allocate(client, spec(8)).expect("room");
    let [whole, lost] = parts(&world, id)[..] else { panic!("two parts") };
    world.write(client, whole, 7);
    world.write(client, lost, 8);
    world.operate(to(id, Tier::Disk)).expect("they leave");
    damage(&mut world, 8);
    let refused = world.call(client, ClientRequest::Seal(id)).expect_err("it cannot be hashed");
    let facts = refused.facts();
    assert!(matches!(&refused, Refusal::ContentLost { allocation, .. } if *allocation == id), "{refused:?}");
    assert_eq!(facts, [("allocation", id.to_string()), ("part_index", "1".to_owned())]);
    assert_eq!(use_it(&mut world, client, 1, whole), 7, "it is open still");
}

/// One part of an allocation.
fn moved_of(world: &mut World, part: PartRef, tier: Tier) -> PartMove {
    let (target, parts) = (Target::Id(part.allocation), vec![part.part]);
    moved(world.operate(OperatorRequest::MoveParts { target, parts, tier }))
}

/// Its backing would have been reserved again, in the tier that it leaves for, while it leaves.
#[test]
fn failed_backing_is_not_missed_by_a_part_leaving_for_another_tier() {
    for (disk, fails_both) in [(8, false), (4, false), (8, true), (4, true)] {
        let mut world = three_tiers(8, 8, disk);
        let client = world.open_pinning("a");
        let part = part(world.allocate(client, spec(4)).expect("room"), 0);
        world.write(client, part, 7);
        let (guarantee, limit) = (None, Some(Quantity::Bytes(Bytes::mib(2))));
        let (tenant, device, tier_of) = ("a".to_owned(), DeviceSelector::All, Tier::Host);
        world.start_operator(None, world::writing_back::back(part.allocation));
        world.start_operator(
            None,
            OperatorRequest::SetQuota { tenant, device, tier: tier_of, guarantee, limit },
        );
        world.start_operator(None, to(part.allocation, Tier::Disk));
        // The quota is lowered first: when memory cannot be created the host has no more.
        let quotas = world.work.iter().position(|it| matches!(it, broker_core::Command::StoreQuotas(_)));
        let quotas = world.work.remove(quotas.expect("it is stored")).expect("there");
        world.work.push_front(quotas);
        world.fail_creates.push_back(Some(broker_core::CreateError::Failed("no such page".to_owned())));
        if fails_both {
            world.fail_creates.push_back(Some(broker_core::CreateError::OutOfDisk("it is full".to_owned())));
        }
        world.run_until_idle();
        let should = match fails_both {
            true => (Tier::Device, mib(4, 0, 4)),
            false => (Tier::Disk, mib(0, 0, 4)),
        };
        assert_eq!((tier(&world, part), charged(&world)), should, "{disk} MiB on disk, {fails_both}");
        assert_eq!(use_it(&mut world, client, 1, part), 7);
    }
}
