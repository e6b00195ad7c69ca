//! Where a part lies, and how far it is on its way elsewhere.

use std::collections::BTreeSet;

use vramd_types::{AllocationId, Bytes, DeviceIndex, ExtentId, SessionId};

use crate::{
    broker::Broker,
    config::DeviceConfig,
    event::{PartRef, Tier},
    line::Footprint,
    moves::{Backing, Migration},
    pool::Extent,
    residency::{Allocation, AllocationState, MapState},
    tenancy::TenantClass,
};

impl Broker {
    /// Whether the part cannot be sent to a session now: it lies in another tier, or is moving.
    pub(crate) fn is_off_device(&self, part: PartRef) -> bool {
        match self.moves.migrations.get(part) {
            Some(migration) => migration.is_unmapped,
            None => {
                self.tier_of(part).is_some_and(|tier| tier != Tier::Device)
                    && self.has_tiers()
                    && !self.is_in_place(part)
            }
        }
    }

    /// Whether the part is mapped where it lies in host memory, or would be. A part that is mapped there can be
    /// sent to every session until the last has unmapped it, advised or not.
    pub(crate) fn is_in_place(&self, part: PartRef) -> bool {
        self.lies_in_host(part) && (self.is_advised_to_stay(part) || self.has_mappers(part))
    }

    /// Whether the part lies in host memory, and is to be mapped there.
    pub(crate) fn stays_in_place(&self, part: PartRef) -> bool {
        self.is_advised_to_stay(part) && self.lies_in_host(part)
    }

    /// Whether the part is to be mapped where it lies, by advice or since a move does not pay, and it is not on its way to
    /// its device.
    fn is_advised_to_stay(&self, part: PartRef) -> bool {
        let advised = self.allocations.get(part.allocation).is_some_and(|allocation| allocation.in_place);
        planted!(self, FetchedThoughAdvised => advised = false);
        (advised || self.mapping.chosen_in_place.contains(&part))
            && self.moves.migrations.get(part).is_none_or(|migration| migration.to_tier != Tier::Device)
    }

    pub(crate) fn lies_in_host(&self, part: PartRef) -> bool {
        self.extent_of(part).is_some_and(|it| it.place.tier == Tier::Host && !it.is_dropped())
    }

    /// The parts of an allocation that the daemon chose to have read in host memory.
    pub(crate) fn chosen_in_place_of(&self, id: AllocationId) -> Vec<PartRef> {
        self.mapping.chosen_in_place.range(PartRef::all_of(id)).copied().collect()
    }

    /// The same among these parts, mostly none of them.
    pub(crate) fn chosen_in_place_among(&self, parts: impl Iterator<Item = PartRef>) -> Vec<PartRef> {
        parts.filter(|part| self.mapping.chosen_in_place.contains(part)).collect()
    }

    /// The parts of an allocation that cannot be sent now.
    pub(crate) fn parts_off_device(&self, id: AllocationId) -> BTreeSet<PartRef> {
        match self.has_tiers() {
            true => self.every_part_of(id).filter(|part| self.is_off_device(*part)).collect(),
            false => BTreeSet::new(),
        }
    }

    /// All parts of an allocation, if it exists.
    pub(crate) fn every_part_of(&self, id: AllocationId) -> impl Iterator<Item = PartRef> + use<> {
        let indices = self.allocations.get(id).map(Allocation::indices);
        indices.into_iter().flatten().map(move |part| PartRef { allocation: id, part })
    }

    /// Whether parts can lie anywhere else than on their devices.
    pub(crate) fn has_tiers(&self) -> bool {
        let has_below = |device: &DeviceConfig| !(device.host.is_zero() && device.disk.is_zero());
        self.config.files || self.config.devices.iter().any(has_below)
    }

    /// Whether a session waits for the part to be on its device.
    pub(crate) fn is_wanted(&self, part: PartRef) -> bool {
        self.pins.missing(part).next().is_some()
            || (self.moves.attach_waiters.of(part))
                .any(|session| self.map_state(session, part) == Some(MapState::Away))
    }

    /// Sessions that wait for the part: they pin it, or are to be sent it.
    pub(crate) fn sessions_waiting_for(&self, part: PartRef) -> Vec<SessionId> {
        let pinning = self.pins.missing(part).map(|(_, (session, _))| session);
        let sessions: BTreeSet<_> = pinning.chain(self.moves.attach_waiters.of(part)).collect();
        sessions.into_iter().collect()
    }

    pub(crate) fn footprint_of(&self, part: PartRef) -> Option<Footprint> {
        let allocation = self.allocations.get(part.allocation)?;
        let (tenant, device) = (allocation.tenant, allocation.device);
        Some(Footprint { tenant, device, size: allocation.size_of(part.part) })
    }

    /// The class of the tenant that is charged for a part.
    pub(crate) fn class_of(&self, part: PartRef) -> Option<TenantClass> {
        self.footprint_of(part).map(|footprint| self.tenants.standing(footprint.tenant).class)
    }

