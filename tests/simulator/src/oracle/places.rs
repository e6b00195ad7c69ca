//! Where bytes can be charged: devices, and host memory beside them.

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
        missing: 0,
        looks_left: 0,
    });
    let with_host = config.devices.iter().filter(|device| !device.host.is_zero());
    let hosts = with_host.map(|device| PlaceFacts {
        uuid: device.uuid.clone(),
        tier: Tier::Host,
        share: device.host.get(),
        context: 0,
        unbrokered: 0,
        contexts: 0,
        missing: 0,
        looks_left: 0,
    });
    devices.chain(hosts).collect()
}
