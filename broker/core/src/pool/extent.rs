//! Physical pieces of memory, each with whoever pays for it.
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

use vramd_types::{Bytes, DeviceIndex, ExtentId};

use super::{Age, Cache, Cached};
use crate::{
    collections::{Few, IdMap},
    event::PartRef,
    ledger::{Charge, Debt, Place, Reservation},
    observed::ChangedKeys,
    tenancy::TenantId,
    time::Time,
};

/// What an extent is in, and the money for it: they change together, so neither is lost without the other.
#[derive(Debug)]
pub(crate) enum ExtentState {
    Creating(Reservation),
    Live(Charge),
    /// Kept for its tenant, which goes on paying: it backs nothing, and is the first to go when anybody needs room.
    Cached(Charge),
    /// The driver has been told to let go.
    Releasing(Charge),
    /// The driver let go, and some process still holds the memory.
    Unreturned(Vec<Debt>),
    /// No memory at all, and no money: what a part is in whose content was given up. The driver never hears of it.
    Dropped,
}

#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) place: Place,
    pub(crate) size: Bytes,
    /// What it backs; nothing once it was cached, until it is used again.
    pub(crate) part: Option<PartRef>,
    pub(crate) state: ExtentState,
    /// Tenants whose sessions were sent its descriptor.
    pub(crate) sent_to: Few<TenantId>,
    /// Some session that was sent it ended without saying that it has let go.
    pub(crate) unacknowledged: bool,
    /// It lies on disk, and nothing was written there: it stands for zeros, and nothing can be read of it.
    pub(crate) unwritten: bool,
    /// It is a piece of a file that is nobody's: it costs nothing, and is never written.
    pub(crate) in_file: bool,
}

/// The state of an extent between two others, inside one method.
const TAKEN_OUT: ExtentState = ExtentState::Unreturned(Vec::new());

impl Extent {
    /// Of a part, and sent to nobody yet.
    pub(crate) fn new(place: Place, size: Bytes, part: PartRef, state: ExtentState) -> Self {
        let (part, sent_to, unacknowledged) = (Some(part), Few::default(), false);
        Self { place, size, part, state, sent_to, unacknowledged, unwritten: false, in_file: false }
    }

