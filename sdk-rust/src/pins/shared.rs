//! The handles of a session that share one mapping: an allocation that is attached twice is mapped once.
//!
//! Every handle of an allocation has the same [`Anchor`]. The last handle releases the allocation; until then a handle
//! that ends only leaves. The handle pin of the mapping belongs to all handles that have not given theirs up.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use vramd_types::{AllocationId, Reason};

use super::Anchor;
use crate::{
    error::{Error, Result},
    process::fork::{ProcessBound, WeakBound},
};

/// The handles of one anchor.
#[derive(Debug, Default)]
pub(crate) struct Sharers {
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    handles: usize,
    /// Handles that have not given up their handle pin.
    pins: usize,
    /// The last handle is releasing or sealing the allocation: no other may join.
    closing: bool,
}

impl Sharers {
    /// Adds a handle, without a handle pin. False if the allocation is being released.
    fn join(&self) -> bool {
        let mut counts = self.lock();
        if counts.handles == 0 {
            // Its guards alone have kept it.
            counts.pins = 0;
        }
        let joined = !counts.closing;
        counts.handles += usize::from(joined);
        joined
    }

    pub(crate) fn add_pin(&self) {
        self.lock().pins += 1;
    }

    /// Gives up a handle's pin; `release` gives up that of the mapping, if it was the last.
    pub(crate) fn drop_pin(&self, release: impl FnOnce()) {
        let mut counts = self.lock();
        counts.pins = counts.pins.saturating_sub(1);
        if counts.pins == 0 {
            // Under the lock, so that no other handle takes its pin meanwhile.
            release();
        }
    }

    /// Keeps others from joining the caller's handle until [`Self::reopen`], unless some have joined already.
    pub(crate) fn close_if_alone(&self) -> bool {
        let mut counts = self.lock();
        counts.closing = counts.handles <= 1;
        counts.closing
    }

    /// Ends a handle if others are left; otherwise none may join until [`Self::reopen`].
    pub(crate) fn leave_or_close(&self, pinned: bool, release: impl FnOnce()) -> bool {
        let mut counts = self.lock();
        if counts.handles > 1 {
            counts.leave(pinned, release);
            return true;
        }
        counts.closing = true;
        false
    }

    /// Lets others join again, since the release has failed.
    pub(crate) fn reopen(&self) {
        self.lock().closing = false;
    }

    /// Ends a handle. The last one leaves its pin to what follows.
    pub(crate) fn leave(&self, pinned: bool, release: impl FnOnce()) {
        let mut counts = self.lock();
        if counts.handles > 1 {
            counts.leave(pinned, release);
        } else {
            counts.handles = 0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn leave(&mut self, pinned: bool, release: impl FnOnce()) {
        self.handles -= 1;
        self.pins = self.pins.saturating_sub(usize::from(pinned));
        if pinned && self.pins == 0 {
            release();
        }
    }
}

/// Kept apart from the anchor: a handle joins the sharers before it takes a reference to the anchor.
type Known = BTreeMap<AllocationId, (Arc<Sharers>, WeakBound<Anchor>)>;

/// The anchors of a session's allocations.
#[derive(Debug, Default)]
pub(crate) struct Anchors {
    known: Mutex<Known>,
}

impl Anchors {
    /// The anchor for a new handle: the one that other handles have, or a new one. Returns whether it is shared.
    pub(crate) fn join_or_make(
        &self,
        id: AllocationId,
        make: impl FnOnce() -> Result<ProcessBound<Anchor>>,
    ) -> Result<(ProcessBound<Anchor>, bool)> {
        let mut known = self.lock();
        if let Some((sharers, anchor)) = known.get(&id) {
            // Joined first, so that a handle which is about to be the last one sees it.
            let joined = sharers.join();
            match anchor.upgrade() {
                Some(anchor) if joined => return Ok((anchor, true)),
                Some(anchor) => {
                    // Dropping it takes the lock.
                    drop(known);
                    drop(anchor);
                    return Err(Error::refused(Reason::StillMapped, &[("allocation", &id)]));
                }
                None => {}
            }
        }
        let anchor = make()?;
        anchor.sharers().join();
        anchor.sharers().add_pin();
        known.insert(id, (Arc::clone(anchor.sharers()), anchor.downgrade()));
        Ok((anchor, false))
    }

    /// The anchors of all allocations that have a handle or a guard. While one is kept here, its allocation is not
    /// released.
    pub(crate) fn all(&self) -> Vec<ProcessBound<Anchor>> {
        // Dropping one takes the lock, so none is dropped here.
        self.lock().values().filter_map(|(_, anchor)| anchor.upgrade()).collect()
    }

    /// Replaces the anchor of an allocation that has one handle.
    pub(crate) fn replace(&self, anchor: &ProcessBound<Anchor>, pinned: bool) {
        anchor.sharers().join();
        if pinned {
            anchor.sharers().add_pin();
        }
        self.lock().insert(anchor.id(), (Arc::clone(anchor.sharers()), anchor.downgrade()));
    }

    /// Forgets an anchor that is gone.
    pub(crate) fn forget(&self, id: AllocationId, sharers: &Arc<Sharers>) {
        let mut known = self.lock();
        if known.get(&id).is_some_and(|(of, _)| Arc::ptr_eq(of, sharers)) {
            known.remove(&id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
