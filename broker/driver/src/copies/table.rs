//! All unanswered copies, by id.

use std::{
    collections::{HashMap, hash_map::Entry as Slot},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use vramd_types::{Bytes, CopyId};

use crate::{CopyClass, DriverError};

#[derive(Debug, Default)]
pub(crate) struct Table(Mutex<HashMap<CopyId, Arc<Progress>>>);

/// The progress of a copy, whether it is cancelled, and its class. These atomics order nothing else.
#[derive(Debug, Default)]
struct Progress {
    copied: AtomicU64,
    cancelled: AtomicBool,
    /// A client has begun to wait for the copy.
    awaited: AtomicBool,
}

/// A requested copy.
#[derive(Debug)]
pub(crate) struct RequestedCopy {
    pub(crate) copy: CopyId,
    pub(crate) size: Bytes,
    /// Its entry, or why there can be no copy of that id.
    pub(crate) entry: Result<Entry, DriverError>,
}

/// A copy's entry in the table, removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Entry {
    table: Arc<Table>,
    copy: CopyId,
    class: CopyClass,
    progress: Arc<Progress>,
}

impl Table {
    pub(crate) fn register(self: &Arc<Self>, copy: CopyId, size: Bytes, class: CopyClass) -> RequestedCopy {
        let entry = match self.copies().entry(copy) {
            Slot::Occupied(_) => Err(DriverError::Failed(format!("copy {copy} is in flight already"))),
            Slot::Vacant(slot) => {
                let progress = Arc::clone(slot.insert(Arc::default()));
                progress.awaited.store(class == CopyClass::Demand, Ordering::Relaxed);
                Ok(Entry { table: Arc::clone(self), copy, class, progress })
            }
        };
        RequestedCopy { copy, size, entry }
    }

    pub(crate) fn copied(&self, copy: CopyId) -> Option<Bytes> {
        self.copies().get(&copy).map(|progress| Bytes::new(progress.copied.load(Ordering::Relaxed)))
    }

    /// Marks a copy as cancelled; its lane reads the mark before each chunk. Returns whether there is such a
    /// copy.
    pub(crate) fn cancel(&self, copy: CopyId) -> bool {
        self.copies().get(&copy).map(|progress| progress.cancelled.store(true, Ordering::Relaxed)).is_some()
    }

    /// Raises a copy to demand. Returns whether there is such a copy and it was no demand copy before.
    pub(crate) fn hasten(&self, copy: CopyId) -> bool {
        self.copies().get(&copy).is_some_and(|progress| !progress.awaited.swap(true, Ordering::Relaxed))
    }

    /// Every change is complete before any code could panic, so a poisoned lock is still good.
    fn copies(&self) -> MutexGuard<'_, HashMap<CopyId, Arc<Progress>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    pub(crate) fn add(&self, bytes: u64) {
        self.progress.copied.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.progress.cancelled.load(Ordering::Relaxed)
    }

    pub(crate) fn class(&self) -> CopyClass {
        match self.progress.awaited.load(Ordering::Relaxed) {
            true => CopyClass::Demand,
            false => self.class,
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.table.copies().remove(&self.copy);
    }
}