    /// Takes out what was reserved for it while it was made, so that it can be settled or cancelled.
    pub(crate) fn take_reservation(&mut self) -> Option<Reservation> {
        match std::mem::replace(&mut self.state, TAKEN_OUT) {
            ExtentState::Creating(reservation) => Some(reservation),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Takes out what is paid for it while it is being released, so that it can be discharged or owed.
    pub(crate) fn take_released(&mut self) -> Option<Charge> {
        match std::mem::replace(&mut self.state, TAKEN_OUT) {
            ExtentState::Releasing(charge) => Some(charge),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Whether it was live: from now on it is being released.
    pub(crate) fn start_release(&mut self) -> bool {
        let is_live = matches!(self.state, ExtentState::Live(_));
        if is_live {
            self.move_charge_to(ExtentState::Releasing);
        }
        is_live
    }

    /// Whether a part can be in it.
    pub(crate) const fn can_hold_part(&self) -> bool {
        matches!(self.state, ExtentState::Live(_) | ExtentState::Dropped)
    }

    /// What it costs whoever pays for it.
    pub(crate) const fn cost(&self) -> Bytes {
        if self.in_file { Bytes::ZERO } else { self.size }
    }

    pub(crate) const fn is_dropped(&self) -> bool {
        matches!(self.state, ExtentState::Dropped)
    }

    /// Who pays for it, and where.
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

    /// Moves what is paid for it to another state of something that is there.
    fn move_charge_to(&mut self, next: fn(Charge) -> ExtentState) {
        self.state = match std::mem::replace(&mut self.state, TAKEN_OUT) {
            ExtentState::Live(charge) | ExtentState::Cached(charge) => next(charge),
            other => other,
        };
    }
}

#[derive(Debug, Default)]
pub(crate) struct Pool {
    extents: IdMap<Extent>,
    /// How many extents of each device are unreturned.
    unreturned: BTreeMap<DeviceIndex, usize>,
    /// How many are nothing.
    dropped: usize,
    /// How many are pieces of files.
    in_file: usize,
    cache: Cache,
    pub(crate) changed_keys: ChangedKeys<ExtentId>,
}

impl Pool {
    pub(crate) fn insert(&mut self, id: ExtentId, extent: Extent) {
        self.changed_keys.note(id);
        self.dropped = self.dropped.saturating_add(usize::from(extent.is_dropped()));
        self.in_file = self.in_file.saturating_add(usize::from(extent.in_file));
        self.extents.insert(id.get(), extent);
    }

    pub(crate) fn get(&self, id: ExtentId) -> Option<&Extent> {
        self.extents.get(id.get())
    }

    /// The extent, if it backs that part still: one that was recycled may back another.
    pub(crate) fn extent_of_part(&self, part: PartRef, id: ExtentId) -> Option<&Extent> {
        self.get(id).filter(|extent| extent.part == Some(part))
    }

    /// Something is about to be written to it.
    pub(crate) fn mark_written(&mut self, id: ExtentId) {
        if let Some(extent) = self.get_mut(id) {
            extent.unwritten = false;
        }
    }

    pub(crate) fn get_mut(&mut self, id: ExtentId) -> Option<&mut Extent> {
        self.changed_keys.note(id);
        self.extents.get_mut(id.get())
    }

    /// Takes an extent out, to put it back in another state or not at all.
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

    /// A live extent backs nothing any more, and is kept for the tenant that pays for it.
    pub(crate) fn cache_extent(&mut self, id: ExtentId, now: Time) {
        let Some(extent) = self.get_mut(id) else { return };
        let ExtentState::Live(charge) = &extent.state else { return };
        let (tenant, device, size) = (charge.tenant(), extent.place.device, extent.size);
        extent.part = None;
        extent.move_charge_to(ExtentState::Cached);
        self.cache.add(Cached { extent: id, tenant, device, size, since: now });
    }

    /// The tenant's oldest cached extent of that size, which backs the part from now on.
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

    /// A cached extent that is kept no longer: it is being released.
    pub(crate) fn release_cached(&mut self, age: Age) -> Option<Cached> {
        let entry = self.cache.remove(age)?;
        self.get_mut(entry.extent)?.move_charge_to(ExtentState::Releasing);
        Some(entry)
    }

    /// Whose cached extent of that size is the oldest, for the bug of that name.
    #[cfg(feature = "planted")]
    pub(crate) fn tenant_with_cached(&self, device: DeviceIndex, size: Bytes) -> Option<TenantId> {
        self.cache
            .iter()
            .map(|(_, it)| it)
            .find(|it| (it.device, it.size) == (device, size))
            .map(|it| it.tenant)
    }

    /// Pays for a live extent with another charge, and says what was paid before, for the bug of that name.
    #[cfg(feature = "planted")]
    pub(crate) fn pay_with(&mut self, id: ExtentId, charge: Charge) -> Option<Charge> {
        match &mut self.get_mut(id)?.state {
            ExtentState::Live(paid) => Some(std::mem::replace(paid, charge)),
            _ => None,
        }
    }

    /// How many there are that the driver has made, or makes.
    pub(crate) fn len(&self) -> usize {
        self.extents.len().saturating_sub(self.dropped)
    }

    /// What of each tenant and device lies in files that are nobody's, or goes back there. Where there is none, none is looked at.
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

    /// Whether memory of the device is awaited back.
    pub(crate) fn awaits_return(&self, device: DeviceIndex) -> bool {
        self.unreturned.get(&device).is_some_and(|count| *count > 0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ExtentId, &Extent)> {
        self.extents.iter().map(|(id, extent)| (ExtentId::from_raw(id), extent))
    }

    /// Some live extent that was sent to nobody of this tenant, for the bug of that name.
    #[cfg(feature = "planted")]
    pub(crate) fn extent_of_another_tenant(&self, tenant: TenantId) -> Option<ExtentId> {
        let strange = |extent: &Extent| match &extent.state {
            ExtentState::Live(charge) => charge.tenant() != tenant,
            _ => false,
        };
        self.extents.iter().find(|(_, extent)| strange(extent)).map(|(id, _)| ExtentId::from_raw(id))
    }

    fn count_unreturned(&mut self, device: DeviceIndex, change: impl FnOnce(usize) -> usize) {
        let count = self.unreturned.entry(device).or_default();
        *count = change(*count);
    }
}
