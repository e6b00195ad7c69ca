//! The line of waiters for room: which waiter blocks which.

use std::time::Duration;

use crate::world::{
    Client, World, config,
    moving::{fill, parts, tiers},
    revoking::{answer, part},
    set_quota, spec,
};
use broker_core::{
    AllocationSpec, CallId, ClientFrame, ClientRequest, Notice, PartRef, Refusal, StoredQuotas, Target, Tier,
};
use vramd_types::Bytes;

/// This many parts of 4 MiB, which are mapped when they are pinned.
fn unpinned(world: &mut World, client: Client, count: u32) -> Vec<PartRef> {
    let spec = AllocationSpec { unpinned: true, part_size: Some(Bytes::mib(4)), ..spec(4 * count) };
    let id = world.allocate(client, spec).expect("room in the host");
    parts(world, id)
}

/// Two parts of another tenant, its limit, are pinned on a device of this many MiB; it waits for this many
/// others.
fn at_its_limit(device: u32, waiting: u32) -> (World, Client, [PartRef; 2]) {
    let mut world = tiers(device, 1024);
    let limited = world.open_pinning("limited");
    world.operate(set_quota("limited", 0, 8)).expect("nothing is held");
    let own = fill(&mut world, limited, spec(8));
    let own = parts(&world, own);
    for (call, part) in (1..).zip(unpinned(&mut world, limited, waiting)) {
        world.pin_call(limited, call, &[part]);
    }
    world.run_until_idle();
    assert_eq!(answer(&world, limited, 1), None, "it is at its limit");
    (world, limited, [own[0], own[1]])
}

#[test]
fn waiters_at_their_tenants_limit_keep_no_other_tenant_waiting() {
    let (mut world, limited, _) = at_its_limit(64, 100);
    let other = world.open_pinning("other");
    // With room, and where some has to be made.
    for (call, part) in (1..).zip(unpinned(&mut world, other, 30)) {
        world.pin_call(other, call, &[part]);
        world.run_until_idle();
        assert_eq!(answer(&world, other, call), Some(&None), "part {call}");
        world.frame(other, ClientFrame::PinEnded { call });
    }
    assert_eq!(answer(&world, limited, 1), None);
}

#[test]
fn extents_are_handed_over_behind_waiters_at_their_limit() {
    let (mut world, ..) = at_its_limit(16, 1);
    let other = world.open_pinning("other");
    for (call, part) in (1..).zip(unpinned(&mut world, other, 6)) {
        world.pin_call(other, call, &[part]);
        world.run_until_idle();
        assert_eq!(answer(&world, other, call), Some(&None), "part {call}");
        world.frame(other, ClientFrame::PinEnded { call });
    }
    assert!(world.notices.iter().any(|notice| matches!(notice, Notice::Reused { .. })));
}

#[test]
fn waiter_at_its_limit_is_next_once_the_limit_allows_it() {
    let (mut world, limited, [own, _]) = at_its_limit(16, 1);
    let other = world.open_pinning("other");
    let stream = unpinned(&mut world, other, 12);
    let mut calls = 0;
    let mut ask = |world: &mut World| {
        calls += 1;
        let part = stream[usize::try_from(calls).expect("few") % stream.len()];
        world.pin_call(other, calls, &[part]);
        for ended in (1..calls).rev().take(4) {
            if answer(world, other, ended) == Some(&None) {
                world.frame(other, ClientFrame::PinEnded { call: ended });
            }
        }
    };
    for _ in 0..30 {
        ask(&mut world);
        world.run_until_idle();
    }
    assert_eq!(answer(&world, limited, 1), None);
    world.unpin(limited, own);
    world.harvest(limited, own);
    for _ in 0..30 {
        ask(&mut world);
        world.work_once();
        for channel in world.inboxes.keys().copied().collect::<Vec<_>>() {
            world.answer_once(channel);
        }
    }
    assert_eq!(answer(&world, limited, 1), Some(&None), "others did not ask first");
}

