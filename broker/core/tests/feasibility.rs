//! A request that can never fit on its device is refused at once, and nothing is fetched unasked.

use std::time::Duration;

use crate::world::{
    Client, World, config,
    moving::{empty, fill, parts, tiers, to},
    named,
    revoking::{answer, part},
    set_quota, spec,
};
use broker_core::{
    AllocationSpec, CallId, ClientRequest, DeviceSelector, OperatorRequest, PartRef, Refusal, StoredQuotas,
    Target, Tier,
};
use vramd_types::{AllocationId, Bytes};

fn unpinned(mib: u32) -> AllocationSpec {
    AllocationSpec { unpinned: true, ..spec(mib) }
}

/// Two parts of 4 MiB of tenant a below, on a device of 8 MiB.
fn two_below() -> (World, Client, [PartRef; 2]) {
    let mut world = tiers(8, 32);
    let client = world.open_pinning("a");
    let id = world.allocate(client, unpinned(8)).expect("room");
    world.operate(to(id, Tier::Host)).expect("they go");
    (world, client, [part(id, 0), part(id, 1)])
}

fn is_full_with(refusal: Option<&Option<Refusal>>, mib: u32) -> bool {
    let full =
        |refusal: &Refusal| matches!(refusal, Refusal::DeviceFull { free, .. } if *free == Bytes::mib(mib));
    refusal.and_then(Option::as_ref).is_some_and(full)
}

#[test]
fn request_for_room_guaranteed_to_others_is_refused_at_once() {
    let (mut world, client, set) = two_below();
    world.operate(set_quota("b", 4, 8)).expect("it is backed");
    world.pin_call(client, 1, &set);
    assert!(is_full_with(answer(&world, client, 1), 4), "{:?}", answer(&world, client, 1));
    let batch = world.start(
        client,
        None,
        ClientRequest::AllocateBatch { items: vec![spec(8)], wait: Duration::from_secs(9) },
    );
    assert!(matches!(world.replies[&batch], Err(Refusal::DeviceFull { .. })), "{:?}", world.replies[&batch]);
    world.pin_call(client, 2, &set[..1]);
    world.run_until_idle();
    assert_eq!(answer(&world, client, 2), Some(&None), "this much is there for it");
}

#[test]
fn request_within_the_own_guarantee_is_feasible() {
    let (mut world, client, set) = two_below();
    world.operate(set_quota("a", 8, 8)).expect("it is backed");
    let other = world.open_pinning("b");
    assert!(world.allocate(other, spec(4)).is_err());
    world.pin_call(client, 1, &set);
    world.run_until_idle();
    assert_eq!(answer(&world, client, 1), Some(&None));
}

#[test]
fn waiter_is_refused_when_its_request_becomes_infeasible() {
    for (tenant, guarantee, limit) in [("b", 4, 8), ("a", 0, 4)] {
        let (mut world, client, set) = two_below();
        let other = world.open_pinning("b");
        let filler = fill(&mut world, other, spec(4));
        world.pin_call(client, 1, &set);
        let wait = Duration::from_secs(9);
        let batch = world.start(client, None, ClientRequest::AllocateBatch { items: vec![spec(8)], wait });
        world.run_until_idle();
        assert_eq!(
            (answer(&world, client, 1), world.replies.contains_key(&batch)),
            (None, false),
            "both wait"
        );
        world.operate(set_quota(tenant, guarantee, limit)).expect("it is backed");
        assert!(
            answer(&world, client, 1).is_some_and(Option::is_some),
            "{tenant} has {guarantee} to {limit}"
        );
        assert!(world.replies[&batch].is_err());
        empty(&mut world, other, filler);
        assert!(world.broker.waits().is_empty(), "{:?}", world.broker.waits());
    }
}

#[test]
fn attach_larger_than_its_device_keeps_no_other_waiting() {
    let mut world = tiers(8, 32);
    let writer = world.open_pinning("a");
    let large = AllocationSpec { unpinned: true, readers: vec!["b".to_owned()], ..named(12, "weights") };
    let id = world.sealed(writer, large);
    let reader = world.open_pinning("b");
    let target = || Target::Id(id);
    let refused = world.call(reader, ClientRequest::Attach(target())).expect_err("12 MiB do not go into 8");
    assert!(matches!(refused, Refusal::DeviceFull { .. }), "{refused:?}");
    assert!(world.broker.waits().is_empty());
    world.call(reader, ClientRequest::AttachUnpinned(target())).expect("piece by piece they do");
    world.pin_call(reader, 1, &[part(id, 2)]);
    world.run_until_idle();
    assert_eq!(answer(&world, reader, 1), Some(&None));
}

/// A batch is short on the first of two devices of 8 MiB, where another uses all, and on the second.
fn short_on_both(world: &mut World, items: Vec<AllocationSpec>) -> (Client, AllocationId, CallId) {
    let [client, other] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let filler = fill(world, other, on(0, 8));
    let wait = Duration::from_secs(9);
    let batch = world.start(client, None, ClientRequest::AllocateBatch { items, wait });
    (other, filler, batch)
}

