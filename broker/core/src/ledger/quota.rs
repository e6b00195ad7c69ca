//! Quotas by tenant, device and tier.

use std::collections::BTreeMap;

use vramd_types::{Bytes, DeviceIndex, Quantity};

use super::{Account, Place};
use crate::{event::Tier, tenancy::TenantId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    pub(crate) guarantee: Quantity,
    pub(crate) limit: Quantity,
}

/// Where a quota applies. A quota of one device takes precedence over one of all devices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QuotaDevice {
    All,
    Present(DeviceIndex),
    /// A device that is not on this node now. Its quota is kept and shown, and not enforced.
    Absent(String),
}

#[derive(Clone, Debug)]
pub(crate) struct QuotaTable {
    default_limit: Quantity,
    default_host_limit: Quantity,
    default_disk_limit: Quantity,
    quotas: BTreeMap<(TenantId, QuotaDevice, Tier), Quota>,
}

impl QuotaTable {
    pub(crate) const fn new(
        default_limit: Quantity,
        default_host_limit: Quantity,
        default_disk_limit: Quantity,
    ) -> Self {
        Self { default_limit, default_host_limit, default_disk_limit, quotas: BTreeMap::new() }
    }

    pub(crate) fn set(&mut self, tenant: TenantId, device: QuotaDevice, tier: Tier, quota: Option<Quota>) {
        let key = (tenant, device, tier);
        match quota {
            Some(quota) => _ = self.quotas.insert(key, quota),
            None => _ = self.quotas.remove(&key),
        }
    }

    pub(crate) fn get(&self, tenant: TenantId, device: &QuotaDevice, tier: Tier) -> Option<Quota> {
        self.quotas.get(&(tenant, device.clone(), tier)).copied()
    }

    /// Returns the quota of a tenant in a place, and whether it is stored.
    pub(crate) fn effective(&self, tenant: TenantId, place: Place) -> (Quota, bool) {
        let own = self.get(tenant, &QuotaDevice::Present(place.device), place.tier);
        let stored = own.or_else(|| self.get(tenant, &QuotaDevice::All, place.tier));
        (stored.unwrap_or_else(|| self.default_quota(place.tier)), stored.is_some())
    }

    /// The quota of a tenant that has no stored quota in that tier.
    pub(crate) const fn default_quota(&self, tier: Tier) -> Quota {
        let limit = match tier {
            Tier::Device => self.default_limit,
            Tier::Host => self.default_host_limit,
            Tier::Disk => self.default_disk_limit,
        };
        Quota { guarantee: Quantity::Bytes(Bytes::ZERO), limit }
    }

    /// An account without charges.
    pub(crate) fn new_account(&self, tenant: TenantId, place: Place, share: Bytes) -> Account {
        let (quota, _) = self.effective(tenant, place);
        Account { guarantee: quota.guarantee.of(share), limit: quota.limit.of(share), ..Account::default() }
    }

    /// Returns every stored quota, by tenant and device.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TenantId, &QuotaDevice, Tier, Quota)> {
        self.quotas.iter().map(|((tenant, device, tier), quota)| (*tenant, device, *tier, *quota))
    }

    /// Returns the tenants that have a stored quota.
    pub(crate) fn tenants(&self) -> Vec<TenantId> {
        let mut tenants: Vec<_> = self.quotas.keys().map(|(tenant, ..)| *tenant).collect();
        tenants.dedup();
        tenants
    }
}
