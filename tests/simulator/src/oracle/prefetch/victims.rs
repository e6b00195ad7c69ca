//! Parts that leave a device for a request: they are worth less than what it brings, and no other request has brought
//! them unused.

use broker_core::{Broker, PartRef, Time, invariants::PREFETCH_VICTIMS};

use super::{RequestFacts, Told};
use crate::oracle::{Oracle, facts::Tenant};

impl Oracle {
    /// Checks a part that begins to leave a device for a request.
    pub(crate) fn check_prefetch_victim(
        &mut self,
        (part, tenant, device): (PartRef, Tenant, usize),
        broker: &Broker,
    ) {
        // The core learns of pins only while the part may leave.
        let is_over = |pin| self.facts.claimed_pins.contains(pin) || self.facts.yielded_pins.contains(pin);
        let pinned = self.facts.evictable_pins.iter().find(|pin| pin.0 == part && !is_over(pin)).copied();
        self.expect(PREFETCH_VICTIMS, pinned.is_none(), || {
            format!("{part:?} leaves device {device} for a request, and is pinned: {pinned:?}")
        });
        let is_cold = self.is_cold(part);
        let is_worth_less = self
            .waiting_on(device)
            .any(|it| is_cold && !it.spec.parts.contains(&part) || self.leaves_for(part, tenant, it))
            || self.may_leave_for_sequence((part, tenant, device), is_cold, broker);
        let brought_for = self.facts.prefetches.sequences.is_kept(part, broker);
        self.expect(PREFETCH_VICTIMS, !brought_for, || {
            format!("{part:?} leaves for a request, and was brought for a step ahead")
        });
        let requests = &self.facts.prefetches.requests;
        // A request that has ended in this event, or whose session has, may have ended before the part was chosen.
        let mut heard = requests.iter().filter(|(id, _)| self.is_prefetch_heard(id.0));
        let brought_by = heard.find(|(_, request)| {
            let has_begun = request.has_begun_before() && request.told < Told::End;
            has_begun && (request.unused.contains(&part) || request.coming.contains(&part))
        });
        let brought_by = brought_by.map(|(id, request)| (*id, request.clone()));
        let used = self.facts.used.get(&part).copied();
        self.expect(PREFETCH_VICTIMS, is_worth_less, || {
            format!(
                "{part:?} of tenant {tenant} was used at {used:?}, and leaves device {device} for a request"
            )
        });
        self.expect(PREFETCH_VICTIMS, brought_by.is_none(), || {
            format!("{part:?} leaves for a request, and was brought by {brought_by:?}")
        });
    }

    fn waiting_on(&self, device: usize) -> impl Iterator<Item = &RequestFacts> {
        let requests = self.facts.prefetches.requests.values();
        requests.filter(move |it| it.may_have_made_room() && it.device == Some(device))
    }

    /// Whether the part of the tenant is worth less than what the request brings of the same tenant.
    fn leaves_for(&self, part: PartRef, tenant: Tenant, request: &RequestFacts) -> bool {
        let brings_own = request.spec.parts.iter().any(|part| self.is_brought(*part, tenant));
        let is_worth_less = match self.facts.prefetches.sequences.is_ahead(tenant, part) {
            Some(is_ahead) => !is_ahead,
            None => self.ranks_no_higher(part, &request.spec.parts),
        };
        brings_own && !request.spec.parts.contains(&part) && is_worth_less
    }

    /// Whether `other` certainly may leave for each request for which this part of its tenant may.
    pub(crate) fn leaves_for_requests(
        &self,
        other: PartRef,
        (part, tenant, device): (PartRef, Tenant, usize),
        broker: &Broker,
    ) -> bool {
        let is_cold = self.is_cold(part);
        let mut beneficiaries =
            self.waiting_on(device).filter(|it| is_cold || self.leaves_for(part, tenant, it));
        let for_others = is_cold && self.has_sequenced_of_others(tenant, device, broker);
        self.is_surely_cold(other)
            || (!for_others && beneficiaries.all(|it| self.leaves_for(other, tenant, it)))
    }

    /// When the core may count the part as used last: also when it gets its backing, or stays after all.
    pub(crate) fn last_use_of(&self, part: PartRef) -> Option<Time> {
        self.facts.used.get(&part).copied().max(self.facts.backed.get(&part).copied())
    }

    /// Whether the core certainly counts the part as unused for so long that it may leave for the requests of any tenant.
    pub(crate) fn is_surely_cold(&self, part: PartRef) -> bool {
        let cold_after = self.settings.cold_after(self.facts.now);
        cold_after.zip(self.last_use_of(part)).is_some_and(|(cold, used)| used.after(cold) < self.facts.now)
    }

    /// Whether the core may count the part as unused for that long.
    fn is_cold(&self, part: PartRef) -> bool {
        let now = self.facts.now;
        let used = self.facts.used.get(&part).copied();
        let cold_after = self.settings.cold_after(now);
        // A part that has left at once counts as used now, below its device.
        cold_after.is_some_and(|cold| used.is_none_or(|used| used >= now || used.after(cold) < now))
    }

    /// Whether the part is of that tenant and off its device, or was before this event.
    pub(super) fn is_brought(&self, part: PartRef, tenant: Tenant) -> bool {
        let is_own = self.facts.allocations.get(&part.allocation).is_some_and(|it| it.tenant == tenant);
        let is_below = self.tier_of(part).is_some_and(|tier| tier != broker_core::Tier::Device);
        is_own && (is_below || self.step.fetched.contains(&part))
    }

    /// Bytes of a tenant that queued requests would bring to a device.
    pub(crate) fn prefetched_bytes(&self, tenant: Tenant, device: usize, broker: &Broker) -> u64 {
        let requests = self.facts.prefetches.requests.values();
        let queued = requests.filter(|it| it.device == Some(device) && it.may_have_made_room());
        let parts = queued.flat_map(|it| &it.spec.parts).filter(|part| self.is_brought(**part, tenant));
        let bytes: u64 = parts.filter_map(|part| self.size_of(*part)).sum();
        bytes.saturating_add(self.sequenced_bytes(tenant, broker))
    }
}
