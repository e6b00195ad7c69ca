//! Reads what the page shows from the broker.

use broker_core::{Broker, DeviceView, MoveView, NodeView, Pressure, QuotaView, Tier, WaitView};
use vramd_types::Bytes;

/// The state of all places, as the history samples it. It is copied under the broker's lock, so nothing is computed
/// here.
#[derive(Debug, Default)]
pub(super) struct Places {
    pub(super) quotas: Vec<QuotaView>,
    pub(super) devices: Vec<DeviceView>,
}

impl Places {
    pub(super) fn of(broker: &Broker) -> Self {
        Self { quotas: broker.list_quotas(None), devices: broker.devices() }
    }
}

/// Everything that the page shows of the present.
#[derive(Debug)]
pub(super) struct Present {
    pub(super) places: Places,
    pub(super) node: NodeView,
    pub(super) waits: Vec<WaitView>,
    pub(super) moves: Vec<MoveView>,
}

impl Present {
    pub(super) fn of(broker: &Broker) -> Self {
        Self { places: Places::of(broker), node: broker.node(), waits: broker.waits(), moves: broker.moves() }
    }
}

/// One tier of one device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) tier: Tier,
    pub(super) total: Bytes,
    pub(super) capacity: Bytes,
    pub(super) charged: Bytes,
    pub(super) pressure: Pressure,
}

/// Returns the tiers that a device has.
pub(super) fn places_of(device: &DeviceView) -> impl Iterator<Item = Place> {
    let own = Place {
        tier: Tier::Device,
        total: device.total,
        capacity: device.capacity,
        charged: device.charged,
        pressure: device.pressure,
    };
    let below =
        [(Tier::Host, &device.host), (Tier::Disk, &device.disk)].into_iter().filter_map(|(tier, it)| {
            let it = it.as_ref()?;
            let (total, capacity) = (it.total, it.capacity);
            Some(Place { tier, total, capacity, charged: it.charged, pressure: it.pressure })
        });
    std::iter::once(own).chain(below)
}
