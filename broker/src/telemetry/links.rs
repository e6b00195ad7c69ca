//! Reads from the driver the facts about links that no event reports.

use broker_driver::{Driver, LaneId};
use opentelemetry::KeyValue;
use vramd_types::DeviceIndex;

use super::metrics;

/// Returns the direction of a lane and the UUID of its device; the UUID is empty if the lane has no device.
pub(super) fn place(driver: &dyn Driver, lane: LaneId) -> [KeyValue; 2] {
    let way = match lane {
        LaneId::ToDevice(_) => "to_device",
        LaneId::FromDevice(_) => "from_device",
        LaneId::BetweenDevices(_) => "between_devices",
        LaneId::WithinHost => "within_host",
        LaneId::FromDisk => "from_disk",
        LaneId::ToDisk => "to_disk",
    };
    let uuid = lane.device().and_then(|DeviceIndex(at)| driver.devices().get(usize::from(at)));
    let uuid = uuid.map(|info| info.uuid.clone()).unwrap_or_default();
    [KeyValue::new(metrics::LINK_WAY, way), KeyValue::new(metrics::HW_ID, uuid)]
}
