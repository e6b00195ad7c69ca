//! Extents: pieces of physical memory, each with its charge.
//!
//! ```text
//!                               reuse
//!                          ┌──────────── Cached
//!               created    ▼   recycle     ▲ │ give up
//!  Creating ─────────────► Live ───────────┘ ▼         returned
//!     │ failed              └──────────► Releasing ──────────────► (gone)
//!     └──► (gone)              release       │ still held            ▲
//!                                            └──────► Unreturned ────┘
//! ```

use std::collections::BTreeMap;

use smallvec::SmallVec;
use vramd_types::{Bytes, DeviceIndex, ExtentId, IdSource};

use super::{Age, Cache, Cached};
use crate::{
    collections::IdMap,
    event::PartRef,
    ledger::{Charge, Debt, Place, Reservation},
    observed::ChangedKeys,
    tenancy::TenantId,
    time::Time,
};

/// The state of an extent together with its charge. They change together, so neither is lost without the
/// other.
#[derive(Debug)]
pub(crate) enum ExtentState {
    Creating(Reservation),
    Live(Charge),
    /// Cached for its tenant, which goes on paying. It backs no part, and is released first when a waiter
    /// needs room.
    Cached(Charge),
    /// The driver was told to release it.
    Releasing(Charge),
    /// The driver released it, and a process still has the memory open.
    Unreturned(Vec<Debt>),
    /// The extent of a dropped part: no memory and no charge. The driver never sees it.
    Dropped,
}

#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) place: Place,
    pub(crate) size: Bytes,
    /// The part that it backs; `None` while it is cached.
    pub(crate) part: Option<PartRef>,
    pub(crate) state: ExtentState,
    /// Tenants whose sessions were sent its descriptor.
    pub(crate) sent_to: SmallVec<[TenantId; 4]>,
    /// A session that was sent it ended without confirming the unmap.
    pub(crate) unacknowledged: bool,
    /// It lies on disk and was never written: it stands for zeros, and must not be read.
    pub(crate) unwritten: bool,
    /// It is a piece of a file: charged to no tenant, and never written.
    pub(crate) in_file: bool,
}

/// The placeholder state while a method moves the charge out.
const TAKEN_OUT: ExtentState = ExtentState::Unreturned(Vec::new());

impl Extent {
    /// Creates the extent of a part. It was sent to no session yet.
    pub(crate) fn new(place: Place, size: Bytes, part: PartRef, state: ExtentState) -> Self {
        let (part, sent_to, unacknowledged) = (Some(part), SmallVec::new(), false);
        Self { place, size, part, state, sent_to, unacknowledged, unwritten: false, in_file: false }
    }

