//! Unpinned memory: none of it is mapped before it is pinned, and it lies where there is room.

use std::time::Duration;

use crate::world::{
    World, config,
    moving::{charged, fill, mib, tiers},
    revoking::part,
    spec,
};
use broker_core::{AllocationSpec, ClientFrame, ClientRequest, Refusal, Reply, StoredQuotas, Tier};
use vramd_types::{Bytes, Reason};

#[test]
fn unpinned_memory_may_be_larger_than_its_device() {
    let mut world = tiers(8, 64);
    let client = world.open_pinning("a");
    let large = AllocationSpec { unpinned: true, part_size: Some(Bytes::mib(4)), ..spec(32) };
    let id = world.allocate(client, large.clone()).expect("its parts are placed where there is room");
    let parts: Vec<_> = (0..8).map(|at| part(id, at)).collect();
    assert!(!parts.iter().any(|part| world.maps(client, *part)), "nothing is mapped");
    assert_eq!(charged(&world), mib(8, 32));
    for round in 0..2 {
        for (call, part) in (1..).zip(&parts) {
            world.pin_call(client, round * 8 + call, &[*part]);
            world.run_until_idle();
            let seen = world.read(client, *part);
            assert_eq!(seen, if round == 0 { 0 } else { call }, "zeros at first");
            world.write(client, *part, call);
            world.frame(client, ClientFrame::PinEnded { call: round * 8 + call });
        }
    }
    world.call(client, ClientRequest::FreeBatch(vec![id])).expect("freed");
    world.run_until_idle();
    assert_eq!(charged(&world), mib(0, 0));
    let without = world.open("b");
    assert_eq!(world.allocate(without, large).expect_err("no pins").reason(), Reason::RequestInvalid);
    let too_large = AllocationSpec { unpinned: true, ..spec(66) };
    let refused = world.allocate(client, too_large).expect_err("more than there is below");
    assert!(matches!(refused, Refusal::DeviceFull { tier: Tier::Host, .. }), "{refused:?}");
}

fn unpinned(mib: u32) -> AllocationSpec {
    AllocationSpec { unpinned: true, part_size: Some(Bytes::mib(4)), ..spec(mib) }
}

/// Where the parts of each item of a batch lie.
fn placed(device: u32, host: u32, items: Vec<AllocationSpec>) -> Vec<Vec<Tier>> {
    let mut world = tiers(device, host);
    let client = world.open_pinning("a");
    let reply = world.call(client, ClientRequest::allocate(items));
    let Ok(Reply::Allocated(views)) = reply else { panic!("there is room for all of it: {reply:?}") };
    views.iter().map(|view| view.parts.iter().map(|part| part.tier).collect()).collect()
}

/// The unpinned item took the room of the device that its batch had for the pinned one.
#[test]
fn default_host_quota_applies_whatever_the_limit_on_the_device() {
    let mut config = config(&[Bytes::mib(16)]);
    config.devices[0].host = Bytes::mib(64);
    config.default_limit = vramd_types::Quantity::Bytes(Bytes::mib(8));
    config.default_host_limit = vramd_types::Quantity::Percent(50);
    let mut world = World::with(config, StoredQuotas::default());
    let client = world.open_pinning("a");
    let limit = |tier| world.broker.quota("a", None, tier).expect("a tenant").in_force.expect("there").limit;
    assert_eq!((limit(Tier::Device), limit(Tier::Host)), (Bytes::mib(8), Bytes::mib(32)));
    let most = AllocationSpec { unpinned: true, ..spec(32) };
    world.allocate(client, most).expect("as much as there is for it below");
    assert_eq!(charged(&world), mib(8, 32));
    let refused = world.allocate(client, AllocationSpec { unpinned: true, ..spec(2) }).expect_err("no more");
    let Refusal::QuotaLimit { tier: Tier::Host, limit, charged: held, .. } = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((limit, held), (Bytes::mib(32), Bytes::mib(32)));
}

#[test]
fn pinned_items_of_a_batch_get_the_device_first() {
    let (above, below) = (vec![Tier::Device], vec![Tier::Host; 2]);
    for items in [vec![unpinned(8), spec(4)], vec![spec(4), unpinned(8)]] {
        let is_unpinned = items[0].unpinned;
        let mut placed = placed(4, 64, items);
        if is_unpinned {
            placed.reverse();
        }
        assert_eq!(placed, [above.clone(), below.clone()]);
    }
}

/// The backing of the pinned part took the room that the other one was admitted to.
#[test]
fn unpinned_items_of_a_batch_get_room_below_first() {
    let placed = placed(4, 8, vec![spec(4), unpinned(8)]);
    assert_eq!(placed, [vec![Tier::Device], vec![Tier::Host; 2]]);
}

/// Found by the simulator: the refusal named host memory, of which there was enough.
#[test]
fn batch_behind_others_is_told_where() {
    let mut config = config(&[Bytes::mib(8), Bytes::mib(8)]);
    config.devices.iter_mut().for_each(|device| device.host = Bytes::mib(64));
    let uuid = config.devices[1].uuid.clone();
    let mut world = World::with(config, StoredQuotas::default());
    let [a, b, c] = ["a", "b", "c"].map(|tenant| world.open_pinning(tenant));
    let on = |device: &str, spec| AllocationSpec { device: Some(device.to_owned()), ..spec };
    fill(&mut world, a, on("1", spec(4)));
    let items = vec![on("1", spec(8))];
    world.start(b, None, ClientRequest::AllocateBatch { items, wait: Duration::from_secs(60) });
    world.run_until_idle();
    let both = ClientRequest::allocate(vec![on("0", unpinned(8)), on("1", spec(2))]);
    let refused = world.call(c, both).expect_err("another waits");
    assert!(
        matches!(&refused, Refusal::DeviceFull { device, tier: Tier::Device, .. } if *device == uuid),
        "{refused:?}"
    );
}
