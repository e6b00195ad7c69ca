//! Recycling: what a tenant has freed may be kept for it, so that its next allocation need not be made anew.
//!
//! A descriptor cannot be taken back. So an extent is recycled only inside its tenant, and only if it was sent to
//! nobody else and whoever was sent it has said that it let go; of all others the driver's count of references is the
//! only true end.

use std::collections::BTreeSet;

use vramd_types::{Bytes, DeviceIndex, ExtentId};

use crate::{
    broker::Broker,
    command::Notice,
    event::{Kind, PartRef, Tier},
    handler::{Timer, line::make_room::RoomPlan},
    ledger::Place,
    migration::Cause,
    pool::{Age, Extent, ExtentState},
    pressure::Pressure,
    residency::Allocation,
    tenancy::TenantId,
    time::Time,
};

impl Broker {
    /// Keeps the extent of a part that nobody maps any more, if it may be kept.
    pub(crate) fn try_cache(&mut self, part: PartRef, id: ExtentId) -> bool {
        let Some(allocation) = self.allocations.get(part.allocation) else { return false };
        if !self.can_be_cached(allocation, id) {
            return false;
        }
        self.trim_cache_for(id);
        self.cache_extent(part, id);
        self.follow_ups.full_scan = true;
        true
    }

    /// Where as much is cached as may be, what was cached first of other sizes goes for it: of its own size there is as
    /// much as before, and what is freed now is likelier to be wanted again.
    fn trim_cache_for(&mut self, id: ExtentId) {
        let Some((tenant, device, size)) = self.pool.get(id).and_then(live_account) else { return };
        while !planted!(self, CachedBeyondMax)
            && self.cached_with(tenant, device, size) > self.config.limits.cached_bytes_per_tenant_max
        {
            let Some(age) = self.pool.cache().oldest_of_other_size(tenant, device, size) else { return };
            self.release_cached([age]);
        }
    }

    /// What a tenant would have cached on a device with so much more.
    fn cached_with(&self, tenant: TenantId, device: DeviceIndex, size: Bytes) -> Bytes {
        self.pool.cache().bytes_of(tenant, device).saturating_add(size)
    }

    /// Keeps what a part has left for a part of its tenant that waits for as much.
    pub(crate) fn hand_over(&mut self, part: PartRef, id: ExtentId) -> bool {
        let Some(allocation) = self.allocations.get(part.allocation) else { return false };
        if !self.is_private_to_tenant(allocation, id) {
            return false;
        }
        #[cfg(feature = "planted")]
        if planted!(self, HandOverUncharged)
            && let (tenant, place) = (allocation.tenant, Place::device(allocation.device))
            && let Ok(nothing) = self.ledger.reserve(tenant, place, vramd_types::Bytes::ZERO)
        {
            let nothing = self.ledger.settle(nothing);
            self.pool.pay_with(id, nothing).into_iter().for_each(|charge| self.ledger.discharge(charge));
        }
        self.cache_extent(part, id);
        self.note_room_freed();
        self.untrack_detached(part.allocation, id);
        true
    }

    fn cache_extent(&mut self, part: PartRef, id: ExtentId) {
        let Some(allocation) = self.allocations.get_mut(part.allocation) else { return };
        let (tenant, device) = (allocation.tenant, allocation.device);
        let bytes = allocation.size_of(part.part);
        allocation.extents_left = allocation.extents_left.saturating_sub(1);
        self.pool.cache_extent(id, self.now);
        self.push_notice(Notice::Cached { extent: id, bytes });
        let until = self.cached_until(tenant, self.now);
        if self.cache_scan_at.is_none_or(|look| until < look) {
            self.cache_scan_at = Some(until);
            self.arm(until, Timer::Cached);
        }
        // It goes with the next look.
        if self.is_cached_under_pressure(Place::device(device)) {
            self.arm_pressure();
        }
    }