    /// Takes the reservation of an extent that is being created, to settle or cancel it.
    pub(crate) fn take_reservation(&mut self) -> Option<Reservation> {
        match std::mem::replace(&mut self.state, TAKEN_OUT) {
            ExtentState::Creating(reservation) => Some(reservation),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Takes the charge of an extent that is being released, to discharge it or turn it into debts.
    pub(crate) fn take_released(&mut self) -> Option<Charge> {
        match std::mem::replace(&mut self.state, TAKEN_OUT) {
            ExtentState::Releasing(charge) => Some(charge),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Begins the release of a live extent. Returns whether it was live.
    pub(crate) fn start_release(&mut self) -> bool {
        let is_live = matches!(self.state, ExtentState::Live(_));
        if is_live {
            self.move_charge_to(ExtentState::Releasing);
        }
        is_live
    }

    /// Whether a part can lie in it.
    pub(crate) const fn can_hold_part(&self) -> bool {
        matches!(self.state, ExtentState::Live(_) | ExtentState::Dropped)
    }

    /// The bytes that are charged for it.
    pub(crate) const fn cost(&self) -> Bytes {
        if self.in_file { Bytes::ZERO } else { self.size }
    }

    pub(crate) const fn is_dropped(&self) -> bool {
        matches!(self.state, ExtentState::Dropped)
    }

    /// The accounts that are charged for it.
    #[cfg(feature = "observed")]
    pub(crate) fn accounts(&self) -> Vec<(TenantId, Place)> {
        match &self.state {
            ExtentState::Creating(it) => vec![(it.tenant(), it.place())],
            ExtentState::Live(it) | ExtentState::Cached(it) | ExtentState::Releasing(it) => {
                vec![(it.tenant(), it.place())]
            }
            ExtentState::Unreturned(debts) => debts.iter().map(|it| (it.tenant(), it.place())).collect(),
            ExtentState::Dropped => Vec::new(),
        }
    }

    /// Moves the charge of a live or cached extent to another state.
    fn move_charge_to(&mut self, next: fn(Charge) -> ExtentState) {
        self.state = match std::mem::replace(&mut self.state, TAKEN_OUT) {
            ExtentState::Live(charge) | ExtentState::Cached(charge) => next(charge),
            other => other,
        };
    }
}

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) ids: IdSource,
    extents: IdMap<Extent>,
    /// The number of unreturned extents of each device.
    unreturned: BTreeMap<DeviceIndex, usize>,
    /// The number of dropped extents.
    dropped: usize,
    /// The number of pieces of files.
    in_file: usize,
    cache: Cache,
    pub(crate) changed_keys: ChangedKeys<ExtentId>,
}

impl Pool {
    pub(crate) fn new(epoch: u64) -> Self {
        Self {
            ids: IdSource::new(epoch),
            extents: IdMap::default(),
            unreturned: BTreeMap::new(),
            dropped: 0,
            in_file: 0,
            cache: Cache::default(),
            changed_keys: ChangedKeys::default(),
        }
    }

    pub(crate) fn insert(&mut self, id: ExtentId, extent: Extent) {
        self.changed_keys.note(id);
        self.dropped = self.dropped.saturating_add(usize::from(extent.is_dropped()));
        self.in_file = self.in_file.saturating_add(usize::from(extent.in_file));
        self.extents.insert(id.get(), extent);
    }

    pub(crate) fn get(&self, id: ExtentId) -> Option<&Extent> {
        self.extents.get(id.get())
    }

    /// Returns the extent if it still backs that part. A reused extent may back another.
    pub(crate) fn extent_of_part(&self, part: PartRef, id: ExtentId) -> Option<&Extent> {
        self.get(id).filter(|extent| extent.part == Some(part))
    }

    /// Records that the extent is about to be written.
    pub(crate) fn mark_written(&mut self, id: ExtentId) {
        if let Some(extent) = self.get_mut(id) {
            extent.unwritten = false;
        }
    }

    pub(crate) fn get_mut(&mut self, id: ExtentId) -> Option<&mut Extent> {
        self.changed_keys.note(id);
        self.extents.get_mut(id.get())
    }

    /// Takes an extent out, to put it back in another state or to forget it.
    pub(crate) fn take(&mut self, id: ExtentId) -> Option<Extent> {
        self.changed_keys.note(id);
        let extent = self.extents.remove(id.get())?;
        self.dropped = self.dropped.saturating_sub(usize::from(extent.is_dropped()));
        self.in_file = self.in_file.saturating_sub(usize::from(extent.in_file));
        if matches!(&extent.state, ExtentState::Unreturned(debts) if !debts.is_empty()) {
            self.count_unreturned(extent.place.device, |count| count.saturating_sub(1));
        }
        Some(extent)
    }

    pub(crate) fn put_unreturned(&mut self, id: ExtentId, extent: Extent) {
        self.count_unreturned(extent.place.device, |count| count.saturating_add(1));
        self.insert(id, extent);
    }

    pub(crate) const fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Caches a live extent that backs no part any longer, for the tenant that pays for it.
    pub(crate) fn cache_extent(&mut self, id: ExtentId, now: Time) {
        let Some(extent) = self.get_mut(id) else { return };
        let ExtentState::Live(charge) = &extent.state else { return };
        let (tenant, device, size) = (charge.tenant(), extent.place.device, extent.size);
        extent.part = None;
        extent.move_charge_to(ExtentState::Cached);
        self.cache.add(Cached { extent: id, tenant, device, size, since: now });
    }

    /// Takes the tenant's oldest cached extent of that size to back a part.
    pub(crate) fn reuse(
        &mut self,
        tenant: TenantId,
        device: DeviceIndex,
        size: Bytes,
        part: PartRef,
    ) -> Option<ExtentId> {
        let age = self.cache.oldest(tenant, device, size).next()?;
        let id = self.cache.remove(age)?.extent;
        let extent = self.get_mut(id)?;
        extent.part = Some(part);
        extent.move_charge_to(ExtentState::Live);
        Some(id)
    }

    /// Begins the release of a cached extent.
    pub(crate) fn release_cached(&mut self, age: Age) -> Option<Cached> {
        let entry = self.cache.remove(age)?;
        self.get_mut(entry.extent)?.move_charge_to(ExtentState::Releasing);
        Some(entry)
    }

    /// The number of extents that the driver has created or is creating.
    pub(crate) fn len(&self) -> usize {
        self.extents.len().saturating_sub(self.dropped)
    }

    /// Bytes in files by tenant and device. Without any piece of a file it returns at once.
    pub(crate) fn in_files(&self) -> BTreeMap<(TenantId, DeviceIndex), Bytes> {
        let mut sums: BTreeMap<_, Bytes> = BTreeMap::new();
        if self.in_file == 0 {
            return sums;
        }
        let live = |extent: &Extent| match &extent.state {
            ExtentState::Live(charge) if extent.in_file => Some((charge.tenant(), extent.place.device)),
            _ => None,
        };
        for (of, size) in self.extents.iter().filter_map(|(_, extent)| Some((live(extent)?, extent.size))) {
            let sum = sums.entry(of).or_default();
            *sum = sum.saturating_add(size);
        }
        sums
    }

    /// Whether the device has unreturned memory.
    pub(crate) fn awaits_return(&self, device: DeviceIndex) -> bool {
        self.unreturned.get(&device).is_some_and(|count| *count > 0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ExtentId, &Extent)> {
        self.extents.iter().map(|(id, extent)| (ExtentId::from_raw(id), extent))
    }

    fn count_unreturned(&mut self, device: DeviceIndex, change: impl FnOnce(usize) -> usize) {
        let count = self.unreturned.entry(device).or_default();
        *count = change(*count);
    }
}
