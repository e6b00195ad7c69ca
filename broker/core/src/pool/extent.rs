//! Physical pieces of memory, each with whoever pays for it.
//!
//! ```text
//!               created             release             returned
//!  Creating ──────────────► Live ──────────► Releasing ──────────► (gone)
//!     │ failed                                   │ still held        ▲
//!     └──► (gone)                                └──► Unreturned ────┘
//! ```

use std::collections::BTreeMap;

use vramd_types::{Bytes, DeviceIndex, ExtentId};

use crate::{
    collections::{Few, IdMap},
    event::PartRef,
    ledger::{Charge, Debt, Reservation},
    observed::Touched,
    tenancy::TenantId,
};

/// What an extent is in, and the money for it: they change together, so neither is lost without the other.
#[derive(Debug)]
pub(crate) enum ExtentState {
    Creating(Reservation),
    Live(Charge),
    /// The driver has been told to let go.
    Releasing(Charge),
    /// The driver let go, and some process still holds the memory.
    Unreturned(Vec<Debt>),
}

#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) device: DeviceIndex,
    pub(crate) size: Bytes,
    /// What it backs, for life.
    pub(crate) part: PartRef,
    pub(crate) state: ExtentState,
    /// Tenants whose sessions were sent its descriptor.
    pub(crate) sent_to: Few<TenantId>,
}

/// The state of an extent between two others, inside one method.
const NOBODY_PAYS: ExtentState = ExtentState::Unreturned(Vec::new());

impl Extent {
    /// Takes out what was reserved for it while it was made, so that it can be settled or cancelled.
    pub(crate) fn take_reservation(&mut self) -> Option<Reservation> {
        match std::mem::replace(&mut self.state, NOBODY_PAYS) {
            ExtentState::Creating(reservation) => Some(reservation),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Whether it was live: from now on it is being released.
    pub(crate) fn start_release(&mut self) -> bool {
        let state = std::mem::replace(&mut self.state, NOBODY_PAYS);
        let is_live = matches!(state, ExtentState::Live(_));
        self.state = match state {
            ExtentState::Live(charge) => ExtentState::Releasing(charge),
            other => other,
        };
        is_live
    }
}

#[derive(Debug, Default)]
pub(crate) struct Pool {
    extents: IdMap<Extent>,
    /// How many extents of each device are unreturned.
    unreturned: BTreeMap<DeviceIndex, usize>,
    pub(crate) touched: Touched<ExtentId>,
}

impl Pool {
    pub(crate) fn insert(&mut self, id: ExtentId, extent: Extent) {
        self.touched.note(id);
        self.extents.insert(id.get(), extent);
    }

    pub(crate) fn get(&self, id: ExtentId) -> Option<&Extent> {
        self.extents.get(id.get())
    }

    pub(crate) fn get_mut(&mut self, id: ExtentId) -> Option<&mut Extent> {
        self.touched.note(id);
        self.extents.get_mut(id.get())
    }

    /// Takes an extent out, to put it back in another state or not at all.
    pub(crate) fn take(&mut self, id: ExtentId) -> Option<Extent> {
        self.touched.note(id);
        let extent = self.extents.remove(id.get())?;
        if matches!(&extent.state, ExtentState::Unreturned(debts) if !debts.is_empty()) {
            self.count_unreturned(extent.device, |count| count.saturating_sub(1));
        }
        Some(extent)
    }

    pub(crate) fn put_unreturned(&mut self, id: ExtentId, extent: Extent) {
        self.touched.note(id);
        self.count_unreturned(extent.device, |count| count.saturating_add(1));
        self.extents.insert(id.get(), extent);
    }

    pub(crate) fn len(&self) -> usize {
        self.extents.len()
    }

    /// Whether memory of the device is awaited back.
    pub(crate) fn awaits(&self, device: DeviceIndex) -> bool {
        self.unreturned.get(&device).is_some_and(|count| *count > 0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ExtentId, &Extent)> {
        self.extents.iter().map(|(id, extent)| (ExtentId::from_raw(id), extent))
    }

    /// Some live extent that was sent to nobody of this tenant, for the bug of that name.
    #[cfg(feature = "planted")]
    pub(crate) fn stranger(&self, tenant: TenantId) -> Option<ExtentId> {
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
