//! The guard of a pin, counted by its anchor.

#![allow(unsafe_code, reason = "slices over shared mappings")]

use std::{fmt, ops::Range, ptr, slice, sync::atomic::AtomicU64, thread, time::Duration};

use vramd_types::{AllocationId, Reason};
use vramd_words::{Access, PinRefused};

use super::{
    Anchor,
    views::{View, ViewConflict},
    wait::check_count,
};
use crate::{
    error::{Error, Result, Sentence},
    mapping::refusal,
    process::fork::ProcessBound,
};

/// How often a caller that waits for streams looks again.
const STREAMS_POLL: Duration = Duration::from_micros(50);

/// A guard: parts of an allocation that stay mapped where they are until it is dropped.
///
/// It has no lifetime and may outlive its handle; the allocation is then released when the last guard is gone.
/// Dropping it never blocks, and makes no system call unless the daemon waits for the memory. A kernel that still
/// runs needs its memory pinned: see [`Self::unpin_after`]. In a forked child dropping does nothing.
#[must_use = "dropped, it pins nothing"]
pub struct Pinned {
    anchor: ProcessBound<Anchor>,
    parts: Range<u32>,
    access: Access,
    /// Its number among the users of slices; 0 if it has lent no slice.
    view: AtomicU64,
}

/// The guard could not be tied to the streams; it is returned, and pins as before.
#[derive(Debug)]
pub struct UnpinFailed {
    // Boxed, so that a success costs nothing.
    pub pinned: Box<Pinned>,
    pub error: Error,
}

impl Pinned {
    /// Pins these parts if they are mapped; `None` if they must be waited for.
    pub(crate) fn try_pin(
        anchor: &ProcessBound<Anchor>,
        parts: Range<u32>,
        access: Access,
    ) -> Result<Option<Self>> {
        check_count(parts.len())?;
        match anchor.pin(&parts, access) {
            Ok(()) => Ok(Some(Self::from_pins(anchor, parts, access))),
            Err(PinRefused::NeedsFrame) => Ok(None),
            Err(refused) => Err(refusal(refused, anchor.id())),
        }
    }

