//! The release of extents: the driver is told, and the extent counts as leaving until it has returned the memory.
//!
//! If a waiter needs the room, the driver releases it at once; else it takes its time. An extent of an allocation
//! that none of its parts lies in is *detached*. It is released like any other.

use std::collections::BTreeSet;

use vramd_types::ExtentId;

use crate::{
    broker::Broker,
    command::{Command, Notice},
    event::{PartRef, Tier},
    follow_up::Fact,
    handler::extents::create_extent::ExtentOrder,
    ledger::Reservation,
    line::Footprint,
    moves::Backing,
    pool::{Age, Cached, ExtentError, ExtentState},
    tenancy::TenantId,
};

impl Broker {
    /// Records an extent of the allocation that no part lies in.
    pub(crate) fn track_detached(&mut self, part: PartRef, extent: ExtentId) -> ExtentId {
        self.moves.detached.insert(part, extent);
        if let Some(allocation) = self.allocations.get_mut(part.allocation) {
            allocation.extents_left = allocation.extents_left.saturating_add(1);
        }
        extent
    }

    /// Has the driver release an extent, if it exists.
    pub(crate) fn release_extent(&mut self, id: ExtentId) {
        if self.pool.get(id).is_some_and(crate::pool::Extent::is_dropped) {
            return self.forget_nothing(id);
        }
        // A write-back still writes it; it is released when that has ended.
        let its = self.pool.get(id).and_then(|extent| extent.part);
        let written = its.is_some_and(|part| self.is_written_back_to(part, id));
        planted!(self, BackingReleasedWhileWritten => written = false);
        if written {
            return;
        }
        if !self.pool.get_mut(id).is_some_and(crate::pool::Extent::start_release) {
            return;
        }
        self.push_command(Command::ReleaseExtent { extent: id });
        self.track_leaving(id);
        self.release_now_if_awaited(&[id]);
        planted!(self, DoubleRelease => self.push_command(Command::ReleaseExtent { extent: id }));
    }

    /// Records what the driver was told to release: on a device that is room for waiters; in host memory
    /// nothing else has to leave for it.
    pub(crate) fn track_leaving(&mut self, id: ExtentId) {
        if self.has_tiers()
            && let Some(extent) = self.pool.get(id)
            && let ExtentState::Releasing(charge) = &extent.state
        {
            let (place, tenant, size) = (extent.place, charge.tenant(), extent.size);
            match place.tier {
                Tier::Device => {
                    self.line.room.track(id, Footprint { tenant, device: place.device, size });
                    // It may be enough for a waiter that lets others pass.
                    if self.line.has_hopeless() {
                        self.follow_ups.push(Fact::VictimsChanged);
                    }
                }
                Tier::Host => self.track_release(tenant, place, size),
                Tier::Disk => {}
            }
        }
    }

    /// Orders a second extent for a part, from a reservation or from a new one.
    pub(crate) fn order_second_extent(
        &mut self,
        tenant: TenantId,
        reserved: Option<Reservation>,
        order: ExtentOrder,
    ) -> Result<ExtentId, ExtentError> {
        let limit = self.config.limits.extents_max;
        if self.pool.len() >= limit {
            if let Some(reservation) = reserved {
                let account = (tenant, order.place.device);
                self.moves.backings.insert(order.part, account, order.size, Backing::Reserved(reservation));
            }
            return Err(ExtentError::TooMany);
        }
        let extent = match reserved {
            Some(reservation) => self.order_from_reservation(reservation, order)?,
            None => self.order_extent(tenant, order)?,
        };
        Ok(self.track_detached(order.part, extent))
    }

    /// Has the driver release at once what it was told to release, since a waiter needs it.
    pub(crate) fn release_now(&mut self, extents: impl IntoIterator<Item = ExtentId>) {
        let releasing = extents.into_iter().filter_map(|extent| self.pool.get(extent));
        let releasing = releasing.filter(|extent| matches!(extent.state, ExtentState::Releasing(_)));
        let on_device = releasing.filter(|extent| extent.place.tier == Tier::Device);
        let mut devices = BTreeSet::new();
        devices.extend(on_device.map(|extent| extent.place.device));
        for device in devices {
            self.push_command(Command::ReleaseNow { device });
        }
    }

    /// The same, if there is a waiter: else the driver takes its time.
    pub(crate) fn release_now_if_awaited(&mut self, extents: &[ExtentId]) {
        if self.is_room_wanted() || self.line.room.is_any_expected() {
            self.release_now(extents.iter().copied());
        }
    }

    /// Releases cached extents.
    pub(crate) fn release_cached(&mut self, ages: impl IntoIterator<Item = Age>) {
        let given_up = self.start_cached_release(ages);
        self.release_now_if_awaited(&given_up);
    }

    /// The same for a reason that is none of the line. A batch that waits may have counted on them.
    pub(crate) fn give_up_cached(&mut self, ages: impl IntoIterator<Item = Age>) {
        let given_up = self.start_cached_release(ages);
        if !given_up.is_empty() && !self.line.is_empty() {
            self.follow_ups.push(Fact::CachedTaken);
        }
        self.release_now_if_awaited(&given_up);
    }

    pub(crate) fn start_cached_release(&mut self, ages: impl IntoIterator<Item = Age>) -> Vec<ExtentId> {
        let mut given_up = Vec::new();
        for age in ages {
            let Some(Cached { extent, tenant, device, size, .. }) = self.pool.release_cached(age) else {
                continue;
            };
            self.line.room.track(extent, Footprint { tenant, device, size });
            self.push_command(Command::ReleaseExtent { extent });
            self.push_notice(Notice::GivenUp { extent, bytes: size });
            given_up.push(extent);
        }
        given_up
    }

    /// An extent has left its device, or stays there. Operations that waited for it go on.
    pub(crate) fn on_leaving_resolved(&mut self, extent: ExtentId) {
        self.follow_ups.push(Fact::LeavingResolved);
        let ready = self.line.room.take_ready(extent);
        ready.into_iter().for_each(|op| self.follow_ups.push(Fact::QuotaReady(op)));
    }

    pub(crate) fn forget_extent(&mut self, id: ExtentId, part: Option<PartRef>, was_unreturned: bool) {
        if let Some(part) = part {
            self.moves.detached.remove(part, id);
        }
        let Some(allocation) = part.and_then(|part| self.allocations.get_mut(part.allocation)) else {
            return;
        };
        allocation.extents_left = allocation.extents_left.saturating_sub(1);
        if was_unreturned {
            allocation.extents_unreturned = allocation.extents_unreturned.saturating_sub(1);
        }
    }
}
