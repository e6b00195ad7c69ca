//! Helpers for tests of write-backs.

use broker_core::{Command, Notice, OperatorRequest, PartMove, PartRef, Target, Tier};
use vramd_types::{AllocationId, Bytes};

use super::{Client, World, moving::moved};

pub fn back(id: AllocationId) -> OperatorRequest {
    OperatorRequest::WriteBackParts { target: Target::Id(id), parts: Vec::new() }
}

pub fn write_back(world: &mut World, part: PartRef) -> PartMove {
    moved(world.operate(back(part.allocation)))
}

/// The bytes of the tenant on its device that can leave without a copy.
pub fn clean(world: &World, tenant: &str) -> Bytes {
    let view = world.broker.quota(tenant, None, Tier::Device).expect("a tenant");
    view.in_force.expect("a present device").clean
}

/// Whether the last departure of the part was a copy.
pub fn was_copied(world: &World, part: PartRef) -> bool {
    let mut told = world.notices.iter().rev();
    let left = told.find_map(|notice| match notice {
        Notice::Moved { part: of, tier: Tier::Host, copied, .. } if *of == part => Some(*copied),
        _ => None,
    });
    left.expect("it has left")
}

/// Whether each successful write-back of the part made clean backing.
pub fn clean_write_backs(world: &World, part: PartRef) -> Vec<bool> {
    let told = world.notices.iter().filter_map(|notice| match notice {
        Notice::WrittenBack { part: of, clean, .. } if *of == part => Some(*clean),
        _ => None,
    });
    told.collect()
}

pub fn is_copying(world: &World) -> bool {
    world.work.iter().any(|work| matches!(work, Command::Copy { .. }))
}

/// One step of the driver or of a client, if there is anything to do.
pub fn one_step(world: &mut World, client: Client) {
    if !world.work_once() {
        world.answer_once(client.channel);
    }
}
