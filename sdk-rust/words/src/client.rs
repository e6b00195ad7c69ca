//! The view of the threads that use memory: pin, unpin, record a use. No call here waits, and none makes a system
//! call.

use core::fmt;

use crate::header::Header;
use crate::last_use::LastUse;
use crate::sync::AtomicU64;
use crate::table::{Slot, Table};
use crate::word::{Access, NotPinned, PinRefused};

/// The table as any thread of the client sees it.
#[derive(Debug, Clone)]
pub struct Client<S> {
    table: Table<S>,
}

/// One part as any thread of the client sees it.
#[derive(Clone, Copy)]
pub struct ClientSlot<'a> {
    slot: Slot<'a>,
}

/// The follow-up of an unpin.
#[must_use = "the last unpin under a revoke must wake the worker"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unpinned {
    /// Nothing: no revoke waits for this pin to end.
    Done,
    /// The daemon is revoking the part and this was the last pin: wake the worker.
    WakeWorker,
}

/// A pin set that was refused; pins already taken were released.
#[must_use = "giving back may have been the last unpin under a revoke, which must wake the worker"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetRefused {
    pub reason: PinRefused,
    /// The follow-up of releasing those pins.
    pub unpinned: Unpinned,
}

impl<S: AsRef<[AtomicU64]>> Client<S> {
    /// `None` beyond the last slot.
    #[inline]
    pub fn slot(&self, index: u32) -> Option<ClientSlot<'_>> {
        self.table.slot(index).map(|slot| ClientSlot { slot })
    }
}

impl<S> Client<S> {
    pub(crate) fn new(table: Table<S>) -> Client<S> {
        Client { table }
    }

    pub fn header(&self) -> Header {
        self.table.header()
    }
}

impl ClientSlot<'_> {
    /// Pins the part: until the unpin it stays where it is.
    #[inline]
    pub fn pin(self, access: Access) -> Result<(), PinRefused> {
        self.slot.update(|word| word.pin(access)).map(drop)
    }

    #[inline]
    pub fn unpin(self) -> Result<Unpinned, NotPinned> {
        let (_, new) = self.slot.update(|word| word.unpin())?;
        Ok(if new.is_free_to_unmap() { Unpinned::WakeWorker } else { Unpinned::Done })
    }

    /// Records a use of the part, at the tick of a coarse clock, for the daemon's harvest.
    pub fn record_use(self, tick: u32) {
        LastUse::record(self.slot.last_use, tick);
    }

    /// Records a use, and reads the clock only at every eighth one.
    #[inline]
    pub fn record_use_with(self, clock: impl FnOnce() -> u32) {
        LastUse::record_seldom(self.slot.last_use, clock);
    }
}

/// Pins all parts, or none: two sets that each hold half would wait for each other.
///
/// A part that was pinned for writing and released stays marked as written, which costs a copy and loses nothing.
pub fn pin_set(parts: &[(ClientSlot<'_>, Access)]) -> Result<(), SetRefused> {
    for (taken, (part, access)) in parts.iter().enumerate() {
        if let Err(reason) = part.pin(*access) {
            return Err(SetRefused { reason, unpinned: unpin_all(&parts[..taken]) });
        }
    }
    Ok(())
}

fn unpin_all(parts: &[(ClientSlot<'_>, Access)]) -> Unpinned {
    let mut unpinned = Unpinned::Done;
    for (part, _) in parts {
        match part.unpin() {
            Ok(Unpinned::Done) => {}
            Ok(Unpinned::WakeWorker) => unpinned = Unpinned::WakeWorker,
            // A surplus unpin elsewhere in this process ended this pin; it counts as released.
            Err(NotPinned::NoPins | NotPinned::Forked) => {}
        }
    }
    unpinned
}

impl fmt::Debug for ClientSlot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.slot.fmt(f)
    }
}

impl fmt::Display for SetRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl core::error::Error for SetRefused {}
