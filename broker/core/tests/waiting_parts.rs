//! Parts that wait for room on their devices: whatever makes some, or ends another's wait, is their turn.

use crate::world;

use crate::world::{
    Client, World, config,
    moving::{charged, empty, evict, fill, mib, tiers},
    persistent,
    revoking::{answer, part},
    spec,
};
use broker_core::{
    AllocationSpec, ClientFrame, ClientRequest, CreateError, Limits, PartRef, Refusal, StoredQuotas, Target,
};
use vramd_types::{AllocationId, Bytes};

/// A part of 4 MiB in the host's memory that holds 7, and a device of 8 MiB that is filled.
fn away_and_filled(mut world: World) -> (World, Client, PartRef, AllocationId) {
    let client = world.open_pinning("a");
    let part = part(world.allocate(client, spec(4)).expect("room"), 0);
    world.write(client, part, 7);
    evict(&mut world, part);
    let filler = fill(&mut world, client, spec(8));
    world.pin_call(client, 1, &[part]);
    world.run_until_idle();
    assert_eq!(answer(&world, client, 1), None, "there is no room");
    (world, client, part, filler)
}

#[test]
fn cached_extents_are_released_for_a_waiter() {
    let mut config = config(&[Bytes::mib(8)]);
    config.devices[0].host = Bytes::mib(8);
    config.limits.cached_bytes_per_tenant_max = Bytes::mib(64);
    let (mut world, client, part, filler) = away_and_filled(World::with(config, StoredQuotas::default()));
    empty(&mut world, client, filler);
    assert_eq!((answer(&world, client, 1), world.read(client, part)), (Some(&None), 7));
}

#[test]
fn failed_creation_leaves_its_room_to_the_waiter() {
    let mut world = tiers(8, 8);
    let client = world.open_pinning("a");
    let part = part(world.allocate(client, spec(4)).expect("room"), 0);
    evict(&mut world, part);
    let call = world.start(client, None, ClientRequest::allocate(vec![spec(8)]));
    world.pin_call(client, 1, &[part]);
    assert_eq!((answer(&world, client, 1), charged(&world)), (None, mib(8, 8)));
    let failure = || Some(CreateError::Failed("no".to_owned()));
    world.fail_creates.extend([failure(), failure()]);
    world.run_until_idle();
    assert!(matches!(world.replies[&call], Err(Refusal::DriverFailed { .. })));
    assert_eq!((answer(&world, client, 1), charged(&world)), (Some(&None), mib(4, 4)));
}

#[test]
fn waiter_behind_one_that_leaves_is_next() {
    let mut world = tiers(8, 16);
    let client = world.open_pinning("a");
    let large = AllocationSpec { part_size: Some(Bytes::mib(8)), ..spec(8) };
    let large = part(world.allocate(client, large).expect("room"), 0);
    evict(&mut world, large);
    let small = part(world.allocate(client, spec(4)).expect("room"), 0);
    evict(&mut world, small);
    let other = world.open_pinning("b");
    fill(&mut world, other, spec(4));
    world.pin_call(client, 1, &[large]);
    world.pin_call(client, 2, &[small]);
    world.run_until_idle();
    assert_eq!(
        (answer(&world, client, 1), answer(&world, client, 2)),
        (None, None),
        "in the order of asking"
    );
    world.frame(client, ClientFrame::PinEnded { call: 1 });
    world.run_until_idle();
    assert_eq!(answer(&world, client, 2), Some(&None));
}

/// Persistent memory in the host's, and another session of its tenant.
fn weights_away(extents_max: usize) -> (World, Client, PartRef) {
    let mut config = config(&[Bytes::mib(16)]);
    config.devices[0].host = Bytes::mib(8);
    config.limits.extents_max = extents_max;
    let mut world = World::with(config, StoredQuotas::default());
    let client = world.open_pinning("a");
    let part = part(world.sealed(client, persistent(4, "weights")), 0);
    evict(&mut world, part);
    world.end_process(client);
    let reader = world.open_pinning("a");
    (world, reader, part)
}

fn attach(world: &mut World, reader: Client) {
    world.call(reader, ClientRequest::Attach(Target::Name("weights".to_owned()))).expect("attached");
    world.run_until_idle();
}

#[test]
fn attach_waiter_stays_while_there_are_too_many_extents() {
    let (mut world, reader, part) = weights_away(3);
    let filler = world.allocate(reader, spec(8)).expect("room");
    attach(&mut world, reader);
    assert!(!world.maps(reader, part));
    world.call(reader, ClientRequest::FreeBatch(vec![filler])).expect("freed");
    world.run_until_idle();
    assert!(world.maps(reader, part));
}

/// And not at once: a fault that all requests share would repeat as fast as the driver reports it.
#[test]
fn failed_fetch_is_tried_again_after_a_survey() {
    let (mut world, reader, part) = weights_away(100);
    world.fail_copies.push_back(Some("a cable was pulled".to_owned()));
    attach(&mut world, reader);
    assert!(!world.maps(reader, part));
    let next = Limits::default().survey_interval.as_micros();
    world.advance(u64::try_from(next).expect("it is short"));
    world.run_until_idle();
    assert!(world.maps(reader, part));
}

#[test]
fn waiter_within_its_guarantee_passes_those_without_one() {
    let mut world = tiers(8, 16);
    let [lender, owner] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    world.operate(world::set_quota("b", 4, 8)).expect("there is room for it");
    let away = |world: &mut World, client| {
        let part = part(world.allocate(client, spec(4)).expect("room"), 0);
        evict(world, part);
        part
    };
    let (theirs, own) = (away(&mut world, lender), away(&mut world, owner));
    fill(&mut world, lender, spec(4));
    world.pin_call(lender, 1, &[theirs]);
    world.pin_call(owner, 1, &[own]);
    world.run_until_idle();
    assert_eq!((answer(&world, lender, 1), answer(&world, owner, 1)), (None, Some(&None)));
}

#[test]
fn tenant_at_its_limit_does_not_overtake_itself() {
    let mut world = tiers(16, 32);
    let client = world.open_pinning("a");
    let mut away = |mib| {
        let part = part(world.allocate(client, spec(mib)).expect("room"), 0);
        evict(&mut world, part);
        part
    };
    let (large, small) = (away(4), away(2));
    fill(&mut world, client, spec(6));
    world.operate(world::set_quota("a", 0, 8)).expect("it is within");
    world.pin_call(client, 1, &[large]);
    world.pin_call(client, 2, &[small]);
    world.run_until_idle();
    assert_eq!((answer(&world, client, 1), answer(&world, client, 2)), (None, None), "the first is first");
}

#[test]
fn ended_session_leaves_no_waiter() {
    let (mut world, client, part, filler) = away_and_filled(tiers(8, 16));
    world.frame(client, ClientFrame::PinEnded { call: 1 });
    world.call(client, ClientRequest::Detach(vec![part.allocation])).expect("detached");
    empty(&mut world, client, filler);
    assert_eq!(charged(&world), mib(0, 4), "no session asks for it");
}
