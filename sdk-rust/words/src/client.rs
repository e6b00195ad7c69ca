//! The view of the threads that use memory: pin, unpin, touch. No call here waits, and none makes a system call.

use core::fmt;

use crate::header::Header;
use crate::sync::AtomicU64;
use crate::table::{Slot, Table};
use crate::touch::Touch;
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

/// What an unpin left to do.
#[must_use = "the last unpin under a revoke must wake the worker"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unpinned {
    /// Nothing: nobody waits for this pin to end.
    Done,
    /// The daemon wants the part back and this was the last pin: wake the worker.
    WakeWorker,
}

/// A set of pins that was not taken; those already there were given back.
#[must_use = "giving back may have been the last unpin under a revoke, which must wake the worker"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetRefused {
    pub why: PinRefused,
    /// What the giving back left to do.
    pub then: Unpinned,
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
    /// Until the unpin, the part stays where it is.
    #[inline]
    pub fn pin(self, access: Access) -> Result<(), PinRefused> {
        self.slot.take(|word| word.pin(access)).map(drop)
    }

    #[inline]
    pub fn unpin(self) -> Result<Unpinned, NotPinned> {
        let (_, new) = self.slot.take(|word| word.unpin())?;
        Ok(if new.is_free_to_unmap() { Unpinned::WakeWorker } else { Unpinned::Done })
    }

    /// Tells policies that the part is in use, at the tick of a coarse clock.
    pub fn touch(self, tick: u32) {
        Touch::record(self.slot.touch, tick);
    }

    /// The same, for who would have to read the clock for it: that is done at every eighth use.
    #[inline]
    pub fn touch_by(self, clock: impl FnOnce() -> u32) {
        Touch::record_seldom(self.slot.touch, clock);
    }
}

/// Pins all of these, or none: two sets that each hold half would wait for one another.
///
/// A part that was pinned for writing and given back stays marked as written, which costs a copy and loses nothing.
pub fn pin_set(parts: &[(ClientSlot<'_>, Access)]) -> Result<(), SetRefused> {
    for (taken, (part, access)) in parts.iter().enumerate() {
        if let Err(why) = part.pin(*access) {
            return Err(SetRefused { why, then: give_back(&parts[..taken]) });
        }
    }
    Ok(())
}

fn give_back(parts: &[(ClientSlot<'_>, Access)]) -> Unpinned {
    let mut then = Unpinned::Done;
    for (part, _) in parts {
        match part.unpin() {
            Ok(Unpinned::Done) => {}
            Ok(Unpinned::WakeWorker) => then = Unpinned::WakeWorker,
            // Somebody else's unpin too many ended ours; it is as good as given back.
            Err(NotPinned::NoPins | NotPinned::Forked) => {}
        }
    }
    then
}

impl fmt::Debug for ClientSlot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.slot.fmt(f)
    }
}

impl fmt::Display for SetRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl core::error::Error for SetRefused {}
