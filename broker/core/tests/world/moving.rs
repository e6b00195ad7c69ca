//! Parts that move, and where they are.

use broker_core::{OperatorRequest, PartMove, PartRef, Refusal, Reply, StoredQuotas, Target, Tier};
use vramd_types::{AllocationId, Bytes};

use super::{World, config};

/// A device of so many MiB and as much host memory beside it.
pub fn tiers(device: u32, host: u32) -> World {
    let mut config = config(&[Bytes::mib(device)]);
    config.devices[0].host = Bytes::mib(host);
    World::with(config, StoredQuotas::default())
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

pub fn tier(world: &World, part: PartRef) -> Tier {
    let view = world.broker.show(&Target::Id(part.allocation)).expect("it is there");
    view.parts[0].tier
}

pub fn mib(device: u32, host: u32) -> (Bytes, Bytes) {
    (Bytes::mib(device), Bytes::mib(host))
}

pub fn held(world: &World) -> (Bytes, Bytes) {
    (world.held(), world.held_in_host())
}
