//! What tests of write-backs share.

use broker_core::{Command, Notice, OperatorRequest, PartMove, PartRef, Target, Tier};
use vramd_types::{AllocationId, Bytes};

use super::{Client, World, moving::moved};

pub fn back(id: AllocationId) -> OperatorRequest {
    OperatorRequest::WriteBackParts { target: Target::Id(id), parts: Vec::new() }
}

pub fn write_back(world: &mut World, part: PartRef) -> PartMove {
    moved(world.operate(back(part.allocation)))
}

/// Of what the tenant has on its device, what can leave without being copied.
pub fn clean(world: &World, tenant: &str) -> Bytes {
    let view = world.broker.quota(tenant, None, Tier::Device).expect("a tenant");
    view.in_force.expect("a present device").clean
}

/// Whether the part left its device by a copy, when it did last.
pub fn was_copied(world: &World, part: PartRef) -> bool {
    let mut told = world.notices.iter().rev();
    let left = told.find_map(|notice| match notice {
        Notice::Moved { part: of, tier: Tier::Host, copied, .. } if *of == part => Some(*copied),
        _ => None,
    });
    left.expect("it has left")
}

/// Whether each write-back of the part that ended well made a shadow.
pub fn shadows(world: &World, part: PartRef) -> Vec<bool> {
    let told = world.notices.iter().filter_map(|notice| match notice {
        Notice::WrittenBack { part: of, clean, .. } if *of == part => Some(*clean),
        _ => None,
    });
    told.collect()
}

pub fn is_copying(world: &World) -> bool {
    world.work.iter().any(|work| matches!(work, Command::Copy { .. }))
}

/// Somebody does something, if there is anything to do.
pub fn one_step(world: &mut World, client: Client) {
    if !world.work_once() {
        world.answer_once(client.channel);
    }
}
