//! The places where bytes can be charged: devices, the host memory and disk below them, and files, which
//! charge none.

use broker_core::{Config, DeviceConfig, Tier};
use vramd_types::Bytes;

use crate::oracle::facts::PlaceFacts;

pub(crate) fn of(config: &Config) -> Vec<PlaceFacts> {
    let devices = config.devices.iter().map(|device| PlaceFacts {
        context: device.context_bytes.get(),
        ..place(device, Tier::Device, device.share)
    });
    let each = config.devices.iter();
    let below = each.flat_map(|it| [(it, Tier::Host, it.host), (it, Tier::Disk, it.disk)]);
    let below = below.filter(|(.., share)| !share.is_zero());
    let below = below.map(|(device, tier, share)| place(device, tier, share));
    let files = config.devices.iter().filter(|_| config.files);
    let files = files.map(|device| PlaceFacts { in_files: true, ..place(device, Tier::Disk, Bytes::ZERO) });
    devices.chain(below).chain(files).collect()
}

/// A place that no survey has seen and that other programs do not use.
fn place(device: &DeviceConfig, tier: Tier, share: Bytes) -> PlaceFacts {
    PlaceFacts {
        uuid: device.uuid.clone(),
        tier,
        share: share.get(),
        context: 0,
        unbrokered: 0,
        contexts: 0,
        available_max: None,
        surveying: false,
        survey_outdated: false,
        surveys_left: 0,
        in_files: false,
    }
}
