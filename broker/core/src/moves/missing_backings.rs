//! Parts on their device without a backing. They get one once bytes are available below.

use std::collections::BTreeMap;

use vramd_types::{Bytes, DeviceIndex};

use super::BackingAccount;
use crate::{event::PartRef, tenancy::TenantId};

/// By device and tenant, ordered by part: the oldest allocation first.
#[derive(Debug, Default)]
pub(crate) struct MissingBackings(BTreeMap<DeviceIndex, BTreeMap<TenantId, BTreeMap<PartRef, Bytes>>>);

impl MissingBackings {
    pub(super) fn insert(&mut self, part: PartRef, (tenant, device): BackingAccount, size: Bytes) {
        self.0.entry(device).or_default().entry(tenant).or_default().insert(part, size);
    }

    pub(super) fn remove(&mut self, part: &PartRef, (tenant, device): BackingAccount) {
        let Some(of_device) = self.0.get_mut(&device) else { return };
        let Some(of_tenant) = of_device.get_mut(&tenant) else { return };
        of_tenant.remove(part);
        if of_tenant.is_empty() {
            of_device.remove(&tenant);
        }
        if of_device.is_empty() {
            self.0.remove(&device);
        }
    }

    pub(crate) fn contains(&self, part: &PartRef, (tenant, device): BackingAccount) -> bool {
        let of_tenant = self.0.get(&device).and_then(|of_device| of_device.get(&tenant));
        of_tenant.is_some_and(|parts| parts.contains_key(part))
    }

    pub(crate) fn is_any_on(&self, device: DeviceIndex) -> bool {
        self.0.contains_key(&device)
    }

    /// Returns each tenant's oldest part on a device.
    pub(crate) fn oldest_of_each(
        &self,
        device: DeviceIndex,
    ) -> impl Iterator<Item = (PartRef, TenantId, Bytes)> {
        let tenants = self.0.get(&device).into_iter().flatten();
        tenants.filter_map(|(tenant, parts)| oldest(*tenant, parts))
    }

    /// Returns a tenant's oldest part on a device.
    pub(crate) fn oldest_of(
        &self,
        tenant: TenantId,
        device: DeviceIndex,
    ) -> Option<(PartRef, TenantId, Bytes)> {
        oldest(tenant, self.0.get(&device)?.get(&tenant)?)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PartRef, BackingAccount)> {
        let each = self.0.iter().flat_map(|(device, tenants)| {
            tenants.iter().map(move |(tenant, parts)| ((*tenant, *device), parts))
        });
        each.flat_map(|(account, parts)| parts.keys().map(move |part| (*part, account)))
    }
}

fn oldest(tenant: TenantId, parts: &BTreeMap<PartRef, Bytes>) -> Option<(PartRef, TenantId, Bytes)> {
    parts.first_key_value().map(|(part, size)| (*part, tenant, *size))
}
