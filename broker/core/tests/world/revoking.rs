//! Helpers for tests of pins and of revocation.

use broker_core::{OperatorRequest, PartRef, PartRevocation, Refusal, Reply, Target};
use vramd_types::{AllocationId, Bytes, PartIndex};

use super::{Client, World, spec};

pub const STALL: u64 = 1_000_000;
pub const UNMAPPED: u64 = 1_000_000;
pub const ANSWER: u64 = 10_000_000;

pub fn part(allocation: AllocationId, index: u32) -> PartRef {
    PartRef { allocation, part: PartIndex(index) }
}

pub fn revoke(allocation: AllocationId, wait: bool) -> OperatorRequest {
    OperatorRequest::RevokeMappings { target: Target::Id(allocation), parts: Vec::new(), wait }
}

pub fn outcomes(reply: Result<Reply, Refusal>) -> Vec<PartRevocation> {
    match reply {
        Ok(Reply::MappingsRevoked { parts, .. }) => parts.into_iter().map(|(_, outcome)| outcome).collect(),
        other => panic!("nothing was revoked: {other:?}"),
    }
}

/// One outcome, of an allocation with one part.
pub fn outcome(world: &mut World, allocation: AllocationId, wait: bool) -> PartRevocation {
    let reply = world.operate(revoke(allocation, wait));
    outcomes(reply).remove(0)
}

/// A world of 64 MiB with a pinning session that has one part.
pub fn one_part() -> (World, Client, AllocationId) {
    let mut world = World::new(64);
    let client = world.open_pinning("a");
    let id = world.allocate(client, spec(4)).expect("room");
    (world, client, id)
}

pub fn mapped_bytes(world: &World) -> Bytes {
    world.broker.list_sessions(None, None, 9).0[0].mapped
}

pub fn answer(world: &World, client: Client, call: u64) -> Option<&Option<Refusal>> {
    world.pin_answers.get(&(client.channel, call))
}
