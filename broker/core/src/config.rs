//! What the core is told once, at its start.

use vramd_types::{Bytes, Quantity, Shares};

use crate::{eviction::EvictionPolicy, limits::Limits, pressure::PressureBounds};

#[derive(Clone, Debug)]
pub struct Config {
    /// How often the daemon has started on this node; the high bits of every id.
    pub boot_epoch: u64,
    /// At least one.
    pub devices: Vec<DeviceConfig>,
    /// Size of a part where the client asks for none; a multiple of 2 MiB.
    pub part_size: Bytes,
    /// Limit of a tenant without a quota, on each device; its guarantee is zero.
    pub default_limit: Quantity,
    /// The same in the host tier of each.
    pub default_host_limit: Quantity,
    /// And on disk, for each.
    pub default_disk_limit: Quantity,
    /// Room is kept for the contexts of so many clients, or of those that have one, if these are more.
    pub sessions_reserved: u32,
    /// Who leaves a device when somebody needs the room.
    pub eviction: EvictionPolicy,
    /// What leaves as unchanged is compared with its shadow first, and copied if it differs.
    pub check_clean_backings: bool,
    pub pressure: PressureBounds,
    /// Whether files can be what parts have below.
    pub files: bool,
    /// What each class of copies has of a link.
    pub shares: Shares,
    pub limits: Limits,
}

#[derive(Clone, Debug)]
pub struct DeviceConfig {
    pub uuid: String,
    pub name: String,
    /// What the device has.
    pub total: Bytes,
    /// What of it the broker may hand out when nobody else holds any: the configured share less the margin.
    pub share: Bytes,
    /// Pinned host memory near it that its parts may move to; zero is none.
    pub host: Bytes,
    /// Whether clients can map what lies there, at the same addresses.
    pub maps_host: bool,
    /// Bytes of a disk that its parts may move to; zero is none.
    pub disk: Bytes,
    /// What the context of one client takes there; zero where there are none.
    pub context_bytes: Bytes,
    /// Whether its driver makes fixed allocations.
    pub makes_fixed: bool,
}
