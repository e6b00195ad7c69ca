//! The view of the SDK's worker, the one thread of a client that maps and unmaps.
//!
//! It acts on frames, never on a word alone: a REVOKE without a frame may be taken back at any moment, and a frame once
//! sent never is. So on a `revoke` frame it calls [`WorkerSlot::begin_unmap_revoked`], and after
//! [`NotUnmappable::Pinned`] again at each wake.

use core::fmt;

use crate::sync::AtomicU64;
use crate::table::{Slot, Table};
use crate::word::{NotMappable, NotUnmappable, PinRefused, Waiting, bits};

/// The table as the worker sees it. There is one, so it can't be cloned.
#[derive(Debug)]
pub struct Worker<S> {
    table: Table<S>,
}

/// One part as the worker sees it.
#[derive(Clone, Copy)]
pub struct WorkerSlot<'a> {
    slot: Slot<'a>,
}

/// A word in the state *unmapping*: nobody can pin, so the mapping can go.
///
/// Dropped without [`Unmapping::finish`] the word stays as it is, which is right where the driver refused to unmap: the
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
    /// The part is mapped and accessible: says so, with a pin for each call that *still* waits, so that nothing can
    /// revoke it between this and the caller's use. Answer `mapped` then.
    pub fn set_mapped(self, waiting: Waiting) -> Result<(), NotMappable> {
        self.slot.take(|word| word.map(waiting)).map(drop)
    }

    /// The daemon says that a part which calls wait for is still mapped here: pins it for those that *still* wait.
    /// Refused with [`PinRefused::NeedsFrame`] it was wanted back meanwhile: ask again.
    pub fn pin_waiting(self, waiting: Waiting) -> Result<(), PinRefused> {
        self.slot.take(|word| word.pin_all(waiting)).map(drop)
    }

    /// A `revoke` frame came. [`NotUnmappable::Leaving`] drops it: the answer is on its way.
    pub fn begin_unmap_revoked(self) -> Result<Unmapping<'a>, NotUnmappable> {
        self.slot.take(|word| word.unmap_revoked()).map(|_| Unmapping { slot: self.slot })
    }

    /// The client itself gives the part back: freed, detached or to be sealed.
    pub fn begin_unmap(self) -> Result<Unmapping<'a>, NotUnmappable> {
        self.slot.take(|word| word.unmap()).map(|_| Unmapping { slot: self.slot })
    }

    /// The channel has ended: no frame will follow, so nothing moves, and what is mapped stays usable. Call it for
    /// every slot, and again where a pin still finds a revoke: the daemon may not have noticed yet.
    pub fn forget_revoke(self) {
        self.slot.keep(!bits::REVOKE);
    }
}

impl Unmapping<'_> {
    /// The mapping is gone. Whether the part was written goes into the `unmapped` frame.
    #[must_use = "the `unmapped` frame carries it"]
    pub fn finish(self) -> bool {
        self.slot.keep(bits::WRITTEN).is_written()
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
