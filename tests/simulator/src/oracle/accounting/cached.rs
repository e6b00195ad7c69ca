//! A cached extent stays inside its tenant, was unmapped by every session that was sent it, and is reused
//! only for parts that accept old content. No request is refused because of memory that is only cached.

use broker_core::{
    Broker, ClientRequest, PartRef,
    invariants::{CACHE_REUSE, COPIES, EXTENT_USE, LIMIT},
};
use vramd_types::ExtentId;

use crate::oracle::{
    Oracle,
    facts::{Asked, ExtentPhase, Tenant},
};

impl Oracle {
    pub(crate) fn check_cached(&mut self, id: ExtentId) {
        let Some(extent) = self.facts.extents.get_mut(&id) else {
            return self.expect(EXTENT_USE, false, || format!("{id} is cached and does not exist"));
        };
        let (owner, place, size) = (extent.owner, extent.place, extent.size);
        let live = std::mem::replace(&mut extent.phase, ExtentPhase::Cached) == ExtentPhase::Live;
        let unused = extent.mappers.is_empty() && !extent.being_read;
        let (all_own, acknowledged) = (extent.sent_to.iter().all(|of| *of == owner), !extent.unacknowledged);
        let (copied, was_sent) = (extent.copied, !extent.sent_to.is_empty());
        // The next part that it is sent as must be of the same tenant: `extents.rs` checks that.
        extent.detached = false;
        // A discardable part may leave before any session was sent it. Then the oracle does not know which
        // part had the extent.
        let unknown = extent.part.is_none();
        let backed = extent.part.take().and_then(|part| self.facts.allocations.get(&part.allocation));
        // A part has left it, and another part of its tenant waits for that many bytes.
        let handed_over = unknown || backed.is_some_and(|allocation| !allocation.leaving);
        let own = all_own && (was_sent || handed_over);
        let movable = backed.is_none_or(|allocation| allocation.kind == broker_core::Kind::Movable);
        self.expect(COPIES, !copied, || format!("{id} is cached while it is copied"));
        self.expect(CACHE_REUSE, live && unused, || format!("{id} is cached and in use"));
        self.expect(CACHE_REUSE, own, || format!("{id} is cached and was sent to another tenant"));
        self.expect(CACHE_REUSE, acknowledged, || {
            format!("{id} is cached, and not every session has reported that it unmapped it")
        });
        self.expect(CACHE_REUSE, movable, || format!("{id} is cached and was never movable"));
        let draining = self.facts.draining;
        self.expect(CACHE_REUSE, !draining || handed_over, || format!("{id} is cached on a draining node"));
        let cached = self.facts.cached.entry((owner, place)).or_default();
        *cached += size;
        let (cached, max) = (*cached, self.limits.cached_bytes_per_tenant_max.get());
        self.expect(LIMIT, cached <= max || handed_over, || {
            format!("{cached} cached for one tenant, at most {max}")
        });
        self.step.changed_accounts.push((owner, place));
    }

    /// Checks the reuse of a cached extent, for a new part or for one that moves there.
    pub(crate) fn check_reuse(&mut self, id: ExtentId, part: PartRef, broker: &Broker) {
        self.step.ordered_count += 1;
        let moves = self.facts.allocations.contains_key(&part.allocation);
        if moves {
            self.reserve_batch_backing();
        }
        match moves {
            true => {
                self.step.fetched.push(part);
                self.record_move_start(id, part);
            }
            false => _ = self.record_new_memory(id),
        }
        let Some(extent) = self.facts.extents.get_mut(&id) else {
            return self.expect(EXTENT_USE, false, || format!("{id} is reused and does not exist"));
        };
        let cached = std::mem::replace(&mut extent.phase, ExtentPhase::Live) == ExtentPhase::Cached;
        extent.reused = true;
        (extent.part, extent.detached) = (moves.then_some(part), moves);
        let (owner, place, size) = (extent.owner, extent.place, extent.size);
        self.expect(CACHE_REUSE, cached, || format!("{id} is reused and was not cached"));
        self.remove_from_cache(id);
        *self.step.taken.entry((owner, place)).or_default() += size;
        if moves {
            self.record_charge_with(part, place);
        } else {
            if self.step.retried_tenant.is_none() {
                let in_use = self.charged_in_use(owner, place);
                self.step.made_at_once.insert((owner, place), in_use);
            }
            self.record_new_part(part, (owner, place, size), broker);
        }
    }

    /// Subtracts an extent from its tenant's cached bytes.
    pub(crate) fn remove_from_cache(&mut self, id: ExtentId) {
        let Some(extent) = self.facts.extents.get(&id) else { return };
        let cached = self.facts.cached.entry((extent.owner, extent.place)).or_default();
        *cached = cached.saturating_sub(extent.size);
        self.facts.cached_since.get_mut(&extent.place).and_then(|since| since.remove(&id));
    }

    /// Records that a waiting request is tried again: the tenant, if it is a batch that waits.
    pub(crate) fn record_room_made(&mut self, tenant: Option<&str>) {
        let Some(tenant) = tenant.map(|tenant| self.facts.tenant(tenant)) else { return };
        let waits = self.facts.calls.values().any(|call| match &call.asked {
            Asked::Client { session, request: ClientRequest::AllocateBatch { .. }, .. } => {
                self.facts.sessions.get(session).is_some_and(|it| it.tenant == tenant)
            }
            _ => false,
        });
        self.expect(EXTENT_USE, waits, || "a batch is tried again although no call waits for one".to_owned());
        self.step.retried_tenant = Some(tenant);
        self.step.retried.insert(tenant);
    }

    pub(crate) fn cached(&self, tenant: Tenant, place: usize) -> u64 {
        self.facts.cached.get(&(tenant, place)).copied().unwrap_or_default()
    }

    /// Bytes that a tenant would be charged if it had nothing cached, and all cached memory on its way to the
    /// driver had arrived.
    pub(crate) fn charged_in_use(&self, tenant: Tenant, place: usize) -> u64 {
        let going = self.facts.cached_leaving.get(&(tenant, place)).copied().unwrap_or_default();
        self.facts.charged(tenant, place).saturating_sub(self.cached(tenant, place)).saturating_sub(going)
    }
}
