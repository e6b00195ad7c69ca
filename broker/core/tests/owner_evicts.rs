//! An owner has its memory leave the device, although no client needs the room.

use crate::world::{
    Client, World,
    moving::{moved, one_written, tiers},
    pressing::on_device,
    spec,
};
use broker_core::{ClientRequest, PartMove, PartRef, Refusal, Reply, Tier};
use vramd_types::AllocationId;

fn evict(world: &mut World, by: Client, id: AllocationId, tier: Tier) -> Result<Reply, Refusal> {
    let reply = world.call(by, ClientRequest::Evict(id, tier));
    world.run_until_idle();
    reply
}

fn fetch(world: &mut World, client: Client, part: PartRef) {
    world.pin_call(client, 1, &[part]);
    world.run_until_idle();
}

#[test]
fn bytes_leave_and_come_back_with_the_next_pin() {
    let (mut world, client, part) = one_written();
    let outcome = moved(evict(&mut world, client, part.allocation, Tier::Host));
    assert!(matches!(outcome, PartMove::Moved), "{outcome:?}");
    assert_eq!((on_device(&world, &[part]), world.maps(client, part)), (0, false));
    fetch(&mut world, client, part);
    assert_eq!(world.read(client, part), 7);
}

#[test]
fn pinned_part_stays() {
    let (mut world, client, part) = one_written();
    world.pin(client, part);
    let outcome = moved(evict(&mut world, client, part.allocation, Tier::Host));
    assert!(matches!(outcome, PartMove::Pinned { .. }), "{outcome:?}");
    assert_eq!(on_device(&world, &[part]), 1);
}

#[test]
fn other_tenants_may_not() {
    let (mut world, _, part) = one_written();
    let other = world.open_pinning("b");
    let refused = evict(&mut world, other, part.allocation, Tier::Host);
    assert!(
        matches!(refused, Err(Refusal::NotOwner { .. } | Refusal::AllocationNotFound { .. })),
        "{refused:?}"
    );
    assert_eq!(on_device(&world, &[part]), 1);
}

#[test]
fn tier_must_lie_below_and_exist() {
    let mut world = tiers(8, 8);
    let client = world.open_pinning("a");
    let id = world.allocate(client, spec(4)).expect("room");
    let refused = evict(&mut world, client, id, Tier::Device);
    assert!(matches!(refused, Err(Refusal::RequestInvalid { field: "tier", .. })), "{refused:?}");
    let refused = evict(&mut world, client, id, Tier::Disk);
    assert!(matches!(refused, Err(Refusal::TierUnsupported { tier: Tier::Disk })), "{refused:?}");
}
