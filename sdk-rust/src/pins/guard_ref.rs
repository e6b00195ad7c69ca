//! A guard that borrows its handle.

use std::{mem::ManuallyDrop, ops::Range, time::Instant};

use vramd_types::AllocationId;
use vramd_words::{Access, PinRefused};

use super::{Anchor, Pinned, wait::check_count};
use crate::{
    error::{Error, Result},
    mapping::refusal,
    process::fork::ProcessBound,
};

/// As [`Pinned`], for as long as its handle is borrowed. Nobody has to count it, so it costs one atomic change of each
/// part's word, and one more when it is dropped. Slices, streams and a life beyond the handle's need
/// [`Self::into_pinned`]. One that is forgotten (`mem::forget`) pins its memory until the session ends, and nobody can
/// tell: a [`Pinned`] is at least counted.
#[must_use = "dropped, it pins nothing"]
#[derive(Debug)]
pub struct PinnedRef<'a> {
    anchor: &'a ProcessBound<Anchor>,
    parts: Range<u32>,
    access: Access,
}

impl<'a> PinnedRef<'a> {
    /// Pins these parts, and waits until they are here if they are not.
    #[inline]
    pub(crate) fn pin_or_wait(
        anchor: &'a ProcessBound<Anchor>,
        parts: Range<u32>,
        access: Access,
        deadline: impl FnOnce() -> Instant,
    ) -> Result<Self> {
        check_count(parts.len())?;
        if let Err(refused) = anchor.pin(&parts, access) {
            pin_slowly(anchor, &parts, access, refused, deadline)?;
        }
        Ok(Self { anchor, parts, access })
    }

    pub fn id(&self) -> AllocationId {
        self.anchor.id()
    }

    pub fn access(&self) -> Access {
        self.access
    }

    /// The parts that are pinned.
    pub fn parts(&self) -> Range<u32> {
        self.parts.clone()
    }

    /// How many bytes are pinned, of those that were asked for.
    pub fn len_bytes(&self) -> u64 {
        self.anchor.len_of(&self.parts)
    }

    /// Where the pinned bytes begin, as [`Pinned::as_device_ptr`] says.
    pub fn as_device_ptr(&self) -> u64 {
        self.anchor.address_of(&self.parts)
    }

    /// How often the content of these parts was given up, as [`Pinned::drop_count`] says.
    pub fn drop_count(&self) -> u64 {
        self.anchor.drop_count_of(&self.parts)
    }

    /// Whether it lies on a GPU, where the CPU cannot follow its address.
    pub fn is_device_memory(&self) -> bool {
        self.anchor.base().is_some_and(|base| base.is_device)
    }

    /// The same pins, with a guard that may outlive its handle.
    pub fn into_pinned(self) -> Pinned {
        // The pins go on: they are not given back here.
        let this = ManuallyDrop::new(self);
        Pinned::from_pins(this.anchor, this.parts.clone(), this.access)
    }
}

/// What could not be had at once.
#[cold]
fn pin_slowly(
    anchor: &ProcessBound<Anchor>,
    parts: &Range<u32>,
    access: Access,
    refused: PinRefused,
    deadline: impl FnOnce() -> Instant,
) -> Result<()> {
    match refused {
        // What is not this allocation's any more can't be asked for by where it was.
        PinRefused::NeedsFrame if anchor.has_lost_slots() => {
            Err(Error::NotMapped { allocation: anchor.id().to_string() })
        }
        PinRefused::NeedsFrame => {
            anchor.session().pin_waiting(&anchor.targets(parts, access), deadline())?;
            anchor.refresh_slots(parts.clone());
            Ok(())
        }
        refused => Err(refusal(refused, anchor.id())),
    }
}

impl Drop for PinnedRef<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.anchor.is_own_process() {
            self.anchor.unpin(&self.parts);
        }
    }
}
