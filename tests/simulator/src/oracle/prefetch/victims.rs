//! Parts that leave a device for a request: they are worth less than what it brings, and no other request has brought
//! them unused.

use broker_core::{PartRef, invariants::PREFETCH_VICTIMS};

use super::{RequestFacts, Told};
use crate::oracle::{Oracle, facts::Tenant};

impl Oracle {
    /// Checks a part that begins to leave a device for a request.
    pub(crate) fn check_prefetch_victim(&mut self, part: PartRef, tenant: Tenant, device: usize) {
        let pinned = self.facts.pinned.iter().find(|(of, _)| *of == part).copied();
        self.expect(PREFETCH_VICTIMS, pinned.is_none(), || {
            format!("{part:?} leaves device {device} for a request, and is pinned: {pinned:?}")
        });
        let is_cold = self.is_cold(part);
        let requests = &self.facts.prefetches.requests;
        let may_leave_for = |request: &&RequestFacts| {
            let brings_own = request.spec.parts.iter().any(|part| self.is_brought(*part, tenant));
            let is_waiting = request.was_queued() || request.is_queued();
            is_waiting
                && request.device == Some(device)
                && !request.spec.parts.contains(&part)
                && (is_cold || (brings_own && self.ranks_no_higher(part, &request.spec.parts)))
        };
        let is_worth_less = requests.values().any(|request| may_leave_for(&request));
        // A request that has ended in this event may have ended before the part was chosen.
        let brought_by = requests.iter().find(|(_, request)| {
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

    /// Whether the part was not used for so long that it may leave for the requests of any tenant.
    fn is_cold(&self, part: PartRef) -> bool {
        let now = self.facts.now;
        let used = self.facts.used.get(&part).copied();
        let cold_after = self.settings.cold_after(now);
        // A part that has left at once counts as used now, below its device.
        cold_after.is_some_and(|cold| used.is_none_or(|used| used >= now || used.after(cold) < now))
    }

    /// Whether the part is of that tenant and off its device.
    fn is_brought(&self, part: PartRef, tenant: Tenant) -> bool {
        let is_own = self.facts.allocations.get(&part.allocation).is_some_and(|it| it.tenant == tenant);
        is_own && self.tier_of(part).is_some_and(|tier| tier != broker_core::Tier::Device)
    }

    /// Bytes of a tenant that queued requests would bring to a device.
    pub(crate) fn prefetched_bytes(&self, tenant: Tenant, device: usize) -> u64 {
        let requests = self.facts.prefetches.requests.values();
        let queued = requests.filter(|it| it.device == Some(device) && (it.is_queued() || it.was_queued()));
        let parts = queued.flat_map(|it| &it.spec.parts).filter(|part| self.is_brought(**part, tenant));
        parts.filter_map(|part| self.size_of(*part)).sum()
    }
}