#[test]
fn more_waiters_at_their_limit_than_the_lookahead_are_all_served() {
    let mut world = tiers(1024, 1024);
    let limited = world.open_pinning("limited");
    world.operate(set_quota("limited", 0, 200)).expect("nothing is held");
    let (idle, wanted) = (unpinned(&mut world, limited, 50), unpinned(&mut world, limited, 50));
    world.pin_call(limited, 1, &idle);
    world.run_until_idle();
    world.frame(limited, ClientFrame::PinEnded { call: 1 });
    for (call, part) in (2..).zip(&wanted) {
        world.pin_call(limited, call, &[*part]);
    }
    world.run_until_idle();
    let served = (2..52).filter(|call| answer(&world, limited, *call) == Some(&None)).count();
    assert_eq!(served, 50, "every one of the idle parts can leave for one of them");
}

fn on(device: u16, mib: u32) -> AllocationSpec {
    AllocationSpec { device: Some(device.to_string()), ..spec(mib) }
}

/// A session without pin words has all of the first device. On each other one lie two idle parts of 4 MiB.
fn first_in_use<const OTHERS: usize>() -> (World, [[PartRef; 2]; OTHERS]) {
    let mut config = config(&vec![Bytes::mib(8); OTHERS + 1]);
    for device in &mut config.devices {
        device.host = Bytes::mib(16);
    }
    let mut world = World::with(config, StoredQuotas::default());
    let standing = world.open("standing");
    world.allocate(standing, on(0, 8)).expect("room");
    let client = world.open_pinning("idle");
    let idle = (1..).map(|device| {
        let id = world.allocate(client, on(device, 8)).expect("room");
        [0, 1].map(|at| part(id, at))
    });
    let idle: Vec<_> = idle.take(OTHERS).collect();
    (world, idle.try_into().expect("as many"))
}

/// A batch of 4 MiB on each of these devices.
fn batch(world: &mut World, tenant: &str, devices: &[u16], wait: Duration) -> CallId {
    let client = world.open_pinning(tenant);
    let items = devices.iter().map(|device| on(*device, 4)).collect();
    let call = world.start(client, None, ClientRequest::AllocateBatch { items, wait });
    world.run_until_idle();
    call
}

const LONG: Duration = Duration::from_secs(9);

fn tiers_of<const COUNT: usize>(world: &World, parts: [PartRef; COUNT]) -> [Tier; COUNT] {
    parts.map(|part| {
        let view = world.broker.show(&Target::Id(part.allocation)).expect("it is there");
        view.parts.iter().find(|shown| shown.index == part.part).expect("it has this part").tier
    })
}

#[test]
fn batch_without_a_wait_is_refused_behind_one_that_is_short_elsewhere() {
    let (mut world, [idle]) = first_in_use();
    let first = batch(&mut world, "a", &[0, 1], LONG);
    let second = batch(&mut world, "b", &[1], Duration::ZERO);
    let answer = world.replies.get(&second);
    assert!(matches!(answer, Some(Err(Refusal::DeviceFull { .. }))), "{answer:?}");
    assert!(!world.replies.contains_key(&first));
    assert_eq!(tiers_of(&world, idle), [Tier::Device; 2]);
}

#[test]
fn batch_behind_another_keeps_none_waiting_on_its_other_device() {
    let (mut world, [idle]) = first_in_use();
    let behind = [&[0u16][..], &[0, 1]].map(|devices| batch(&mut world, "a", devices, LONG));
    let last = batch(&mut world, "b", &[1], Duration::ZERO);
    let answer = world.replies.get(&last);
    assert!(matches!(answer, Some(Ok(_))), "{answer:?}");
    assert!(!behind.iter().any(|call| world.replies.contains_key(call)));
    assert_eq!(tiers_of(&world, idle), [Tier::Host, Tier::Device], "one left for it");
}

#[test]
fn nothing_leaves_for_a_batch_behind_one_that_is_short_elsewhere() {
    let (mut world, [_, idle]) = first_in_use();
    batch(&mut world, "a", &[0, 1], LONG);
    batch(&mut world, "b", &[1, 2], LONG);
    assert_eq!(tiers_of(&world, idle), [Tier::Device; 2]);
}
