//! Refusals on a full device: no request is refused for the level of pressure. A request is refused if it needs
//! room that is guaranteed to others, or does not wait where others do.

use std::time::Duration;

use crate::world::{
    Client, World, config,
    pressing::{SECOND, fill, levels, pass_time, tier},
    set_quota, spec,
};
use broker_core::{
    AllocationSpec, CallId, ClientRequest, Completion, Event, Notice, Pressure, Refusal, Reply, StoredQuotas,
    Tier,
};
use vramd_types::{Bytes, DeviceIndex};

/// Longer than any wait here lasts.
const LONG: Duration = Duration::from_secs(600);

/// A device of a hundred parts, of which one is one percent, and memory of the host for as many.
fn node() -> World {
    let mut config = config(&[Bytes::mib(200)]);
    (config.devices[0].host, config.part_size) = (Bytes::mib(200), Bytes::mib(2));
    World::with(config, StoredQuotas::default())
}

/// This many parts, which their session goes on using.
fn pinned(world: &mut World, client: Client, count: u64) -> Vec<broker_core::PartRef> {
    let parts = fill(world, client, count);
    parts.iter().for_each(|part| world.pin(client, *part));
    parts
}

/// This many percent of the device.
fn percent(count: u32) -> AllocationSpec {
    spec(count * 2)
}

#[track_caller]
fn waiting(world: &mut World, client: Client, count: u32) -> CallId {
    let request = ClientRequest::AllocateBatch { items: vec![percent(count)], wait: LONG };
    let call = world.start(client, None, request);
    world.run_until_idle();
    assert!(!is_answered(world, call), "there is no room for it");
    call
}

fn is_answered(world: &World, call: CallId) -> bool {
    world.replies.contains_key(&call)
}

fn is_served(world: &World, call: CallId) -> bool {
    matches!(world.replies.get(&call), Some(Ok(Reply::Allocated(_))))
}

/// From now on other programs take this much of the device.
fn others_take(world: &mut World, outside: Bytes) {
    world.other_programs = outside;
    world.event(Event::Completion(Completion::Surveyed {
        device: DeviceIndex(0),
        unbrokered: outside,
        contexts: 0,
        host_missing: Bytes::ZERO,
    }));
    world.run_until_idle();
}

/// A request that does not wait: room guaranteed to others is not free for it.
#[track_caller]
fn is_refused(world: &mut World, client: Client, count: u32) {
    let refused = world.allocate(client, percent(count)).expect_err("it does not wait");
    let (free, asked) = (Bytes::ZERO, Bytes::mib(count * 2));
    let Refusal::DeviceFull { tier: Tier::Device, free: found, requested, .. } = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((found, requested), (free, asked));
}

#[test]
fn waiter_within_its_guarantee_is_first_at_critical_pressure() {
    let mut world = node();
    let [a, b, c] = ["a", "b", "c"].map(|tenant| world.open_pinning(tenant));
    world.operate(set_quota("b", 6, 200)).expect("nothing is held");
    let mut used = pinned(&mut world, a, 95);
    assert_eq!(levels(&mut world, Tier::Device).last(), Some(&Pressure::Critical));
    used.extend(pinned(&mut world, a, 1));

    // Not all of the guarantee of b exists now, and no session gives anything up: of its three percent there
    // are two.
    others_take(&mut world, Bytes::mib(4));
    world.out_of_memory = usize::MAX;
    let guaranteed = waiting(&mut world, b, 3);
    for _ in 0..10 {
        pass_time(&mut world, SECOND * 5);
    }
    assert!(!is_answered(&world, guaranteed), "it waits as long as it said");
    for other in [a, c] {
        is_refused(&mut world, other, 1);
    }
    let behind = waiting(&mut world, c, 1);
    world.out_of_memory = 0;
    world.unpin(a, used[0]);
    world.harvest(a, used[0]);
    pass_time(&mut world, SECOND * 5);
    assert!(is_served(&world, guaranteed) && !is_answered(&world, behind), "it is first");
    assert_eq!((tier(&world, used[0]), world.charged_to("b")), (Tier::Host, Bytes::mib(6)));
    is_refused(&mut world, a, 1);

    others_take(&mut world, Bytes::ZERO);
    assert!(is_served(&world, behind), "it came before requests that do not wait");
    world.allocate(a, percent(1)).expect("no request waits, and it fits, though that is all there is");
    let falls = |notice: &Notice| matches!(notice, Notice::PressureChanged { from: Pressure::Critical, .. });
    assert!(!world.notices.iter().any(falls), "it was critical all along");
}