    /// Makes a guard of pins that the caller has taken.
    #[inline]
    pub(super) fn from_pins(anchor: &ProcessBound<Anchor>, parts: Range<u32>, access: Access) -> Self {
        Self { anchor: anchor.clone(), parts, access, view: AtomicU64::new(0) }
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

    /// The address where the pinned bytes begin: a device pointer if it [is device memory](Self::is_device_memory),
    /// valid in the primary context of its device; otherwise an address of this process.
    pub fn as_device_ptr(&self) -> u64 {
        self.anchor.address_of(&self.parts)
    }

    /// How often the daemon has dropped the content of these parts since they were allocated, in sum, of
    /// [discardable](crate::AllocationRequest::discardable) memory. It does not change while they are pinned, and
    /// every guard of the same parts sees the same number. If the number has changed since something was written,
    /// some of that is lost: the dropped parts hold zeros, or bytes of the tenant's own earlier memory.
    pub fn drop_count(&self) -> u64 {
        self.anchor.drop_count_of(&self.parts)
    }

    /// Whether the address is a GPU's, which the CPU cannot access.
    pub fn is_device_memory(&self) -> bool {
        self.anchor.base().is_some_and(|base| base.is_device)
    }

    /// The pinned bytes, in place. Refused for device memory, in a forked child, and while another guard has a slice
    /// to write some of them. A slice to write of the handle refuses it too, until the handle is used otherwise.
    pub fn as_slice(&self) -> Result<&[u8]> {
        let (address, len) = self.place(View::Shared)?;
        // SAFETY: needed to read shared memory. Pinned memory is mapped whole until this guard is gone, which is
        // borrowed. `place` has checked that no other slice of this process can write it meanwhile. Another process
        // maps unsealed memory only if it is fixed, which is never the CPU's.
        Ok(unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(address), len) })
    }

    /// The pinned bytes, writable in place. Refused as [`Self::as_slice`] is, for a pin to read, and while another
    /// guard has any slice of some of them. A slice of the handle refuses it too, until the handle is borrowed
    /// mutably, as `unpin` does.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8]> {
        let table = self.anchor.session().table();
        if self.access != Access::Write || (self.anchor.is_own_process() && !table.is_writable(self.id())) {
            return Err(Error::NotMapped { allocation: self.id().to_string() });
        }
        let (address, len) = self.place(View::Exclusive)?;
        // SAFETY: needed to write shared memory. As above; `place` has checked that there is no other slice of it, a
        // write pin is of memory that is mapped writably, and this guard is borrowed mutably.
        Ok(unsafe { slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(address), len) })
    }

    /// Unpins once everything that was launched on these CUDA streams so far is done. Streams are `CUstream` or
    /// `cudaStream_t` values as numbers; the default streams are those of the primary context. Returns at once. A
    /// stream that is being captured is refused (`STREAM_CAPTURING`): captured work runs when the graph is launched,
    /// so pin around that launch.
    pub fn unpin_after(self, streams: &[u64]) -> Result<(), UnpinFailed> {
        match self.record(streams) {
            Ok(events) => self.anchor.clone().session().reaper().take(self, events),
            Err(error) => Err(UnpinFailed { pinned: Box::new(self), error }),
        }
    }

    /// Waits until everything that was launched on these CUDA streams so far is done, and goes on pinning. Refused as
    /// [`Self::unpin_after`] is.
    pub fn wait_for(&self, streams: &[u64]) -> Result<()> {
        let events = self.record(streams)?;
        while !events.iter().all(crate::cuda::Event::is_over) {
            thread::sleep(STREAMS_POLL);
        }
        Ok(())
    }

    fn record(&self, streams: &[u64]) -> Result<Vec<crate::cuda::Event>> {
        self.check_process()?;
        let allocation = self.id();
        let context = self
            .anchor
            .session()
            .table()
            .context(allocation)
            .ok_or_else(|| Error::refused(Reason::StreamsUnsupported, &[("allocation", &allocation)]))?;
        context.record_all(streams).map_err(|refused| match refused {
            crate::cuda::NotRecorded::Capturing => {
                Error::refused(Reason::StreamCapturing, &[("allocation", &allocation)])
            }
            crate::cuda::NotRecorded::Failed(problem) => {
                Error::refused(Reason::DriverFailed, &[("device", &""), ("problem", &problem)])
            }
        })
    }

    pub(super) fn anchor(&self) -> &ProcessBound<Anchor> {
        &self.anchor
    }

    /// The address and length for the CPU, after recording the slice.
    fn place(&self, view: View) -> Result<(usize, usize)> {
        self.check_process()?;
        let allocation = || self.id().to_string();
        if self.is_device_memory() {
            return Err(Error::DeviceMemory { allocation: allocation() });
        }
        let seen = self.anchor.views().add_guard_view(&self.view, &self.parts, view);
        seen.map_err(|ViewConflict| Error::Pinned {
            said: Sentence::default(),
            allocation: allocation(),
            pins: self.anchor.other_count() as u64,
        })?;
        let number =
            |number: u64| usize::try_from(number).map_err(|_| Error::NotMapped { allocation: allocation() });
        Ok((number(self.as_device_ptr())?, number(self.len_bytes())?))
    }

    fn check_process(&self) -> Result<()> {
        if self.anchor.is_own_process() {
            return Ok(());
        }
        Err(Error::Forked { session: self.anchor.session().id().to_string() })
    }
}

impl Drop for Pinned {
    #[inline]
    fn drop(&mut self) {
        if !self.anchor.is_own_process() {
            return;
        }
        let view = *self.view.get_mut();
        if view != 0 {
            self.anchor.views().remove_guard(view);
        }
        self.anchor.unpin(&self.parts);
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Pinned");
        debug.field("id", &self.id()).field("parts", &self.parts).field("access", &self.access).finish()
    }
}

impl fmt::Display for UnpinFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unpinning {} after streams: {}", self.pinned.id(), self.error)
    }
}

impl std::error::Error for UnpinFailed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Unpins now.
impl From<UnpinFailed> for Error {
    fn from(failed: UnpinFailed) -> Self {
        failed.error
    }
}
