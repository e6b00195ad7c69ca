//! The configuration of the core, given once at its start.

use std::collections::BTreeMap;

use vramd_types::DeviceIndex;
use vramd_types::{Bytes, Quantity, Shares};

use crate::{
    event::PartRef, eviction::EvictionPolicy, limits::Limits, pressure::PressureBounds, tenancy::Standing,
};

#[derive(Clone, Debug)]
pub struct Config {
    /// How often the daemon has started on this node; it forms the high bits of every id.
    pub boot_epoch: u64,
    /// The devices, at least one.
    pub devices: Vec<DeviceConfig>,
    /// Default size of a part; a multiple of 2 MiB.
    pub part_size: Bytes,
    /// Limit of a tenant without a quota on each device. Its guarantee is zero.
    pub default_limit: Quantity,
    /// The same in the host tier of each device.
    pub default_host_limit: Quantity,
    /// The same on disk, for each device.
    pub default_disk_limit: Quantity,
    /// Room is kept free for the contexts of this many clients, or of all clients that have one, if those are
    /// more.
    pub sessions_reserved: u32,
    /// The policy that orders the victims of evictions.
    pub eviction: EvictionPolicy,
    /// Parts that leave first, in this order, whatever the policy says, until the policy is changed. For tests and
    /// comparisons; usually empty.
    pub victim_script: Vec<PartRef>,
    /// Whether a clean part is compared with its backing before it leaves, and copied if it differs.
    pub check_clean_backings: bool,
    pub pressure: PressureBounds,
    /// Whether parts can be file-backed.
    pub files: bool,
    /// The share of a link that each class of copies gets.
    pub shares: Shares,
    /// Classes and weights of tenants, by name, until operators set others.
    pub tenants: BTreeMap<String, Standing>,
    pub limits: Limits,
}

#[derive(Clone, Debug)]
pub struct DeviceConfig {
    pub uuid: String,
    pub name: String,
    /// The memory of the device.
    pub total: Bytes,
    /// The part of it that the broker may hand out if no other program holds any: the configured share less
    /// the margin.
    pub share: Bytes,
    /// Pinned host memory near the device that its parts may move to; zero means none.
    pub host: Bytes,
    /// Whether clients can map parts in host memory, at the same addresses.
    pub maps_host: bool,
    /// Bytes of disk that its parts may move to; zero means none.
    pub disk: Bytes,
    /// Device memory that the context of one client takes; zero where clients have no context.
    pub context_bytes: Bytes,
    /// Whether its driver supports fixed allocations.
    pub makes_fixed: bool,
}

/// The devices with their indices.
pub(crate) fn devices_of(config: &Config) -> impl Iterator<Item = (DeviceIndex, &DeviceConfig)> {
    (0..=u16::MAX).map(DeviceIndex).zip(&config.devices)
}
