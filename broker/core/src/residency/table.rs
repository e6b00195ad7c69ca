//! The table of allocations: by id, by tenant and by name, with running sums.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry as NameEntry},
    ops::Bound,
    sync::Arc,
};

use vramd_types::{AllocationId, Bytes, DeviceIndex, IdSource, SessionId};

use super::{Allocation, AllocationState, ManagedMemory, MapState, allocation::Entry};
use crate::{
    collections::IdMap,
    event::PartRef,
    observed::ChangedKeys,
    tenancy::{ByTenant, TenantId},
};

#[derive(Debug)]
pub(crate) struct AllocationTable {
    pub(crate) ids: IdSource,
    allocations: IdMap<Allocation>,
    by_tenant: ByTenant<OfTenant>,
    /// The number of allocations in each state.
    states: [usize; AllocationState::ALL.len()],
    /// Bytes in host memory of allocations that are accessed in place, by tenant and device. There is no
    /// entry for zero.
    in_place: BTreeMap<(TenantId, DeviceIndex), Bytes>,
    /// Memory that clients allocate in their own processes.
    pub(crate) managed: ManagedMemory,
    pub(crate) changed_keys: ChangedKeys<AllocationId>,
}

/// The index of one tenant's allocations.
#[derive(Debug, Default)]
struct OfTenant {
    ids: BTreeSet<AllocationId>,
    /// Of these, allocations that have readers.
    shared: BTreeSet<AllocationId>,
    parts: usize,
    /// Bytes beyond what was requested, by device. There is no entry for zero.
    rounding: BTreeMap<DeviceIndex, Bytes>,
    by_name: BTreeMap<Arc<str>, AllocationId>,
    /// Allocations with a name that currently belongs to another: replacements before their seal, and freed
    /// allocations that are still mapped.
    unbound: BTreeSet<AllocationId>,
}

impl OfTenant {
    fn round(&mut self, allocation: &Allocation, change: impl FnOnce(Bytes, Bytes) -> Bytes) {
        let beyond = allocation.rounding();
        if beyond.is_zero() {
            return;
        }
        let sum = self.rounding.entry(allocation.device).or_default();
        *sum = change(*sum, beyond);
        if sum.is_zero() {
            self.rounding.remove(&allocation.device);
        }
    }
}

impl AllocationTable {
    pub(crate) fn new(epoch: u64) -> Self {
        Self {
            ids: IdSource::new(epoch),
            allocations: IdMap::default(),
            by_tenant: ByTenant::default(),
            states: Default::default(),
            in_place: BTreeMap::new(),
            managed: ManagedMemory::default(),
            changed_keys: ChangedKeys::default(),
        }
    }

    pub(crate) fn get(&self, id: AllocationId) -> Option<&Allocation> {
        self.allocations.get(id.get())
    }

    pub(crate) fn get_mut(&mut self, id: AllocationId) -> Option<&mut Allocation> {
        self.changed_keys.note(id);
        self.allocations.get_mut(id.get())
    }

    /// Whether the part waits to be sent to the session.
    pub(crate) fn is_queued(&self, session: SessionId, part: PartRef) -> bool {
        let entry = self.get(part.allocation).and_then(|allocation| allocation.part(part.part));
        entry.and_then(|entry| entry.map_state(session)) == Some(MapState::Queued)
    }

    /// Adds an allocation. It gets its name unless another one has it.
    pub(crate) fn insert(&mut self, id: AllocationId, allocation: Allocation) {
        self.by_tenant.change(allocation.tenant, |of| {
            of.ids.insert(id);
            of.parts += allocation.parts.len();
            of.round(&allocation, Bytes::saturating_add);
            if !allocation.readers.is_empty() {
                of.shared.insert(id);
            }
            if let Some(name) = &allocation.name
                && *of.by_name.entry(name.clone()).or_insert(id) != id
            {
                of.unbound.insert(id);
            }
        });
        self.changed_keys.note(id);
        self.count(allocation.state, 1);
        self.allocations.insert(id.get(), allocation);
    }

    pub(crate) fn remove(&mut self, id: AllocationId) -> Option<Allocation> {
        self.changed_keys.note(id);
        self.set_in_place(id, false);
        let allocation = self.allocations.remove(id.get())?;
        self.count(allocation.state, -1);
        if let Some(of) = self.by_tenant.get_mut(allocation.tenant) {
            of.ids.remove(&id);
            of.parts = of.parts.saturating_sub(allocation.parts.len());
            of.round(&allocation, Bytes::saturating_sub);
            if !allocation.readers.is_empty() {
                of.shared.remove(&id);
            }
            if let Some(name) = &allocation.name
                && !of.unbound.remove(&id)
            {
                of.by_name.remove(name);
            }
        }
        Some(allocation)
    }

    pub(crate) fn set_in_place(&mut self, id: AllocationId, in_place: bool) {
        let Some(allocation) = self.get_mut(id) else { return };
        if std::mem::replace(&mut allocation.in_place, in_place) != in_place {
            let (of, bytes) = ((allocation.tenant, allocation.device), allocation.in_host);
            self.count_in_place(of, bytes, in_place);
        }
    }

    /// Records that a part has arrived in host memory, or left it.
    pub(crate) fn set_on_host(&mut self, part: PartRef, lies_there: bool) {
        let Some(allocation) = self.allocations.get_mut(part.allocation.get()) else { return };
        let bytes = allocation.size_of(part.part);
        allocation.in_host = match lies_there {
            true => allocation.in_host.saturating_add(bytes),
            false => allocation.in_host.saturating_sub(bytes),
        };
        if allocation.in_place {
            let of = (allocation.tenant, allocation.device);
            self.count_in_place(of, bytes, lies_there);
        }
    }

