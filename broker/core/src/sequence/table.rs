//! All sequences that have not ended.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use vramd_types::{AllocationId, SessionId};

use super::{Need, Sequence, SequenceId};
use crate::{event::PartRef, prefetch::OWN_REQUESTS, tenancy::TenantId};

#[derive(Debug, Default)]
pub(crate) struct Sequences {
    sequences: BTreeMap<SequenceId, Sequence>,
    /// Every allocation that a sequence names, with the sequence.
    by_allocation: BTreeSet<(AllocationId, SequenceId)>,
    by_tenant: BTreeMap<TenantId, OfTenant>,
    /// How many requests the daemon has ever made.
    requests_made: u64,
}

#[derive(Debug, Default)]
struct OfTenant {
    ids: BTreeSet<SequenceId>,
    use_count: usize,
}

impl Sequences {
    pub(crate) fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    pub(crate) fn get(&self, id: SequenceId) -> Option<&Sequence> {
        self.sequences.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: SequenceId) -> Option<&mut Sequence> {
        self.sequences.get_mut(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SequenceId, &Sequence)> {
        self.sequences.iter().map(|(id, sequence)| (*id, sequence))
    }

    pub(crate) fn insert(&mut self, id: SequenceId, sequence: Sequence) {
        self.by_allocation.extend(sequence.allocations().into_iter().map(|allocation| (allocation, id)));
        let of_tenant = self.by_tenant.entry(sequence.tenant).or_default();
        of_tenant.ids.insert(id);
        of_tenant.use_count = of_tenant.use_count.saturating_add(sequence.use_count());
        self.sequences.insert(id, sequence);
    }

    pub(crate) fn remove(&mut self, id: SequenceId) -> Option<Sequence> {
        let sequence = self.sequences.remove(&id)?;
        for allocation in sequence.allocations() {
            self.by_allocation.remove(&(allocation, id));
        }
        if let Some(of_tenant) = self.by_tenant.get_mut(&sequence.tenant) {
            of_tenant.ids.remove(&id);
            of_tenant.use_count = of_tenant.use_count.saturating_sub(sequence.use_count());
            if of_tenant.ids.is_empty() {
                self.by_tenant.remove(&sequence.tenant);
            }
        }
        Some(sequence)
    }

    pub(crate) fn of_session(&self, session: SessionId) -> Vec<SequenceId> {
        self.sequences.range(all_of(session)).map(|(id, _)| *id).collect()
    }

    pub(crate) fn count_of(&self, session: SessionId) -> usize {
        self.sequences.range(all_of(session)).count()
    }

    /// All uses of parts in the sequences of a tenant.
    pub(crate) fn use_count_of(&self, tenant: TenantId) -> usize {
        self.by_tenant.get(&tenant).map_or(0, |of_tenant| of_tenant.use_count)
    }

    pub(crate) fn of_tenant(
        &self,
        tenant: TenantId,
    ) -> impl Iterator<Item = (SequenceId, &Sequence)> + Clone {
        let ids = self.by_tenant.get(&tenant).into_iter().flat_map(|of_tenant| &of_tenant.ids);
        ids.filter_map(|id| Some((*id, self.sequences.get(id)?)))
    }

    pub(crate) fn has_any(&self, tenant: TenantId) -> bool {
        self.by_tenant.contains_key(&tenant)
    }

    /// The sequences that name the part. It costs nothing while there are none.
    pub(crate) fn naming(&self, part: PartRef) -> impl Iterator<Item = (SequenceId, &Sequence)> {
        let of_allocation = self.of_allocation(part.allocation);
        of_allocation.filter(move |(_, sequence)| sequence.has_part(part))
    }

    /// Whether any sequence names the part.
    pub(crate) fn is_named(&self, part: PartRef) -> bool {
        !self.by_allocation.is_empty() && self.naming(part).next().is_some()
    }

    /// For each sequence that names parts of the allocation, the first of them.
    pub(crate) fn first_parts_of(&self, allocation: AllocationId) -> Vec<PartRef> {
        let naming = self.of_allocation(allocation);
        naming.filter_map(|(_, sequence)| sequence.first_part_of(allocation)).collect()
    }

    /// When the sequences of a tenant need its part next; `None` if they never name it.
    pub(crate) fn need_of(&self, tenant: TenantId, part: PartRef) -> Option<Need> {
        let of_tenant = self.of_allocation(part.allocation).filter(|(_, it)| it.tenant == tenant);
        of_tenant.filter_map(|(_, sequence)| sequence.need_of(part)).reduce(Need::nearer)
    }

    /// The number of the next request of the daemon's own.
    pub(crate) fn next_request(&mut self) -> u64 {
        self.requests_made = self.requests_made.saturating_add(1);
        OWN_REQUESTS.saturating_add(self.requests_made)
    }

    fn of_allocation(&self, id: AllocationId) -> impl Iterator<Item = (SequenceId, &Sequence)> {
        let first = (SessionId::from_raw(0), 0);
        let last = (SessionId::from_raw(u64::MAX), u64::MAX);
        let naming = self.by_allocation.range((id, first)..=(id, last));
        naming.filter_map(|(_, id)| Some((*id, self.sequences.get(id)?)))
    }
}

const fn all_of(session: SessionId) -> RangeInclusive<SequenceId> {
    (session, 0)..=(session, u64::MAX)
}