    /// Whether the part is leaving its device.
    pub(crate) fn is_leaving(&self, part: PartRef) -> bool {
        self.moves.migrations.get(part).is_some_and(|migration| migration.from_tier == Tier::Device)
    }

    /// Whether the part is leaving its device and no waiter needs its room so far.
    pub(crate) fn is_leaving_unawaited(&self, part: PartRef) -> bool {
        self.moves
            .migrations
            .get(part)
            .is_some_and(|migration| migration.from_tier == Tier::Device && !migration.awaited)
    }

    /// Whether the part is leaving its device and a waiter needs its room by now.
    pub(crate) fn is_room_awaited(&self, part: PartRef) -> bool {
        self.moves
            .migrations
            .get(part)
            .is_some_and(|migration| migration.from_tier == Tier::Device && migration.awaited)
    }

    /// The tier that has the bytes of the part: during a migration, its source.
    pub(crate) fn tier_of(&self, part: PartRef) -> Option<Tier> {
        Some(self.extent_of(part)?.place.tier)
    }

    /// The extent that the part lies in.
    pub(crate) fn extent_of(&self, part: PartRef) -> Option<&Extent> {
        let entry = self.allocations.get(part.allocation)?.part(part.part)?;
        self.pool.get(entry.extent)
    }

    /// Bytes that are moving to or from a device.
    pub(crate) fn moving_bytes(&self, device: DeviceIndex, is_meant: impl Fn(&Migration) -> bool) -> Bytes {
        let meant = self.moves.migrations.iter().filter(|(_, it)| is_meant(it));
        let extents = meant.filter_map(|(_, it)| self.pool.get(it.to));
        let sizes = extents.filter(|extent| extent.place.device == device).map(|extent| extent.size);
        sizes.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// The tier that the part leaves its device for, unless an operator names one.
    pub(crate) fn tier_below(&self, part: PartRef) -> Option<Tier> {
        let device = self.allocations.get(part.allocation)?.device;
        let nearest = || self.ledger.below(device).next().map(|place| place.tier);
        self.moves.backings.get(&part).and_then(Backing::tier).or_else(nearest)
    }

    /// Whether the extent is the backing of the part.
    pub(crate) fn is_backing_of(&self, part: PartRef, id: ExtentId) -> bool {
        let its = self.moves.backings.get(&part);
        matches!(its, Some(Backing::Extent { extent, .. } | Backing::File { extent }) if *extent == id)
    }

    /// Whether the extent exists and is not being released.
    pub(crate) fn is_live(&self, id: ExtentId) -> bool {
        self.pool.get(id).is_some_and(Extent::can_hold_part)
    }

    /// Whether a write-back is writing this extent, so that it must not be released.
    pub(crate) fn is_written_back_to(&self, part: PartRef, id: ExtentId) -> bool {
        self.moves.write_backs.get(part).is_some_and(|it| it.to == id && it.state.is_copying())
    }

    pub(crate) fn is_discardable(&self, part: PartRef) -> bool {
        self.allocations.get(part.allocation).is_some_and(|allocation| allocation.discardable)
    }

    /// How often the part was dropped.
    pub(crate) fn drop_count_of(&self, part: PartRef) -> u64 {
        planted!(self, DropUnreported => return 0);
        self.moves.drop_count_of(part)
    }

    /// Whether the part is dropped.
    pub(crate) fn is_dropped(&self, part: PartRef) -> bool {
        self.extent_of(part).is_some_and(Extent::is_dropped)
    }

    /// Whether the part lies on disk and no session has ever written it. Then it is zeros wherever it moves.
    pub(crate) fn is_unwritten(&self, part: PartRef) -> bool {
        self.extent_of(part).is_some_and(|extent| extent.unwritten)
    }

    /// Whether the allocation is open or sealed, so that nothing is being done with it as a whole.
    pub(crate) fn is_stable(&self, id: AllocationId) -> bool {
        let state = self.allocations.get(id).map(|allocation| allocation.state);
        matches!(state, Some(AllocationState::Open | AllocationState::Sealed))
    }

    /// Whether an operator holds the part, and it lies on its device.
    pub(crate) fn is_held_on_device(&self, part: PartRef) -> bool {
        self.moves.is_held(part) && self.tier_of(part) == Some(Tier::Device)
    }

    /// Whether any of its parts lies in its file, or has the file as backing.
    pub(crate) fn has_file(&self, id: AllocationId) -> bool {
        let in_file = |part: PartRef| {
            let lies = self.extent_of(part).is_some_and(|extent| extent.in_file);
            lies || matches!(self.moves.backings.get(&part), Some(Backing::File { .. }))
        };
        self.allocations.get(id).is_some_and(|allocation| allocation.file.is_some())
            && self.every_part_of(id).any(in_file)
    }
}