    /// Whether it was sent to nobody else, and whoever was sent it has let go.
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
        if max.is_zero() || self.draining || allocation.kind != Kind::Movable {
            return false;
        }
        let Some(extent) = self.pool.get(id) else { return false };
        let ExtentState::Live(charge) = &extent.state else { return false };
        let (tenant, device) = (charge.tenant(), extent.place.device);
        let own = *extent.sent_to == [tenant] || planted!(self, CachedThoughRead);
        if extent.place.tier != Tier::Device {
            return false;
        }
        let acknowledged = !extent.unacknowledged || planted!(self, CachedThoughCrashed);
        // What else is cached goes for it.
        let cached = self.pool.cache().bytes_of_size(tenant, device, extent.size).saturating_add(extent.size);
        own && acknowledged && cached <= max && self.can_stay_charged(tenant, Place::device(device))
    }

    /// Whether nobody is short: the tenant is within its limit, and the device covers what is committed.
    fn can_stay_charged(&self, tenant: TenantId, place: Place) -> bool {
        let within =
            self.ledger.account(tenant, place).is_some_and(|account| account.charged() <= account.limit);
        within && self.ledger.balances(place).is_some_and(|balances| balances.shortfall().is_zero())
    }

    /// A session ended that was sent the extent and has not said that it let go.
    pub(crate) fn mark_unacknowledged(&mut self, id: ExtentId) {
        let is_kept = !self.config.limits.cached_bytes_per_tenant_max.is_zero() || self.has_tiers();
        if is_kept && let Some(extent) = self.pool.get_mut(id) {
            extent.unacknowledged = true;
        }
    }

    /// Until when memory that was cached then is kept for a tenant: longer for one that may come back to it.
    pub(crate) fn cached_until(&self, tenant: TenantId, since: Time) -> Time {
        let limits = &self.config.limits;
        let is_there = self.sessions.count_of(tenant) > 0;
        since.after(if is_there {
            limits.cached_idle_for
        } else {
            limits.cached_for.min(limits.cached_idle_for)
        })
    }

    /// Gives up what has been kept long enough, and looks again when more will have been.
    pub(crate) fn expire_cached(&mut self) {
        let (mut due, mut next) = (Vec::new(), None);
        for (age, entry) in self.pool.cache().iter() {
            if planted!(self, IdleKept) && self.sessions.count_of(entry.tenant) > 0 {
                continue;
            }
            match self.cached_until(entry.tenant, entry.since) {
                until if until <= self.now => due.push(age),
                until => next = Some(next.map_or(until, |next: Time| next.min(until))),
            }
        }
        self.cache_scan_at = next;
        if let Some(next) = next {
            self.arm(next, Timer::Cached);
        }
        self.release_cached(due);
    }

    /// Where pressure is high nobody keeps what nobody uses, guaranteed or not, and whether or not there is a tier below: the
    /// oldest goes first, until no more is held than is to be then.
    pub(crate) fn release_cached_under_pressure(&mut self, place: Place) {
        let Some((fill, target)) = self.fill(place).zip(self.eviction_target(place)) else { return };
        if !self.is_cached_under_pressure(place) {
            return;
        }
        let of_device = self.awaited_room.iter().filter(|(_, was)| was.device == place.device);
        let (awaited, going): (Vec<_>, Vec<_>) = of_device.map(|(extent, was)| (extent, was.size)).unzip();
        let mut left = going.into_iter().fold(fill.charged, Bytes::saturating_sub);
        let mut given_up = BTreeSet::new();
        for (age, entry) in self.pool.cache().iter().filter(|(_, it)| it.device == place.device) {
            if left <= target {
                break;
            }
            left = left.saturating_sub(entry.size);
            given_up.insert(age);
        }
        self.execute(RoomPlan { awaited, given_up, victims: Vec::new() }, Cause::Pressure);
    }

    pub(crate) fn is_cached_under_pressure(&self, place: Place) -> bool {
        place.tier == Tier::Device
            && self.pressure_of(place) >= Pressure::High
            && !self.pool.cache().bytes_on(place.device).is_zero()
            && !planted!(self, CachedUnderPressure)
    }

    /// Nothing is kept: of one device, or of all.
    pub(crate) fn release_all_cached(&mut self, device: Option<DeviceIndex>) {
        let on_device =
            self.pool.cache().iter().filter(|(_, it)| device.is_none_or(|device| it.device == device));
        let all: Vec<Age> = on_device.map(|(age, _)| age).collect();
        self.release_cached(all);
    }
}

/// Who pays for a live extent, where it lies, and how large it is.
fn live_account(extent: &Extent) -> Option<(TenantId, DeviceIndex, Bytes)> {
    match &extent.state {
        ExtentState::Live(charge) => Some((charge.tenant(), extent.place.device, extent.size)),
        _ => None,
    }
}
