//! The quota of the client's own tenant, from the daemon's messages.

use vramd_proto::v1;
use vramd_types::Bytes;

use super::info::Tier;

/// The quota, the use and the free room of the client's tenant in one tier of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnQuota {
    /// UUID.
    pub device: String,
    /// The device's number in the daemon's order.
    pub device_index: u32,
    pub tier: Tier,
    /// Bytes that are kept free for the tenant.
    pub guarantee: Bytes,
    /// Bytes that the tenant may have at most.
    pub limit: Bytes,
    /// Bytes that the tenant is charged: memory that exists, reservations, and cached memory.
    pub used: Bytes,
    /// The part of `used` that is cached: freed memory that the tenant's next allocations may reuse.
    pub cached: Bytes,
    /// The part of `used` that is managed memory of this tenant's processes: it may be on the device, and is not known to
    /// be.
    pub managed: Bytes,
    /// The part of `managed` that was ordered to the device, and that its client moved there.
    pub managed_on_device: Bytes,
    /// The part of `managed` that was ordered to the host. It stays charged, since page faults may bring it back.
    pub managed_on_host: Bytes,
    /// The part of `used` that was freed but that some process still has open.
    pub unreturned: Bytes,
    /// Bytes that the tenant can get now, cached memory included, while nothing moves and no other client asks.
    pub free: Bytes,
    /// Bytes that the daemon may hand out here to all tenants together.
    pub capacity: Bytes,
    /// Whether no quota is stored for the tenant here, so that the default quota applies.
    pub is_default: bool,
}

impl From<v1::OwnQuota> for OwnQuota {
    fn from(wire: v1::OwnQuota) -> Self {
        Self {
            tier: wire.tier(),
            device: wire.device,
            device_index: wire.device_index,
            guarantee: Bytes::new(wire.guarantee_bytes),
            limit: Bytes::new(wire.limit_bytes),
            used: Bytes::new(wire.used_bytes),
            cached: Bytes::new(wire.cached_bytes),
            managed: Bytes::new(wire.managed_bytes),
            managed_on_device: Bytes::new(wire.managed_on_device_bytes),
            managed_on_host: Bytes::new(wire.managed_on_host_bytes),
            unreturned: Bytes::new(wire.unreturned_bytes),
            free: Bytes::new(wire.free_bytes),
            capacity: Bytes::new(wire.capacity_bytes),
            is_default: wire.default_quota,
        }
    }
}
