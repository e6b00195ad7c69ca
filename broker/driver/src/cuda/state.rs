//! What the driver's threads share.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
};

use vramd_types::{DeviceIndex, ExtentId};

use super::{api::Api, device::Device, memory::Held};
use crate::{Completion, Sink};

pub(super) struct State {
    pub(super) devices: Vec<Arc<Device>>,
    api: Arc<Api>,
    extents: Mutex<HashMap<ExtentId, Extent>>,
    lost: AtomicBool,
    sink: Sink,
}

/// An id that is in use.
#[derive(Debug)]
pub(super) enum Extent {
    Making,
    Live(Held),
    /// Released, and not seen to be back.
    Awaited,
    /// Not made after all, and not seen to be back. Nobody waits for that.
    Unmade,
}

impl State {
    pub(super) fn new(api: Arc<Api>, devices: Vec<Arc<Device>>, sink: Sink) -> Self {
        Self { devices, api, extents: Mutex::default(), lost: AtomicBool::new(false), sink }
    }

    /// Every change is whole before anything could panic, so a poisoned lock is a good one.
    pub(super) fn extents(&self) -> MutexGuard<'_, HashMap<ExtentId, Extent>> {
        self.extents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `false` where the id is in use.
    pub(super) fn claim(&self, extent: ExtentId) -> bool {
        let mut extents = self.extents();
        let free = !extents.contains_key(&extent);
        if free {
            extents.insert(extent, Extent::Making);
        }
        free
    }

    pub(super) fn live(&self, extent: ExtentId) -> Option<Held> {
        match self.extents().get(&extent) {
            Some(Extent::Live(held)) => Some(held.clone()),
            _ => None,
        }
    }

    pub(super) fn index_of(&self, device: &Arc<Device>) -> DeviceIndex {
        let found = (0..).map(DeviceIndex).zip(&self.devices).find(|(_, it)| Arc::ptr_eq(it, device));
        found.expect("memory is of one of our devices").0
    }

    /// From live to awaited, with the caller as its only holder but for digests and copies under way.
    pub(super) fn retire(&self, extent: ExtentId) -> Option<Held> {
        let mut extents = self.extents();
        let entry = extents.get_mut(&extent).filter(|entry| matches!(entry, Extent::Live(_)))?;
        match std::mem::replace(entry, Extent::Awaited) {
            Extent::Live(held) => Some(held),
            Extent::Making | Extent::Awaited | Extent::Unmade => None,
        }
    }

    /// Never called with a lock held. Once a context is of no more use that is said, and then nothing more: what
    /// became of anything else can't be known.
    pub(super) fn tell(&self, completion: Completion) {
        if let Some(poison) = self.api.poison() {
            if !self.lost.swap(true, Ordering::Relaxed) {
                let problem = format!("a CUDA context of the daemon is of no more use: {poison}");
                (self.sink)(Completion::Lost { problem });
            }
            return;
        }
        (self.sink)(completion);
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("devices", &self.devices).finish_non_exhaustive()
    }
}

/// Hands something to another of the driver's threads. One that is gone has panicked, in the sink or by a bug of
/// ours; its work can't be answered any more, so this does not go on as if it were.
pub(super) fn hand<T>(to: &Sender<T>, order: T) {
    assert!(to.send(order).is_ok(), "a thread of the CUDA driver has panicked");
}
