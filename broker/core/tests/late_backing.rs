//! Parts for which there were no bytes below their device get some when they come free, and can leave from then on.

use crate::world::{
    Client, World,
    moving::{charged, evict, fill, mib, parts, tier, tiers},
    revoking::{answer, part},
    spec,
};
use broker_core::{
    AllocationSpec, ClientRequest, DeviceSelector, Notice, OperatorRequest, PartMove, PartRef, Tier,
    limits::BACKINGS_PER_EVENT,
};
use vramd_types::{AllocationId, Bytes, Quantity};

fn limit_below(world: &mut World, tenant: &str, mib: u32) {
    let (guarantee, limit) = (None, Some(Quantity::Bytes(Bytes::mib(mib))));
    let (tenant, device, tier) = (tenant.to_owned(), DeviceSelector::All, Tier::Host);
    world.operate(OperatorRequest::SetQuota { tenant, device, tier, guarantee, limit }).expect("set");
}

/// The parts that got backing late, in that order.
fn backed(world: &World) -> Vec<PartRef> {
    let each = world.notices.iter().filter_map(|notice| match notice {
        Notice::Backed { part, .. } => Some(*part),
        _ => None,
    });
    each.collect()
}

/// A device of 16 MiB with 8 below, all of which "a" has; and parts of "b" that have nothing there.
fn without_backing() -> (World, Client, AllocationId, Client, AllocationId) {
    let mut world = tiers(16, 8);
    let [first, second] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let all = world.allocate(first, spec(8)).expect("room");
    let none = world.allocate(second, spec(8)).expect("room");
    assert_eq!(charged(&world), mib(16, 8));
    (world, first, all, second, none)
}

#[test]
fn freed_backing_is_reserved_for_parts_without_one_which_can_leave_then() {
    let (mut world, first, all, second, none) = without_backing();
    world.allocate(first, spec(12)).expect_err("nothing of the other's can leave");
    world.call(first, ClientRequest::FreeBatch(vec![all])).expect("freed");
    world.run_until_idle();
    assert_eq!((charged(&world), backed(&world)), (mib(8, 8), parts(&world, none)));
    let [written, _] = parts(&world, none)[..] else { panic!("two parts") };
    world.write(second, written, 7);
    world.allocate(first, spec(16)).expect("both have left");
    let lie = parts(&world, none).into_iter().all(|part| tier(&world, part) == Tier::Host);
    assert!(lie && charged(&world) == mib(16, 8));
}

#[test]
fn raised_limit_gives_backing_to_the_oldest_parts() {
    let mut world = tiers(16, 16);
    let client = world.open_pinning("a");
    limit_below(&mut world, "a", 4);
    let ids = [(); 4].map(|()| part(world.allocate(client, spec(4)).expect("room"), 0));
    assert_eq!(charged(&world), mib(16, 4));
    limit_below(&mut world, "a", 12);
    assert_eq!((charged(&world), backed(&world)), (mib(16, 12), ids[1..3].to_vec()));
    limit_below(&mut world, "a", 16);
    assert_eq!((charged(&world), backed(&world)), (mib(16, 16), ids[1..].to_vec()));
}

#[test]
fn late_backing_stays_within_each_tenants_limit() {
    let mut world = tiers(16, 8);
    let [filler, bounded, free] = ["a", "b", "c"].map(|tenant| world.open_pinning(tenant));
    limit_below(&mut world, "b", 4);
    let all = world.allocate(filler, spec(8)).expect("room");
    let of_bounded = world.allocate(bounded, spec(8)).expect("room");
    let of_bounded = parts(&world, of_bounded);
    world.call(filler, ClientRequest::FreeBatch(vec![all])).expect("freed");
    let younger = part(world.allocate(free, spec(4)).expect("room"), 0);
    world.run_until_idle();
    assert_eq!(backed(&world), of_bounded[..1].to_vec());
    let moved = evict(&mut world, younger);
    assert!(matches!(moved, PartMove::Moved), "the rest is for the next: {moved:?}");
}

#[test]
fn waiter_gets_room_once_a_victim_has_backing() {
    let mut world = tiers(8, 16);
    let [first, second] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    limit_below(&mut world, "b", 0);
    let away = part(world.allocate(first, spec(4)).expect("room"), 0);
    world.write(first, away, 7);
    evict(&mut world, away);
    fill(&mut world, first, spec(4));
    let idle = part(world.allocate(second, spec(4)).expect("room"), 0);
    world.pin_call(first, 1, &[away]);
    world.run_until_idle();
    assert_eq!((answer(&world, first, 1), tier(&world, idle)), (None, Tier::Device));
    limit_below(&mut world, "b", 4);
    assert_eq!((answer(&world, first, 1), world.read(first, away)), (Some(&None), 7));
    assert_eq!(tier(&world, idle), Tier::Host);
}

#[test]
fn late_backing_is_reserved_for_a_bounded_number_at_a_time() {
    const PARTS: u32 = 600;
    let mut world = tiers(2 * 2 * PARTS, 2 * PARTS);
    let [first, second] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let small = || AllocationSpec { part_size: Some(Bytes::mib(2)), ..spec(2 * PARTS) };
    let all = world.allocate(first, small()).expect("room");
    let none = world.allocate(second, small()).expect("room");
    limit_below(&mut world, "b", 0);
    world.call(first, ClientRequest::FreeBatch(vec![all])).expect("freed");
    assert_eq!(backed(&world), []);
    limit_below(&mut world, "b", 2 * PARTS);
    assert_eq!(backed(&world).len(), BACKINGS_PER_EVENT);
    world.advance(1);
    assert_eq!(backed(&world), parts(&world, none));
}
