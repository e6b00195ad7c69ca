//! The use of parts: the parts that may leave their tier, the dirty ones, and the sessions that pin them.

use vramd_types::{AllocationId, SessionId};

use crate::{
    broker::Broker,
    event::{PartRef, Tier},
    eviction::{PartAdvice, PartNeed, Source, Weight},
    line::Footprint,
    residency::{AllocationState, MapState},
    tenancy::TenantId,
};

impl Broker {
    /// Records sessions that were found to pin the part: the daemon does not ask them again until a harvest
    /// sees them unpin it. A harvest never sees a session that has unmapped it by now. Returns whether any is
    /// left.
    pub(crate) fn record_pinned(&mut self, part: PartRef, by: &[SessionId]) -> bool {
        let maps = |id: &&SessionId| self.map_state(**id, part).is_some_and(MapState::is_mapper);
        let there: Vec<_> = by.iter().filter(maps).copied().collect();
        for session in there.iter().copied() {
            self.usage.residents.record_pin(part, session);
            self.usage.idle_on_host.record_pin(part, session);
        }
        !there.is_empty()
    }

    /// Records that a session unmapped the part, so it does not pin it.
    pub(crate) fn record_unpinned(&mut self, part: PartRef, session: SessionId) {
        self.usage.residents.record_unpin(part, session);
        self.usage.idle_on_host.record_unpin(part, session);
    }

    /// Lists the part among those that may leave their device.
    pub(crate) fn mark_evictable(&mut self, part: PartRef) {
        if let Some(Footprint { tenant, device, size }) = self.footprint_of(part)
            && let Some(backing) = self.moves.backings.get(&part)
            && self.tier_of(part) == Some(Tier::Device)
        {
            let source = match backing.tier() {
                None => Source::Nothing,
                Some(Tier::Disk) => Source::Disk,
                Some(Tier::Host | Tier::Device) => Source::Host,
            };
            let class = self.tenants.standing(tenant).class;
            self.usage.residents.arrive(device, part, (Weight::new(size, source), class), self.shell.now);
        }
    }

    pub(crate) fn mark_all_evictable(&mut self, id: AllocationId) {
        if self.has_tiers() {
            for part in self.every_part_of(id) {
                self.mark_evictable(part);
            }
        }
    }

    /// Forgets what the eviction policy remembers of an allocation that is gone, and the advice for it.
    pub(crate) fn forget_uses(&mut self, id: AllocationId) {
        self.forget_advice(id);
        self.usage.placements.forget(id);
        self.chosen_in_place_of(id).iter().for_each(|part| _ = self.mapping.chosen_in_place.remove(part));
        self.moves.prefetches.learnt.forget_allocation(id);
        planted!(self, FreedPartsRemembered => return);
        self.usage.residents.forget(id);
    }

    fn forget_advice(&mut self, id: AllocationId) {
        planted!(self, AdviceKept => return);
        self.usage.advice.forget(id);
    }

    /// Ends the advice that the part is not needed on its device, once it has left.
    pub(crate) fn end_unneeded(&mut self, part: PartRef) {
        planted!(self, UnneededKept => return);
        self.usage.advice.end_need(part, |need| need == PartNeed::Unneeded, self.shell.now);
    }

    /// Records a use of the part that its advice depends on.
    pub(crate) fn record_advised_use(&mut self, part: PartRef) {
        self.usage.advice.record_use(part, self.shell.now);
        planted!(self, SoonKept => return);
        self.usage.advice.end_need(part, |need| matches!(need, PartNeed::Soon { .. }), self.shell.now);
    }

    /// The advice that counts for a part.
    pub(crate) fn advice_for(&self, part: PartRef) -> PartAdvice {
        self.usage.advice.of(part, |tenant| self.ignores_advice_of(tenant))
    }

    /// Whether only operators' advice orders the parts of the tenant.
    pub(crate) fn ignores_advice_of(&self, tenant: TenantId) -> bool {
        planted!(self, ForbiddenAdviceOrders => return false);
        self.is_advice_forbidden(tenant)
    }

    pub(crate) fn is_advice_forbidden(&self, tenant: TenantId) -> bool {
        self.tenants.standing(tenant).advice.is_forbidden()
    }

    /// Marks the part dirty: a session has written it, or may have.
    pub(crate) fn mark_dirty(&mut self, part: PartRef) {
        // No session writes sealed memory, so a word that says so is wrong. A discardable part is never copied.
        let state = self.allocations.get(part.allocation).map(|allocation| allocation.state);
        if state == Some(AllocationState::Sealed) || self.is_discardable(part) {
            return;
        }
        planted!(self, StaleBackingTakenForClean => return);
        self.moves.mark_dirty(part);
    }

    /// Updates whether the part counts as idle in host memory.
    pub(crate) fn track_on_host(&mut self, part: PartRef) {
        match self.footprint_of(part).filter(|_| self.is_resident_on_host(part)) {
            Some(footprint) => {
                // Its order is LRU, which takes no account of weights.
                let of = (Weight::default(), self.tenants.standing(footprint.tenant).class);
                if self.usage.idle_on_host.arrive(footprint.device, part, of, self.shell.now) {
                    self.allocations.set_on_host(part, true);
                }
            }
            None => self.untrack_on_host(part),
        }
    }

    pub(crate) fn untrack_on_host(&mut self, part: PartRef) {
        if self.usage.idle_on_host.remove(part) {
            self.allocations.set_on_host(part, false);
        }
    }

    /// Whether the part lies in host memory. A freed part counts as gone wherever it still lies.
    pub(crate) fn is_resident_on_host(&self, part: PartRef) -> bool {
        let state = self.allocations.get(part.allocation).map(|allocation| allocation.state);
        state.is_some_and(|state| state != AllocationState::Freeing) && self.lies_in_host(part)
    }

    /// A session has unmapped a fenced part. If it did not wait itself, the calls behind the fence have their
    /// time anew.
    pub(crate) fn ease_fence(&mut self, id: SessionId, part: PartRef) {
        let waits = self.pins.waiting_since(id).is_some();
        if let Some(under_way) = self.mapping.revocations.get_mut(&part).filter(|_| !waits) {
            under_way.last_progress = self.shell.now;
        }
    }
}
