//! The cache: a freed extent may stay charged to its tenant, so that the tenant's next allocation need not have
//! one created.
//!
//! A sent descriptor cannot be taken back. So an extent is cached only for its tenant, and only if no other
//! tenant was sent it and every session that was sent it has said that it unmapped it. For all other extents
//! the driver's reference count is the only proof that they are free.

use vramd_types::{Bytes, DeviceIndex, ExtentId};

use crate::{
    broker::Broker,
    command::Notice,
    event::{Kind, PartRef, Tier},
    follow_up::Fact,
    ledger::Place,
    pool::{Age, Extent, ExtentState},
    residency::Allocation,
    shell::Timer,
    tenancy::TenantId,
    time::Time,
};

impl Broker {
    /// Caches the extent of a part that no session maps, if it may be cached. Returns whether it did.
    pub(crate) fn try_cache(&mut self, part: PartRef, id: ExtentId) -> bool {
        let Some(allocation) = self.allocations.get(part.allocation) else { return false };
        if !self.can_be_cached(allocation, id) {
            return false;
        }
        self.trim_cache_for(id);
        self.cache_extent(part, id);
        self.follow_ups.push(Fact::ExtentCached);
        true
    }

    /// At the maximum, releases cached extents of other sizes, the oldest first. Of its own size the tenant has
    /// as many as before, and what is freed now is likelier to be wanted again.
    fn trim_cache_for(&mut self, id: ExtentId) {
        let Some((tenant, device, size)) = self.pool.get(id).and_then(live_account) else { return };
        planted!(self, CachedBeyondMax => return);
        while self.cached_with(tenant, device, size) > self.config.limits.cached_bytes_per_tenant_max {
            let Some(age) = self.pool.cache().oldest_of_other_size(tenant, device, size) else { return };
            self.release_cached([age]);
        }
    }

    /// The bytes that a tenant would have cached on a device with this much more.
    fn cached_with(&self, tenant: TenantId, device: DeviceIndex, size: Bytes) -> Bytes {
        self.pool.cache().bytes_of(tenant, device).saturating_add(size)
    }

    /// Caches the extent that a part has left for the next waiter of its tenant and size. Returns whether it
    /// did.
    pub(crate) fn hand_over(&mut self, part: PartRef, id: ExtentId) -> bool {
        let Some(allocation) = self.allocations.get(part.allocation) else { return false };
        if !self.is_private_to_tenant(allocation, id) {
            return false;
        }
        planted!(self, HandOverUncharged => self.discharge_live(part, id));
        self.cache_extent(part, id);
        self.follow_ups.push(Fact::RoomFreed);
        self.moves.detached.remove(part, id);
        true
    }

    fn cache_extent(&mut self, part: PartRef, id: ExtentId) {
        let Some(allocation) = self.allocations.get_mut(part.allocation) else { return };
        let (tenant, device) = (allocation.tenant, allocation.device);
        let bytes = allocation.size_of(part.part);
        allocation.extents_left = allocation.extents_left.saturating_sub(1);
        self.pool.cache_extent(id, self.shell.now);
        self.push_notice(Notice::Cached { extent: id, bytes });
        let until = self.cached_until(tenant, self.shell.now);
        if self.node.cache_scan_at.is_none_or(|look| until < look) {
            self.node.cache_scan_at = Some(until);
            self.arm(until, Timer::Cached);
        }
        // The next sample of the pressure releases it.
        if self.is_cached_under_pressure(Place::device(device)) {
            self.arm_pressure();
        }
    }

    /// Whether no other tenant was sent the extent, and every session that was sent it has unmapped it.
    fn is_private_to_tenant(&self, allocation: &Allocation, id: ExtentId) -> bool {
        let Some(extent) = self.pool.get(id) else { return false };
        let ExtentState::Live(charge) = &extent.state else { return false };
        let tenant = charge.tenant();
        let own = *extent.sent_to == [tenant] || extent.sent_to.is_empty();
        extent.place.tier == Tier::Device
            && allocation.kind == Kind::Movable
            && own
            && !extent.unacknowledged
            && self.can_stay_charged(tenant, extent.place)
    }