fn on(device: u16, mib: u32) -> AllocationSpec {
    AllocationSpec { device: Some(device.to_string()), ..spec(mib) }
}

fn two_devices() -> World {
    let mut config = config(&[Bytes::mib(8), Bytes::mib(8)]);
    for device in &mut config.devices {
        device.host = Bytes::mib(16);
    }
    World::with(config, StoredQuotas::default())
}

#[test]
fn batch_is_refused_for_any_place_that_can_never_hold_it() {
    let mut world = two_devices();
    let (_, _, batch) = short_on_both(&mut world, vec![on(0, 4), on(1, 12)]);
    let refused = || world.replies.get(&batch).expect("an answer").clone().unwrap_err();
    let uuid = &world.broker.devices()[1].uuid;
    assert!(
        matches!(refused(), Refusal::DeviceFull { device, tier: Tier::Device, .. } if device == *uuid),
        "{}",
        refused()
    );
    assert!(world.broker.waits().is_empty());
    // Room below counts too: the daemon makes none there.
    let mut world = two_devices();
    let items = vec![on(0, 4), AllocationSpec { device: Some("1".to_owned()), ..unpinned(20) }];
    let (_, _, batch) = short_on_both(&mut world, items);
    let refusal = world.replies.get(&batch).expect("an answer").clone().unwrap_err();
    let uuid = &world.broker.devices()[1].uuid;
    assert!(
        matches!(&refusal, Refusal::DeviceFull { device, tier: Tier::Host, .. } if device == uuid),
        "{refusal}"
    );
}

/// Where a limit was in the way of a batch.
fn limited(world: &World, batch: CallId) -> Option<(String, Tier)> {
    match world.replies.get(&batch) {
        Some(Err(Refusal::QuotaLimit { device, tier, .. })) => Some((device.clone(), *tier)),
        _ => None,
    }
}

#[test]
fn waiting_batch_is_refused_when_its_second_place_becomes_infeasible() {
    let mut world = two_devices();
    let (other, filler, batch) = short_on_both(&mut world, vec![on(0, 4), on(1, 8)]);
    assert!(!world.replies.contains_key(&batch), "it waits for the first device");
    let mut quota = set_quota("b", 4, 8);
    if let OperatorRequest::SetQuota { device, .. } = &mut quota {
        *device = DeviceSelector::One("1".to_owned());
    }
    world.operate(quota).expect("it is backed");
    let full = |refusal: &Refusal| matches!(refusal, Refusal::DeviceFull { requested: asked, .. } if *asked == Bytes::mib(8));
    assert!(world.replies[&batch].as_ref().is_err_and(full), "{:?}", world.replies[&batch]);
    empty(&mut world, other, filler);
    assert!(world.broker.waits().is_empty(), "{:?}", world.broker.waits());
}

/// Its cached extents are its own, and count.
#[test]
fn batch_beyond_its_limit_is_refused_though_some_of_it_is_cached() {
    let mut config = config(&[Bytes::mib(16)]);
    config.limits.cached_bytes_per_tenant_max = Bytes::mib(8);
    let mut world = World::with(config, StoredQuotas::default());
    let client = world.open_pinning("a");
    world.operate(set_quota("a", 0, 8)).expect("it is backed");
    let any = |mib| AllocationSpec { uninitialized: true, ..spec(mib) };
    let id = world.allocate(client, any(4)).expect("room");
    world.call(client, ClientRequest::FreeBatch(vec![id])).expect("freed");
    world.run_until_idle();
    let wait = Duration::from_secs(9);
    let batch = world.start(client, None, ClientRequest::AllocateBatch { items: vec![any(12)], wait });
    assert_eq!(limited(&world, batch).map(|(_, tier)| tier), Some(Tier::Device));
    world.allocate(client, any(8)).expect("it may have this much");
}

/// Which of its parts lie on the device.
fn on_device(world: &World, id: AllocationId) -> usize {
    let view = world.broker.show(&Target::Id(id)).expect("it is there");
    view.parts.iter().filter(|part| part.tier == Tier::Device).count()
}

#[test]
fn part_below_its_device_stays_there_when_sealed() {
    let mut world = tiers(16, 32);
    let client = world.open_pinning("a");
    let id = world.allocate(client, spec(8)).expect("room");
    let first = parts(&world, id)[0];
    world.write(client, first, 7);
    let to_host =
        OperatorRequest::MoveParts { target: Target::Id(id), parts: vec![first.part], tier: Tier::Host };
    world.operate(to_host).expect("it goes");
    world.call(client, ClientRequest::Seal(id)).expect("sealed");
    world.run_until_idle();
    assert_eq!(on_device(&world, id), 1, "no session asked for the other");
    assert!(world.maps(client, part(id, 1)), "the part on its device is mapped again");
    world.pin_call(client, 1, &[first]);
    world.run_until_idle();
    assert_eq!((answer(&world, client, 1), world.read(client, first)), (Some(&None), 7));
}
