//! The line of waiters for room: which waiter blocks which.

use crate::world::{
    Client, World,
    moving::{fill, parts, tiers},
    revoking::answer,
    set_quota, spec,
};
use broker_core::{AllocationSpec, ClientFrame, Notice, PartRef};
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