    fn can_be_cached(&self, allocation: &Allocation, id: ExtentId) -> bool {
        let max = self.config.limits.cached_bytes_per_tenant_max;
        if max.is_zero() || self.node.draining || allocation.kind != Kind::Movable {
            return false;
        }
        let Some(extent) = self.pool.get(id) else { return false };
        let ExtentState::Live(charge) = &extent.state else { return false };
        let (tenant, device) = (charge.tenant(), extent.place.device);
        let own = *extent.sent_to == [tenant];
        planted!(self, CachedThoughRead => own = true);
        if extent.place.tier != Tier::Device {
            return false;
        }
        let acknowledged = !extent.unacknowledged;
        planted!(self, CachedThoughCrashed => acknowledged = true);
        // Other cached extents are released for it.
        let cached = self.pool.cache().bytes_of_size(tenant, device, extent.size).saturating_add(extent.size);
        own && acknowledged && cached <= max && self.can_stay_charged(tenant, Place::device(device))
    }

    /// Whether nothing is short: the tenant is within its limit, and the device covers the committed bytes.
    fn can_stay_charged(&self, tenant: TenantId, place: Place) -> bool {
        let within =
            self.ledger.account(tenant, place).is_some_and(|account| account.charged() <= account.limit);
        within && self.ledger.balances(place).is_some_and(|balances| balances.shortfall().is_zero())
    }

    /// Marks an extent whose session ended before it said that it unmapped it.
    pub(crate) fn mark_unacknowledged(&mut self, id: ExtentId) {
        let is_kept = !self.config.limits.cached_bytes_per_tenant_max.is_zero() || self.has_tiers();
        if is_kept && let Some(extent) = self.pool.get_mut(id) {
            extent.unacknowledged = true;
        }
    }

    /// Until when cached memory stays for a tenant: longer for a tenant with sessions.
    pub(crate) fn cached_until(&self, tenant: TenantId, since: Time) -> Time {
        let limits = &self.config.limits;
        let is_there = self.sessions.count_of(tenant) > 0;
        since.after(if is_there {
            limits.cached_idle_for
        } else {
            limits.cached_for.min(limits.cached_idle_for)
        })
    }

    /// Releases extents that were cached long enough, and sets the timer for the next.
    pub(crate) fn expire_cached(&mut self) {
        let (mut due, mut next) = (Vec::new(), None);
        for (age, entry) in self.pool.cache().iter() {
            planted!(self, IdleCacheKept => if self.sessions.count_of(entry.tenant) > 0 { continue });
            match self.cached_until(entry.tenant, entry.since) {
                until if until <= self.shell.now => due.push(age),
                until => next = Some(next.map_or(until, |next: Time| next.min(until))),
            }
        }
        self.node.cache_scan_at = next;
        if let Some(next) = next {
            self.arm(next, Timer::Cached);
        }
        self.give_up_cached(due);
    }

    /// Releases all cached extents of one device, or of all.
    pub(crate) fn release_all_cached(&mut self, device: Option<DeviceIndex>) {
        let on_device =
            self.pool.cache().iter().filter(|(_, it)| device.is_none_or(|device| it.device == device));
        let all: Vec<Age> = on_device.map(|(age, _)| age).collect();
        self.release_cached(all);
    }

    /// Takes a cached extent of the tenant for the part.
    pub(crate) fn reuse_cached(
        &mut self,
        tenant: TenantId,
        device: DeviceIndex,
        size: Bytes,
        part: PartRef,
    ) -> Option<ExtentId> {
        planted!(self, CachedToAnotherTenant => tenant = self.pool.tenant_with_cached(device, size, tenant));
        let extent = self.pool.reuse(tenant, device, size, part)?;
        self.push_notice(Notice::Reused { extent, part });
        Some(extent)
    }
}

/// The tenant that pays for a live extent, its device and its size.
fn live_account(extent: &Extent) -> Option<(TenantId, DeviceIndex, Bytes)> {
    match &extent.state {
        ExtentState::Live(charge) => Some((charge.tenant(), extent.place.device, extent.size)),
        _ => None,
    }
}
