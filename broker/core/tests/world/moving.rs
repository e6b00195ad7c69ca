//! Parts that move, and where they are.

use broker_core::{
    AllocationSpec, ClientRequest, OperatorRequest, PartMove, PartRef, Refusal, Reply, StoredQuotas, Target,
    Tier,
};
use vramd_types::{AllocationId, Bytes};

use super::{Client, World, config, revoking::part, spec};

/// A device of this many MiB, with this much host memory.
pub fn tiers(device: u32, host: u32) -> World {
    let mut config = config(&[Bytes::mib(device)]);
    config.devices[0].host = Bytes::mib(host);
    World::with(config, StoredQuotas::default())
}

/// The same with a disk.
pub fn three_tiers(device: u32, host: u32, disk: u32) -> World {
    let mut config = config(&[Bytes::mib(device)]);
    (config.devices[0].host, config.devices[0].disk) = (Bytes::mib(host), Bytes::mib(disk));
    World::with(config, StoredQuotas::default())
}

/// With a pinning session that has written 7 to one part.
pub fn one_written() -> (World, Client, PartRef) {
    let mut world = tiers(8, 8);
    let client = world.open_pinning("a");
    let part = part(world.allocate(client, spec(4)).expect("room"), 0);
    world.write(client, part, 7);
    (world, client, part)
}

pub fn to(id: AllocationId, tier: Tier) -> OperatorRequest {
    OperatorRequest::MoveParts { target: Target::Id(id), parts: Vec::new(), tier }
}

pub fn moved(reply: Result<Reply, Refusal>) -> PartMove {
    match reply {
        Ok(Reply::PartsMoved { mut parts, .. }) if parts.len() == 1 => parts.remove(0).1,
        other => panic!("nothing was moved: {other:?}"),
    }
}

pub fn evict(world: &mut World, part: PartRef) -> PartMove {
    moved(world.operate(to(part.allocation, Tier::Host)))
}

/// Memory that its session goes on using.
pub fn fill(world: &mut World, client: Client, spec: AllocationSpec) -> AllocationId {
    let id = world.allocate(client, spec).expect("room");
    for part in parts(world, id) {
        world.pin(client, part);
    }
    id
}

pub fn empty(world: &mut World, client: Client, id: AllocationId) {
    for part in parts(world, id) {
        world.unpin(client, part);
    }
    world.call(client, ClientRequest::FreeBatch(vec![id])).expect("freed");
    world.run_until_idle();
}

pub fn parts(world: &World, id: AllocationId) -> Vec<PartRef> {
    let view = world.broker.show(&Target::Id(id)).expect("it is there");
    view.parts.iter().map(|shown| PartRef { allocation: id, part: shown.index }).collect()
}

pub fn tier(world: &World, part: PartRef) -> Tier {
    let view = world.broker.show(&Target::Id(part.allocation)).expect("it is there");
    view.parts[0].tier
}

pub fn mib(device: u32, host: u32) -> (Bytes, Bytes) {
    (Bytes::mib(device), Bytes::mib(host))
}

pub fn charged(world: &World) -> (Bytes, Bytes) {
    (world.charged(), world.charged_in_host())
}
