//! All allocations, and the names that some of them bear.

use std::collections::BTreeMap;

use vramd_types::AllocationId;

use super::{Allocation, allocation::Entry};
use crate::{observed::Touched, tenancy::TenantId};

#[derive(Debug, Default)]
pub(crate) struct AllocationTable {
    allocations: BTreeMap<AllocationId, Allocation>,
    names: BTreeMap<(TenantId, Box<str>), AllocationId>,
    /// Allocations and parts of each tenant.
    counts: BTreeMap<TenantId, (usize, usize)>,
    pub(crate) touched: Touched<AllocationId>,
}

impl AllocationTable {
    pub(crate) fn get(&self, id: AllocationId) -> Option<&Allocation> {
        self.allocations.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: AllocationId) -> Option<&mut Allocation> {
        self.touched.note(id);
        self.allocations.get_mut(&id)
    }

    pub(crate) fn insert(&mut self, id: AllocationId, allocation: Allocation) {
        let count = self.counts.entry(allocation.tenant).or_default();
        count.0 += 1;
        count.1 += allocation.parts.len();
        self.touched.note(id);
        self.allocations.insert(id, allocation);
    }

    pub(crate) fn remove(&mut self, id: AllocationId) -> Option<Allocation> {
        self.touched.note(id);
        let allocation = self.allocations.remove(&id)?;
        self.unbind(id, &allocation);
        if let Some(count) = self.counts.get_mut(&allocation.tenant) {
            count.0 = count.0.saturating_sub(1);
            count.1 = count.1.saturating_sub(allocation.parts.len());
        }
        Some(allocation)
    }

    /// Allocations and parts of a tenant.
    pub(crate) fn count_of(&self, tenant: TenantId) -> (usize, usize) {
        self.counts.get(&tenant).copied().unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        self.allocations.len()
    }

    /// In the order of their ids, those after `after`.
    pub(crate) fn iter_after(&self, after: Option<AllocationId>) -> impl Iterator<Item = Entry<'_>> {
        let from = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        self.allocations.range((from, std::ops::Bound::Unbounded)).map(|(id, allocation)| (*id, allocation))
    }

    /// Who bears a name.
    pub(crate) fn bearer(&self, tenant: TenantId, name: &str) -> Option<AllocationId> {
        self.names.get(&(tenant, Box::from(name))).copied()
    }

    pub(crate) fn bind(&mut self, tenant: TenantId, name: &str, id: AllocationId) {
        self.touched.note(id);
        self.names.insert((tenant, Box::from(name)), id);
    }

    /// Takes the name away from the allocation, if it bears it.
    pub(crate) fn release_name(&mut self, id: AllocationId) {
        if let Some((tenant, name)) = self.get(id).and_then(|a| a.name.clone().map(|name| (a.tenant, name)))
            && self.bearer(tenant, &name) == Some(id)
        {
            self.names.remove(&(tenant, name));
        }
    }

    fn unbind(&mut self, id: AllocationId, allocation: &Allocation) {
        if let Some(name) = &allocation.name
            && self.bearer(allocation.tenant, name) == Some(id)
        {
            self.names.remove(&(allocation.tenant, name.clone()));
        }
    }

    /// Every name with its bearer.
    pub(crate) fn names(&self) -> impl Iterator<Item = (TenantId, &str, AllocationId)> {
        self.names.iter().map(|((tenant, name), id)| (*tenant, &**name, *id))
    }
}
