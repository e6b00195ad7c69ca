//! Owners say which of their parts leave a device first, among the parts of their tenant.

use crate::world::{
    Client, World,
    moving::{parts, tiers},
    spec,
};
use broker_core::{
    Advice, AllocationSpec, ClientRequest, MemoryClass, PartRef, PartSpan, Retention, Target, Tier,
};
use vramd_types::Bytes;

/// That many idle parts of 4 MiB on their device.
fn idle(world: &mut World, tenant: &str, count: u32) -> (Client, Vec<PartRef>) {
    let client = world.open_pinning(tenant);
    let spec = AllocationSpec { part_size: Some(Bytes::mib(4)), ..spec(4 * count) };
    let id = world.allocate(client, spec).expect("room");
    world.advance(1000);
    let parts = parts(world, id);
    (client, parts)
}

fn advise(world: &mut World, client: Client, part: PartRef, change: Retention) {
    let parts = Some(PartSpan { first: part.part, count: 1 });
    let advice = Advice::Retain { parts, change };
    world.call(client, ClientRequest::Advise(part.allocation, advice)).expect("it is its own");
}

/// Another program needs 4 MiB.
fn press(world: &mut World) {
    let client = world.open_pinning("other");
    world.allocate(client, spec(4)).expect("room can be made");
    world.run_until_idle();
}

fn away(world: &World, parts: &[PartRef]) -> Vec<usize> {
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
