//! Backing: bytes below its device that a movable part owns from its admission to its end.
//!
//! First they are a reservation. Once memory exists there the part keeps it, so its tenant pays the same below
//! wherever the part lies. A part that found no room below gets backing later, when some comes free. As long as
//! no session has written the part since it arrived, its backing is clean.

use std::collections::BTreeSet;

use vramd_types::{AllocationId, Bytes, DeviceIndex, ExtentId};

use crate::{
    broker::Broker,
    command::Notice,
    event::{Kind, PartRef, Tier},
    follow_up::Fact,
    ledger::{Place, Reservation, Shortage},
    limits::{BACKINGS_PER_EVENT, MOMENT},
    line::Footprint,
    moves::{Backing, BackingAccount},
    residency::AllocationState,
    shell::Timer,
    tenancy::TenantId,
};

impl Broker {
    /// Reserves backing for a part on its device, if its tenant has room below. Without it the part cannot
    /// leave.
    pub(crate) fn reserve_backing(
        &mut self,
        part: PartRef,
        tenant: TenantId,
        device: DeviceIndex,
        size: Bytes,
    ) {
        let Some(place) = self.ledger.place_below(tenant, device, size) else { return };
        if self.moves.backings.contains(&part) {
            return;
        }
        let account = (tenant, device);
        match self.ledger.reserve(tenant, place, size) {
            Ok(reservation) => {
                self.moves.backings.insert(part, account, size, Backing::Reserved(reservation))
            }
            Err(_) => self.moves.backings.mark_missing(part, account, size),
        }
    }

    /// Reserves backing for parts that have none, the oldest first, after bytes have come free below a device.
    pub(crate) fn reserve_late_backings(&mut self, device: DeviceIndex) {
        planted!(self, MissingBackingForgotten => return);
        let mut oldest: BTreeSet<_> = self.moves.backings.missing().oldest_of_each(device).collect();
        let (mut full, mut left) = (BTreeSet::new(), BACKINGS_PER_EVENT);
        while let Some((part, tenant, size)) = oldest.pop_first() {
            if left == 0 {
                // The timer goes on with the rest, although these reservations have changed the ledger.
                self.ledger.forget(Fact::RoomBelow(device));
                self.follow_ups.forget(Fact::RoomBelow(device));
                self.arm(self.shell.now.after(MOMENT), Timer::Backing(device));
                break;
            }
            if let Some(reservation) = self.try_reserve_late((tenant, device), size, &mut full) {
                let tier = reservation.place().tier;
                self.moves.backings.insert(part, (tenant, device), size, Backing::Reserved(reservation));
                self.mark_evictable(part);
                let tenant_name = self.tenants.shared(tenant);
                self.push_notice(Notice::Backed { part, tenant: tenant_name, device, tier, bytes: size });
                oldest.extend(self.moves.backings.missing().oldest_of(tenant, device));
                left = left.saturating_sub(1);
            }
        }
        if left < BACKINGS_PER_EVENT {
            self.follow_ups.push(Fact::BackingGained);
        }
    }

    /// Reserves backing for a part that has waited for it. `full` has the places where older parts found no
    /// room.
    fn try_reserve_late(
        &mut self,
        (tenant, device): BackingAccount,
        size: Bytes,
        full: &mut BTreeSet<Place>,
    ) -> Option<Reservation> {
        for place in self.ledger.below(device).collect::<Vec<_>>() {
            // Room within its tenant's guarantee is there for no other tenant.
            if full.contains(&place) && !self.is_guaranteed_in(tenant, place, size) {
                continue;
            }
            match self.ledger.reserve(tenant, place, size) {
                Ok(reservation) => return Some(reservation),
                Err(Shortage::Room { .. }) => _ = full.insert(place),
                Err(Shortage::Limit { .. }) => {}
            }
        }
        None
    }

    /// The part is freed or leaves, so it needs no backing. Younger parts may have waited behind it.
    pub(crate) fn stop_awaiting_backing(&mut self, part: PartRef, tenant: TenantId, device: DeviceIndex) {
        if self.moves.backings.missing().contains(&part, (tenant, device)) {
            self.moves.backings.clear_missing(&part, (tenant, device));
            self.follow_ups.push(Fact::RoomBelow(device));
        }
    }

    fn is_guaranteed_in(&self, tenant: TenantId, place: Place, more: Bytes) -> bool {
        let account = self.ledger.account(tenant, place);
        account.is_some_and(|account| account.charged().saturating_add(more) <= account.guarantee)
    }

