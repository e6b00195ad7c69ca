//! The view of the SDK's worker, the one thread of a client that maps and unmaps.
//!
//! It acts on frames, never on a word alone: a REVOKE without a frame may be withdrawn at any moment, but not one
//! whose frame was sent. So on a `revoke` frame it calls [`WorkerSlot::begin_unmap_revoked`], and after
//! [`NotUnmappable::Pinned`] again at each wake.

use core::fmt;

use crate::sync::AtomicU64;
use crate::table::{Slot, Table};
use crate::word::{NotMappable, NotUnmappable, PinRefused, Waiting, bits};

/// The table as the worker sees it. A process has one, so it cannot be cloned.
#[derive(Debug)]
pub struct Worker<S> {
    table: Table<S>,
}

/// One part as the worker sees it.
#[derive(Clone, Copy)]
pub struct WorkerSlot<'a> {
    slot: Slot<'a>,
}

/// A word in the state *unmapping*: no thread can pin, so the part can be unmapped.
///
/// Dropped without [`Unmapping::finish`], the word stays as it is. That is right if the driver refused to unmap: the
/// worker then closes the channel.
#[must_use = "unmap, then finish"]
pub struct Unmapping<'a> {
    slot: Slot<'a>,
}

impl<S: AsRef<[AtomicU64]>> Worker<S> {
    /// `None` beyond the last slot.
    pub fn slot(&self, index: u32) -> Option<WorkerSlot<'_>> {
        self.table.slot(index).map(|slot| WorkerSlot { slot })
    }
}

impl<S> Worker<S> {
    pub(crate) fn new(table: Table<S>) -> Worker<S> {
        Worker { table }
    }
}

impl<'a> WorkerSlot<'a> {
    /// Marks the part as mapped and accessible, with a pin for each call that *still* waits, so that no revoke fits
    /// between this and the caller's use. Report `mapped` then.
    pub fn set_mapped(self, waiting: Waiting) -> Result<(), NotMappable> {
        self.slot.update(|word| word.map(waiting)).map(drop)
    }

    /// Pins a part for the calls that *still* wait, after the daemon's answer that it is still mapped here.
    /// [`PinRefused::NeedsFrame`] means that it was revoked meanwhile: send another frame.
    pub fn pin_waiting(self, waiting: Waiting) -> Result<(), PinRefused> {
        self.slot.update(|word| word.pin_all(waiting)).map(drop)
    }

    /// Begins an unmap after a `revoke` frame. [`NotUnmappable::Leaving`] drops the frame: the report is on its way.
    pub fn begin_unmap_revoked(self) -> Result<Unmapping<'a>, NotUnmappable> {
        self.slot.update(|word| word.unmap_revoked()).map(|_| Unmapping { slot: self.slot })
    }

    /// Begins an unmap at the program's request: freed, detached or to be sealed.
    pub fn begin_unmap(self) -> Result<Unmapping<'a>, NotUnmappable> {
        self.slot.update(|word| word.unmap()).map(|_| Unmapping { slot: self.slot })
    }

    /// Returns how many pins the part has now. Other threads may pin and unpin at once, so it is a report and no promise.
    pub fn pins(self) -> u32 {
        self.slot.load().pins()
    }

    /// Clears REVOKE after the end of the channel: no frame will follow, so nothing moves, and mapped parts stay
    /// usable. Call it for every slot, and again if a pin still finds a revoke: the daemon may not have noticed the
    /// end yet.
    pub fn forget_revoke(self) {
        self.slot.mask(!bits::REVOKE);
    }
}

impl Unmapping<'_> {
    /// Ends the unmap. Returns whether the part was written, for the `unmapped` frame.
    #[must_use = "the `unmapped` frame carries it"]
    pub fn finish(self) -> bool {
        self.slot.mask(bits::WRITTEN).is_written()
    }
}

impl fmt::Debug for WorkerSlot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.slot.fmt(f)
    }
}

impl fmt::Debug for Unmapping<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.slot.fmt(f)
    }
}
