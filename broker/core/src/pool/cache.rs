//! The index of cached extents: freed extents that their tenant may reuse, oldest first.
//!
//! It indexes the extents that [`super::Pool`] has in the state `Cached`, and only the pool changes it.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{Bytes, DeviceIndex, ExtentId};

use crate::{tenancy::TenantId, time::Time};

/// The order in which extents were cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Age(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cached {
    pub(crate) extent: ExtentId,
    pub(crate) tenant: TenantId,
    pub(crate) device: DeviceIndex,
    pub(crate) size: Bytes,
    pub(crate) since: Time,
}

#[derive(Debug, Default)]
pub(crate) struct Cache {
    entries: BTreeMap<Age, Cached>,
    by_size: BTreeMap<(TenantId, DeviceIndex, Bytes), BTreeSet<Age>>,
    bytes: BTreeMap<(TenantId, DeviceIndex), Bytes>,
    last: Age,
}

impl Cache {
    pub(super) fn add(&mut self, entry: Cached) {
        let Cached { tenant, device, size, .. } = entry;
        self.last = Age(self.last.0.saturating_add(1));
        self.entries.insert(self.last, entry);
        self.by_size.entry((tenant, device, size)).or_default().insert(self.last);
        let bytes = self.bytes.entry((tenant, device)).or_default();
        *bytes = bytes.saturating_add(size);
    }

    pub(super) fn remove(&mut self, age: Age) -> Option<Cached> {
        let entry = self.entries.remove(&age)?;
        let Cached { tenant, device, size, .. } = entry;
        if let Some(ages) = self.by_size.get_mut(&(tenant, device, size)) {
            ages.remove(&age);
            if ages.is_empty() {
                self.by_size.remove(&(tenant, device, size));
            }
        }
        if let Some(bytes) = self.bytes.get_mut(&(tenant, device)) {
            *bytes = bytes.saturating_sub(size);
        }
        Some(entry)
    }

    /// A tenant's extents of one size, oldest first. Reuse takes them in this order.
    pub(crate) fn oldest(
        &self,
        tenant: TenantId,
        device: DeviceIndex,
        size: Bytes,
    ) -> impl Iterator<Item = Age> {
        self.by_size.get(&(tenant, device, size)).into_iter().flatten().copied()
    }

    pub(crate) fn bytes_of(&self, tenant: TenantId, device: DeviceIndex) -> Bytes {
        self.bytes.get(&(tenant, device)).copied().unwrap_or_default()
    }

    pub(crate) fn bytes_on(&self, device: DeviceIndex) -> Bytes {
        let on_device = self.bytes.iter().filter(|((_, of), _)| *of == device);
        on_device.fold(Bytes::ZERO, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// The bytes cached on a device in extents smaller than `size`, and in larger ones.
    pub(crate) fn bytes_of_other_sizes(&self, device: DeviceIndex, size: Bytes) -> (Bytes, Bytes) {
        let (mut smaller, mut larger) = (Bytes::ZERO, Bytes::ZERO);
        for ((_, _, of), ages) in self.by_size.iter().filter(|((_, on, of), _)| *on == device && *of != size)
        {
            let sum = if *of < size { &mut smaller } else { &mut larger };
            *sum = sum.saturating_add(all_of(*of, ages));
        }
        (smaller, larger)
    }

    /// A tenant's cached bytes in extents of one size.
    pub(crate) fn bytes_of_size(&self, tenant: TenantId, device: DeviceIndex, size: Bytes) -> Bytes {
        self.by_size.get(&(tenant, device, size)).map_or(Bytes::ZERO, |ages| all_of(size, ages))
    }

    /// A tenant's oldest cached extent of any other size.
    pub(crate) fn oldest_of_other_size(
        &self,
        tenant: TenantId,
        device: DeviceIndex,
        size: Bytes,
    ) -> Option<Age> {
        let all = self.by_size.range((tenant, device, Bytes::ZERO)..=(tenant, device, Bytes::MAX));
        let others = all.filter(|((_, _, of), _)| *of != size);
        others.filter_map(|(_, ages)| ages.first()).min().copied()
    }

    pub(crate) fn get(&self, age: Age) -> Option<&Cached> {
        self.entries.get(&age)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns all cached extents, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Age, &Cached)> {
        self.entries.iter().map(|(age, entry)| (*age, entry))
    }
}

fn all_of(size: Bytes, ages: &BTreeSet<Age>) -> Bytes {
    Bytes::new(size.get().saturating_mul(u64::try_from(ages.len()).unwrap_or(u64::MAX)))
}
