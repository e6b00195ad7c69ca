//! What the driver says of its links, which no event tells.

use std::sync::Arc;

use broker_driver::{Driver, LaneId, LinkFacts, Traffic};
use opentelemetry::KeyValue;
use vramd_types::DeviceIndex;

use super::registry as of;

#[derive(Debug)]
pub(super) struct Links(pub(super) Arc<dyn Driver>);

impl Links {
    pub(super) fn facts(&self) -> &[LinkFacts] {
        self.0.links()
    }

    pub(super) fn traffic(&self) -> Vec<Traffic> {
        self.0.traffic()
    }

    /// The way of a lane, and its device's UUID, which is empty where it has none.
    pub(super) fn place(&self, lane: LaneId) -> [KeyValue; 2] {
        let way = match lane {
            LaneId::In(_) => "to_device",
            LaneId::Out(_) => "from_device",
            LaneId::Aside(_) => "between_devices",
            LaneId::WithinHost => "within_host",
            LaneId::FromDisk => "from_disk",
            LaneId::ToDisk => "to_disk",
        };
        let uuid = lane.device().and_then(|DeviceIndex(at)| self.0.devices().get(usize::from(at)));
        let uuid = uuid.map(|info| info.uuid.clone()).unwrap_or_default();
        [KeyValue::new(of::LINK_WAY, way), KeyValue::new(of::HW_ID, uuid)]
    }
}
