//! The guard that borrows its handle.

use std::{mem::ManuallyDrop, ops::Range, time::Instant};

use vramd_types::AllocationId;
use vramd_words::{Access, PinRefused};

use super::{Anchor, Pinned, wait::check_count};
use crate::{
    error::{Error, Result},
    mapping::refusal,
    process::fork::ProcessBound,
};

/// Like [`Pinned`], for as long as its handle is borrowed. It is not counted, so it costs one atomic change of each
/// part's word, and one more when it is dropped. Slices, streams and a life beyond the handle's need
/// [`Self::into_pinned`]. A forgotten one (`mem::forget`) pins its memory until the session ends, unseen; a forgotten
/// [`Pinned`] is at least counted.
#[must_use = "dropped, it pins nothing"]
#[derive(Debug)]
pub struct PinnedRef<'a> {
    anchor: &'a ProcessBound<Anchor>,
    parts: Range<u32>,
    access: Access,
}

impl<'a> PinnedRef<'a> {
    /// Pins these parts, and waits until they have arrived if they are away.
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

    /// The pinned bytes, of the requested ones.
    pub fn len_bytes(&self) -> u64 {
        self.anchor.len_of(&self.parts)
    }

    /// The address where the pinned bytes begin: see [`Pinned::as_device_ptr`].
    pub fn as_device_ptr(&self) -> u64 {
        self.anchor.address_of(&self.parts)
    }

    /// How often the daemon has dropped the content of these parts: see [`Pinned::drop_count`].
    pub fn drop_count(&self) -> u64 {
        self.anchor.drop_count_of(&self.parts)
    }

    /// Whether the address is a GPU's, which the CPU cannot access.
    pub fn is_device_memory(&self) -> bool {
        self.anchor.base().is_some_and(|base| base.is_device)
    }

    /// The same pins, with a guard that may outlive its handle.
    pub fn into_pinned(self) -> Pinned {
        // The pins continue: they are not released here.
        let this = ManuallyDrop::new(self);
        Pinned::from_pins(this.anchor, this.parts.clone(), this.access)
    }
}

/// Pins parts that could not be pinned at once.
#[cold]
fn pin_slowly(
    anchor: &ProcessBound<Anchor>,
    parts: &Range<u32>,
    access: Access,
    refused: PinRefused,
    deadline: impl FnOnce() -> Instant,
) -> Result<()> {
    match refused {
        // The slots are no longer this allocation's, so the daemon cannot be asked by them.
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
