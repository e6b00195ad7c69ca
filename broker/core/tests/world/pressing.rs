//! A device that fills up, and the notices of it.

use std::time::Duration;

use broker_core::{ClientRequest, Notice, PartRef, Pressure, StoredQuotas, Target, Tier};
use vramd_types::{AllocationId, Bytes};

use super::{Client, World, config, revoking::part, spec};

/// How long a part has to be unused to be cold.
pub const COLD: Duration = Duration::from_secs(30);

pub const SECOND: Duration = Duration::from_secs(1);

/// A device of 40 MiB, of which 2 MiB are 5 percent, with this much host memory and disk.
pub fn node(host: u32, disk: u32) -> World {
    let mut config = config(&[Bytes::mib(40)]);
    (config.devices[0].host, config.devices[0].disk) = (Bytes::mib(host), Bytes::mib(disk));
    config.part_size = Bytes::mib(2);
    World::with(config, StoredQuotas::default())
}

/// This many allocations of one part, each written with another number.
pub fn fill(world: &mut World, client: Client, count: u64) -> Vec<PartRef> {
    let one = |at| {
        let part = part(world.allocate(client, spec(2)).expect("room"), 0);
        world.write(client, part, at);
        part
    };
    (1..=count).map(one).collect()
}

pub fn free(world: &mut World, client: Client, parts: &[PartRef]) {
    let ids: Vec<AllocationId> = parts.iter().map(|part| part.allocation).collect();
    world.call(client, ClientRequest::FreeBatch(ids)).expect("freed");
    world.run_until_idle();
}

pub fn pass_time(world: &mut World, time: Duration) {
    let micros = u64::try_from(time.as_micros()).expect("a short time");
    world.advance(micros);
    world.run_until_idle();
}

/// The levels of the tier that were noticed since the last call.
pub fn levels(world: &mut World, of: Tier) -> Vec<Pressure> {
    let step = |notice: Notice| match notice {
        Notice::PressureChanged { tier, to, .. } if tier == of => Some(to),
        _ => None,
    };
    world.notices.drain(..).filter_map(step).collect()
}

pub fn on_device(world: &World, parts: &[PartRef]) -> usize {
    parts.iter().filter(|part| tier(world, **part) == Tier::Device).count()
}

pub fn tier(world: &World, part: PartRef) -> Tier {
    world.broker.show(&Target::Id(part.allocation)).expect("it is there").parts[0].tier
}