    /// Reserves backing for all parts of a new allocation.
    pub(crate) fn reserve_backings_of(&mut self, id: AllocationId) {
        let movable = self.allocations.get(id).filter(|it| it.kind == Kind::Movable);
        let backed = movable.filter(|it| self.ledger.below(it.device).next().is_some());
        let Some(allocation) = backed else { return };
        let discardable = allocation.discardable;
        for part in allocation.indices().map(|part| PartRef { allocation: id, part }) {
            self.track_on_host(part);
            if self.tier_of(part) == Some(Tier::Device)
                && let Some(footprint) = self.footprint_of(part)
            {
                match discardable {
                    true => self.waive_backing(part, footprint),
                    false => self.reserve_backing(part, footprint.tenant, footprint.device, footprint.size),
                }
            }
        }
    }

    /// Drops the backing of a freed part.
    pub(crate) fn drop_backing(&mut self, part: PartRef) {
        self.node.pressure.failed.remove(&part);
        self.usage.residents.remove(part);
        self.untrack_on_host(part);
        if let Some(Footprint { tenant, device, .. }) = self.footprint_of(part) {
            self.stop_awaiting_backing(part, tenant, device);
        }
        self.release_backing(part);
    }

    /// Releases the backing of a part.
    pub(crate) fn release_backing(&mut self, part: PartRef) {
        planted!(self, OtherBackingKept => if self.tier_of(part) != Some(Tier::Device) { return });
        planted!(self, FileLeaked => self.forget_file(part));
        match self.moves.backings.remove(&part) {
            Some(Backing::Reserved(reservation)) => self.ledger.cancel(reservation),
            // An extent that is still being created is released afterwards.
            Some(Backing::Extent { extent, .. } | Backing::File { extent }) => self.release_extent(extent),
            Some(Backing::Needless) | None => {}
        }
    }

    pub(crate) fn drop_backings_of(&mut self, id: AllocationId) {
        for part in self.every_part_of(id) {
            self.drop_backing(part);
        }
    }

    /// Keeps memory below that the part owns and does not lie in as its backing.
    pub(crate) fn retain_backing(&mut self, part: PartRef, extent: ExtentId, clean: bool) {
        let stays = self
            .allocations
            .get(part.allocation)
            .is_some_and(|allocation| allocation.state != AllocationState::Freeing);
        if !stays {
            return self.release_extent(extent);
        }
        let made = self.pool.get(extent).map(|it| (it.is_dropped(), it.in_file, it.place.tier));
        match self.footprint_of(part).zip(made) {
            Some((footprint, (true, _, _))) => {
                self.forget_nothing(extent);
                self.waive_backing(part, footprint);
            }
            Some((Footprint { tenant, device, size }, (false, in_file, tier))) => {
                planted!(self, FileForgotten => if in_file { return self.replace_file(part, extent) });
                let kept = match in_file {
                    true => Backing::File { extent },
                    false => Backing::Extent { extent, tier, clean },
                };
                self.moves.backings.insert(part, (tenant, device), size, kept);
            }
            // The extent could not be created.
            None => self.reserve_backing_anew(part),
        }
        self.mark_evictable(part);
    }

    /// Reserves backing again. Without backing the part cannot leave.
    pub(crate) fn reserve_backing_anew(&mut self, part: PartRef) {
        if let Some(Footprint { tenant, device, size }) = self.footprint_of(part) {
            self.reserve_backing(part, tenant, device, size);
        }
        if !self.moves.backings.contains(&part) {
            self.usage.residents.remove(part);
        }
    }

    /// The backing of a part could not be created: reserves it again. A part that is leaving for another tier
    /// needs none, unless it stays: then its extent there becomes its backing.
    pub(crate) fn on_backing_failed(&mut self, part: PartRef, id: ExtentId) {
        if self.is_backing_of(part, id) {
            self.moves.backings.remove(&part);
            if !self.is_leaving(part) {
                self.reserve_backing_anew(part);
            }
        }
    }

    /// The backing that passed for clean differs from the part: the part was written behind its pins. It is
    /// copied, and operators are told.
    pub(crate) fn on_clean_backing_differs(&mut self, to: ExtentId) {
        let Some(part) = self.pool.get(to).and_then(|extent| extent.part) else { return };
        let Some(tier) = self.moves.migrations.get(part).filter(|it| it.to == to).map(|it| it.to_tier) else {
            return;
        };
        self.pool.mark_written(to);
        let Some(allocation) = self.allocations.get(part.allocation) else { return };
        let (device, bytes) = (allocation.device, allocation.size_of(part.part));
        let tenant = self.tenants.shared(allocation.tenant);
        self.push_notice(Notice::CleanBackingDiffers { part, tenant, device, tier, bytes });
    }
}
