//! Where bytes can be charged: devices, and the host memory and the disk that are below them.

use broker_core::{Config, Tier};

use super::facts::PlaceFacts;

pub(super) fn of(config: &Config) -> Vec<PlaceFacts> {
    let devices = config.devices.iter().map(|device| PlaceFacts {
        uuid: device.uuid.clone(),
        tier: Tier::Device,
        share: device.share.get(),
        context: device.context_bytes.get(),
        unbrokered: 0,
        contexts: 0,
        at_most: None,
        looking: false,
        looks_too_early: false,
        looks_left: 0,
    });
    let each = config.devices.iter();
    let below = each.flat_map(|it| [(it, Tier::Host, it.host), (it, Tier::Disk, it.disk)]);
    let below = below.filter(|(.., share)| !share.is_zero()).map(|(device, tier, share)| PlaceFacts {
        uuid: device.uuid.clone(),
        tier,
        share: share.get(),
        context: 0,
        unbrokered: 0,
        contexts: 0,
        at_most: None,
        looking: false,
        looks_too_early: false,
        looks_left: 0,
    });
    devices.chain(below).collect()
}