    fn count_in_place(&mut self, of: (TenantId, DeviceIndex), bytes: Bytes, more: bool) {
        let sum = self.in_place.entry(of).or_default();
        *sum = if more { sum.saturating_add(bytes) } else { sum.saturating_sub(bytes) };
        if sum.is_zero() {
            self.in_place.remove(&of);
        }
    }

    /// Bytes in host memory of allocations that are accessed in place, by tenant and device. There is no
    /// entry for zero.
    pub(crate) fn in_place(&self) -> impl Iterator<Item = ((TenantId, DeviceIndex), Bytes)> {
        self.in_place.iter().map(|(of, bytes)| (*of, *bytes))
    }

    /// Returns the numbers of allocations and parts of a tenant.
    pub(crate) fn count_of(&self, tenant: TenantId) -> (usize, usize) {
        self.by_tenant.get(tenant).map(|of| (of.ids.len(), of.parts)).unwrap_or_default()
    }

    /// Bytes of a tenant's allocations beyond what was requested, by device, where there are any.
    pub(crate) fn rounding_of(&self, tenant: TenantId) -> impl Iterator<Item = (DeviceIndex, Bytes)> {
        let of = self.by_tenant.get(tenant).into_iter();
        of.flat_map(|of| &of.rounding).map(|(device, bytes)| (*device, *bytes))
    }

    /// Counts one allocation's change of state.
    pub(crate) fn count_transition(&mut self, from: AllocationState, to: AllocationState) {
        self.count(from, -1);
        self.count(to, 1);
    }

    /// The number of allocations in each state.
    pub(crate) fn states(&self) -> impl Iterator<Item = (AllocationState, usize)> {
        AllocationState::ALL.into_iter().zip(self.states)
    }

    pub(crate) fn has_any(&self, state: AllocationState) -> bool {
        self.states.get(state as usize).is_some_and(|count| *count > 0)
    }

    fn count(&mut self, state: AllocationState, change: isize) {
        if let Some(count) = self.states.get_mut(state as usize) {
            *count = count.saturating_add_signed(change);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.allocations.len()
    }

    /// Returns the allocations after `after`, in the order of their ids.
    pub(crate) fn iter_after(&self, after: Option<AllocationId>) -> impl Iterator<Item = Entry<'_>> {
        let found = self.allocations.iter_after(after.map(AllocationId::get));
        found.map(|(id, allocation)| (AllocationId::from_raw(id), allocation))
    }

    /// Returns a tenant's allocations after `after`, in the order of their ids.
    pub(crate) fn of_tenant(
        &self,
        tenant: TenantId,
        after: Option<AllocationId>,
    ) -> impl Iterator<Item = Entry<'_>> {
        self.entries(self.by_tenant.get(tenant).map(|of| &of.ids), after)
    }

    /// Returns a tenant's allocations that have readers.
    pub(crate) fn shared_of(
        &self,
        tenant: TenantId,
        after: Option<AllocationId>,
    ) -> impl Iterator<Item = Entry<'_>> {
        self.entries(self.by_tenant.get(tenant).map(|of| &of.shared), after)
    }

    /// Returns a tenant's allocations whose name may have the prefix, in the order of their ids. Returns
    /// `None` if there are more than `at_most`: a walk over all is then cheaper.
    pub(crate) fn named_like(
        &self,
        tenant: TenantId,
        prefix: &str,
        at_most: usize,
    ) -> Option<BTreeSet<AllocationId>> {
        let Some(of) = self.by_tenant.get(tenant) else { return Some(BTreeSet::new()) };
        let from = of.by_name.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let by_name = from.take_while(|(name, _)| name.starts_with(prefix)).map(|(_, id)| id);
        let mut found = BTreeSet::new();
        for id in by_name.chain(&of.unbound) {
            if found.len() >= at_most {
                return None;
            }
            found.insert(*id);
        }
        Some(found)
    }

    /// Returns the allocation that has a name.
    pub(crate) fn find_by_name(&self, tenant: TenantId, name: &str) -> Option<AllocationId> {
        self.by_tenant.get(tenant)?.by_name.get(name).copied()
    }

    /// Gives the name to the allocation and takes it from the one that had it.
    pub(crate) fn bind(&mut self, tenant: TenantId, name: &Arc<str>, id: AllocationId) {
        self.changed_keys.note(id);
        self.by_tenant.change(tenant, |of| {
            of.unbound.remove(&id);
            if let Some(before) = of.by_name.insert(name.clone(), id) {
                of.unbound.insert(before);
            }
        });
    }

    /// Takes the name from the allocation, if it has it.
    pub(crate) fn release_name(&mut self, id: AllocationId) {
        if let Some(allocation) = self.allocations.get(id.get())
            && let Some(name) = &allocation.name
            && let Some(of) = self.by_tenant.get_mut(allocation.tenant)
            && let NameEntry::Occupied(find_by_name) = of.by_name.entry(name.clone())
            && *find_by_name.get() == id
        {
            find_by_name.remove();
            of.unbound.insert(id);
        }
    }

    /// Returns every name with its allocation.
    pub(crate) fn names(&self) -> impl Iterator<Item = (TenantId, &str, AllocationId)> {
        let of = self.by_tenant.iter();
        of.flat_map(|(tenant, of)| of.by_name.iter().map(move |(name, id)| (tenant, &**name, *id)))
    }

    fn entries<'a>(
        &'a self,
        ids: Option<&'a BTreeSet<AllocationId>>,
        after: Option<AllocationId>,
    ) -> impl Iterator<Item = Entry<'a>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let ids = ids.into_iter().flat_map(move |ids| ids.range((from, Bound::Unbounded)));
        ids.filter_map(|id| Some((*id, self.get(*id)?)))
    }
}
