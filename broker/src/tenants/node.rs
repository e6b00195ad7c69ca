//! The places of the node, against which a tenants file is checked.

use std::collections::BTreeMap;

use broker_core::{Broker, DeviceConfig, Tier};
use vramd_types::{Bytes, Quantity};

use crate::config::DefaultQuota;

/// The tiers of each device, with what the daemon may hand out there.
#[derive(Clone, Debug)]
pub struct Node {
    devices: Vec<Device>,
    defaults: DefaultQuota,
}

#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) uuid: String,
    /// The bytes of which shares are taken, for each tier that exists.
    pub(super) tiers: BTreeMap<Tier, Bytes>,
}

/// How many bytes each place has now, by UUID and tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Capacities(BTreeMap<(String, Tier), Bytes>);

impl Node {
    pub fn new(devices: &[DeviceConfig], defaults: &DefaultQuota) -> Self {
        let device = |device: &DeviceConfig| {
            let tiers = [(Tier::Device, device.share), (Tier::Host, device.host), (Tier::Disk, device.disk)];
            let exists = |(tier, share): &(Tier, Bytes)| *tier == Tier::Device || !share.is_zero();
            Device { uuid: device.uuid.clone(), tiers: tiers.into_iter().filter(exists).collect() }
        };
        Self { devices: devices.iter().map(device).collect(), defaults: defaults.clone() }
    }

    pub(super) fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Returns the UUID of the device that a text names: its UUID or its index.
    pub(super) fn uuid_of(&self, text: &str) -> Option<&str> {
        let by_uuid = self.devices.iter().find(|device| device.uuid == text);
        let is_index = text.bytes().all(|byte| byte.is_ascii_digit());
        let by_index = || self.devices.get(text.parse::<usize>().ok().filter(|_| is_index)?);
        by_uuid.or_else(by_index).map(|device| device.uuid.as_str())
    }

    pub(super) fn has_tier(&self, tier: Tier) -> bool {
        self.devices.iter().any(|device| device.tiers.contains_key(&tier))
    }

    /// The limit of a tenant without a quota.
    pub(super) const fn default_limit(&self, tier: Tier) -> Quantity {
        match tier {
            Tier::Device => self.defaults.limit,
            Tier::Host => self.defaults.host_limit,
            Tier::Disk => self.defaults.disk_limit,
        }
    }

    /// The capacities of a node on which no other program holds memory.
    pub(super) fn whole(&self) -> Capacities {
        let places = |device: &'_ Device| {
            let uuid = device.uuid.clone();
            device.tiers.clone().into_iter().map(move |(tier, share)| ((uuid.clone(), tier), share))
        };
        Capacities(self.devices.iter().flat_map(places).collect())
    }
}

impl Capacities {
    pub(super) fn now(broker: &Broker) -> Self {
        let mut capacities = BTreeMap::new();
        for device in broker.devices() {
            capacities.insert((device.uuid.clone(), Tier::Device), device.capacity);
            for (tier, view) in [(Tier::Host, device.host), (Tier::Disk, device.disk)] {
                if let Some(view) = view {
                    capacities.insert((device.uuid.clone(), tier), view.capacity);
                }
            }
        }
        Self(capacities)
    }

    pub(super) fn of(&self, uuid: &str, tier: Tier) -> Bytes {
        self.0.get(&(uuid.to_owned(), tier)).copied().unwrap_or(Bytes::ZERO)
    }
}
