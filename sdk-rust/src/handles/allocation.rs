//! Handles of mapped memory: an [`Allocation`] is written, then sealed; a [`Sealed`] one is only read.
//!
//! The address of a handle never changes. What lies there can be taken away, in two ways.
//!
//! **By whoever needs the room**, while nobody pins it. A handle *holds* its allocation at first, which is a pin of its own:
//! so nothing goes behind the back of slices and pointers. A program that uses memory now and then gives that pin up
//! (`unpin`) and pins what it uses when it uses it (`pin`): the guard brings back what has gone, to the same address, with
//! the same bytes. A guard may outlive its handle. While guards are alive, `seal`, `free` and `detach` are refused with
//! [`Error::Pinned`]; a handle that is dropped is parted from when the last guard is gone.
//!
//! **For good**, when an operator frees the allocation or ends the session. The handle's own pin does not count then. Once
//! no guard is left the SDK unmaps. From then on an access through a slice of the handle that the program still has
//! faults (SIGSEGV), and a kernel's access ends its context, as memory of a device that fell off the bus would; new slices
//! and copies answer [`Error::NotMapped`]. `is_mapped` tells.

use std::{fmt, ops::Range, time::Duration};

use vramd_types::AllocationId;
use vramd_words::Access;

use crate::{
    error::{Error, Result},
    handles::{advice::Advice, handle::Handle, info::AllocationInfo},
    pins::{Pinnable, Pinned, PinnedRef, private},
    session::{
        Released,
        call_style::{CallStyle, run_ready},
    },
};

/// Memory of this session alone, mapped for reading and writing. Dropped unsealed it is freed.
///
/// Fixed memory is the exception: other sessions of the tenant may write it as well, and one that attached it only lets
/// go of it when it is dropped.
#[derive(Debug)]
pub struct Allocation {
    // Boxed, so that a failed seal can hand it back at no cost to one that does not fail.
    handle: Box<Handle>,
}

/// Memory that nobody writes any more, mapped read-only.
///
/// Dropped, the session lets go of it; if the session owns it and it is not persistent, it is freed.
#[derive(Debug)]
pub struct Sealed {
    handle: Box<Handle>,
}

/// Sealing failed; the allocation comes back. Whether it is still mapped, [`Allocation::is_mapped`] tells.
#[derive(Debug)]
pub struct SealFailed {
    pub allocation: Allocation,
    pub error: Error,
}

/// It was not freed, or not detached, and comes back: with [`Error::Pinned`] nothing was done. Otherwise
/// [`Allocation::is_mapped`] tells whether it is still mapped, and to try again does no harm.
#[derive(Debug)]
pub struct FreeFailed<H> {
    pub handle: H,
    pub error: Error,
}

impl Allocation {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle: Box::new(handle) }
    }

    pub(crate) fn from_handle(handle: Box<Handle>) -> Self {
        Self { handle }
    }

    pub(crate) fn into_handle(self) -> Box<Handle> {
        self.handle
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub fn id(&self) -> AllocationId {
        self.handle.info().id
    }

    /// As the daemon described it when it was made.
    pub fn info(&self) -> &AllocationInfo {
        self.handle.info()
    }

    /// Where it lies: a device pointer if it [is device memory](Self::is_device_memory), valid in the primary context of
    /// its device; otherwise an address of this process. It stays the same, mapped or not. 0 while it is `unpinned` and nothing
    /// of it has been pinned.
    pub fn as_device_ptr(&self) -> u64 {
        self.handle.as_device_ptr()
    }

    /// Whether it lies on a GPU, where the CPU cannot follow its address. Known as the address is.
    pub fn is_device_memory(&self) -> bool {
        self.handle.is_device_memory()
    }

    /// Copies bytes out, wherever they lie. Returns when they are there; an operator who takes the memory away meanwhile
    /// makes it fail, and nothing worse. It waits for no kernel of the program.
    pub fn copy_to_host(&self, offset_bytes: u64, to: &mut [u8]) -> Result<()> {
        run_ready(self.handle.copy_to_host(CallStyle::Blocking, offset_bytes, to))
    }

    /// Copies bytes in, wherever it lies. Returns when they are there; an operator who takes the memory away meanwhile
    /// makes it fail, and nothing worse. It waits for no kernel of the program.
    pub fn copy_from_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<()> {
        run_ready(self.handle.copy_from_host(CallStyle::Blocking, offset_bytes, from))
    }

    /// The bytes that were asked for, in place. Refused for device memory, if it is not mapped any more, and in a forked
    /// child.
    pub fn as_slice(&self) -> Result<&[u8]> {
        self.handle.as_slice()
    }

    /// The bytes that were asked for, to be written in place. Refused as [`Self::as_slice`] is.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8]> {
        self.handle.as_mut_slice()
    }

    pub fn is_mapped(&self) -> bool {
        self.handle.is_mapped()
    }

    /// Ends writing for ever: the session unmaps, the daemon hashes the bytes, and they are mapped again read-only at
    /// the same address. What the handle does not hold may come back later, with its next pin.
    pub fn seal(mut self) -> Result<Sealed, SealFailed> {
        match run_ready(self.handle.seal(CallStyle::Blocking)) {
            Ok(()) => Ok(Sealed { handle: self.handle }),
            Err(error) => Err(SealFailed { allocation: self, error }),
        }
    }

    /// Unmaps and frees it, and reports what is still charged. What guards of this process pin comes back.
    pub fn free(mut self) -> Result<Released, FreeFailed<Self>> {
        let outcome = run_ready(self.handle.free(CallStyle::Blocking));
        outcome.map_err(|error| FreeFailed { handle: self, error })
    }

    /// Says how it is used: see [`Advice`]. What it was when it was made, [`Self::info`] goes on to say.
    pub fn advise(&self, advice: Advice) -> Result<()> {
        run_ready(self.handle.advise(CallStyle::Blocking, advice))
    }

    /// Keeps it where it is, mapped, until the guard is dropped; waits until it is here if it is not. A pin of
    /// what is here is an atomic change of each part's word, and one of the guards' count; so is its end. At most 1,024 parts.
    pub fn pin(&self, access: Access) -> Result<Pinned> {
        self.handle.pin(None, access)
    }

    /// The same for some of its parts.
    pub fn pin_parts(&self, parts: Range<u32>, access: Access) -> Result<Pinned> {
        self.handle.pin(Some(parts), access)
    }

    /// As [`Self::pin_parts`], and waits for no longer than that for what is not here: [`Error::Deadline`] by then, and it is as
    /// if it had not been asked for. The other pins wait for as long as [`crate::ClientBuilder::request_timeout`].
    pub fn pin_timeout(&self, parts: Range<u32>, access: Access, wait: Duration) -> Result<Pinned> {
        self.handle.pin_timeout(parts, access, wait)
    }

    /// As [`Self::pin_parts`], with a guard that borrows this handle: half as dear.
    #[inline]
    pub fn pin_ref(&self, parts: Range<u32>, access: Access) -> Result<PinnedRef<'_>> {
        self.handle.pin_ref(Some(parts), access)
    }

    /// Gives up the handle's own pin: from now on the daemon may unmap it whenever nobody pins it, and slices of the
    /// handle are refused ([`Error::NotPinned`]). Copies bring it back as they need it.
    pub fn unpin(&mut self) -> Result<()> {
        self.handle.unpin()
    }

    /// Takes the handle's own pin again, and waits until it is here.
    pub fn repin(&mut self) -> Result<()> {
        run_ready(self.handle.hold(CallStyle::Blocking))
    }

    /// Whether the handle pins it, as every handle does at first.
    pub fn has_handle_pin(&self) -> bool {
        self.handle.has_handle_pin()
    }
}

impl Sealed {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle: Box::new(handle) }
    }

    pub(crate) fn from_handle(handle: Box<Handle>) -> Self {
        Self { handle }
    }

    pub(crate) fn into_handle(self) -> Box<Handle> {
        self.handle
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub fn id(&self) -> AllocationId {
        self.handle.info().id
    }

    /// As the daemon described it when it was sealed or attached.
    pub fn info(&self) -> &AllocationInfo {
        self.handle.info()
    }

    /// `blake3:` and 64 hexadecimal digits over the asked bytes, as the daemon hashed them.
    pub fn digest(&self) -> &str {
        self.handle.info().digest.as_deref().unwrap_or_default()
    }

    /// Where it lies: a device pointer if it [is device memory](Self::is_device_memory), valid in the primary context of
    /// its device; otherwise an address of this process. It stays the same, mapped or not.
    pub fn as_device_ptr(&self) -> u64 {
        self.handle.as_device_ptr()
    }

    /// Whether it lies on a GPU, where the CPU cannot follow its address.
    pub fn is_device_memory(&self) -> bool {
        self.handle.is_device_memory()
    }

    /// Copies bytes out, wherever they lie. Returns when they are there; an operator who takes the memory away meanwhile
    /// makes it fail, and nothing worse. It waits for no kernel of the program.
    pub fn copy_to_host(&self, offset_bytes: u64, to: &mut [u8]) -> Result<()> {
        run_ready(self.handle.copy_to_host(CallStyle::Blocking, offset_bytes, to))
    }

    /// The bytes that were asked for, in place. Refused for device memory, if it is not mapped any more, and in a forked
    /// child.
    pub fn as_slice(&self) -> Result<&[u8]> {
        self.handle.as_slice()
    }

    pub fn is_mapped(&self) -> bool {
        self.handle.is_mapped()
    }

    /// Unmaps it and frees it for everybody, which its owner may. Others that map it keep their mappings.
    /// What guards of this process pin comes back.
    pub fn free(mut self) -> Result<Released, FreeFailed<Self>> {
        let outcome = run_ready(self.handle.free(CallStyle::Blocking));
        outcome.map_err(|error| FreeFailed { handle: self, error })
    }

    /// Unmaps it, and leaves it as it is. What guards of this process pin comes back.
    pub fn detach(mut self) -> Result<(), FreeFailed<Self>> {
        let outcome = run_ready(self.handle.detach(CallStyle::Blocking));
        outcome.map_err(|error| FreeFailed { handle: self, error })
    }

    /// Says how it is used, by all who read it, which its owner may: see [`Advice`]. What it was before, [`Self::info`] goes on to
    /// say.
    pub fn advise(&self, advice: Advice) -> Result<()> {
        run_ready(self.handle.advise(CallStyle::Blocking, advice))
    }

    /// Keeps it where it is, mapped, until the guard is dropped; waits until it is here if it is not. A pin of
    /// what is here is an atomic change of each part's word, and one of the guards' count; so is its end. At most 1,024 parts.
    pub fn pin(&self, access: Access) -> Result<Pinned> {
        self.handle.pin(None, access)
    }

    /// The same for some of its parts.
    pub fn pin_parts(&self, parts: Range<u32>, access: Access) -> Result<Pinned> {
        self.handle.pin(Some(parts), access)
    }

    /// As [`Self::pin_parts`], and waits for no longer than that for what is not here: [`Error::Deadline`] by then, and it is as
    /// if it had not been asked for. The other pins wait for as long as [`crate::ClientBuilder::request_timeout`].
    pub fn pin_timeout(&self, parts: Range<u32>, access: Access, wait: Duration) -> Result<Pinned> {
        self.handle.pin_timeout(parts, access, wait)
    }

    /// As [`Self::pin_parts`], with a guard that borrows this handle: half as dear.
    #[inline]
    pub fn pin_ref(&self, parts: Range<u32>, access: Access) -> Result<PinnedRef<'_>> {
        self.handle.pin_ref(Some(parts), access)
    }

    /// Gives up the handle's own pin: from now on the daemon may unmap it whenever nobody pins it, and slices of the
    /// handle are refused ([`Error::NotPinned`]). Copies bring it back as they need it.
    pub fn unpin(&mut self) -> Result<()> {
        self.handle.unpin()
    }

    /// Takes the handle's own pin again, and waits until it is here.
    pub fn repin(&mut self) -> Result<()> {
        run_ready(self.handle.hold(CallStyle::Blocking))
    }

    /// Whether the handle pins it, as every handle does at first.
    pub fn has_handle_pin(&self) -> bool {
        self.handle.has_handle_pin()
    }
}

impl Pinnable for Allocation {}

impl private::Sealed for Allocation {
    fn handle(&self) -> private::Handle<'_> {
        private::Handle(&self.handle)
    }
}

impl Pinnable for Sealed {}

impl private::Sealed for Sealed {
    fn handle(&self) -> private::Handle<'_> {
        private::Handle(&self.handle)
    }
}

impl fmt::Display for SealFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sealing {}: {}", self.allocation.id(), self.error)
    }
}

impl std::error::Error for SealFailed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<H: Pinnable> fmt::Display for FreeFailed<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "releasing {}: {}", private::Sealed::handle(&self.handle).0.info().id, self.error)
    }
}

impl<H: Pinnable + fmt::Debug> std::error::Error for FreeFailed<H> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Drops the handle, which parts from the allocation once no guard is left.
impl<H> From<FreeFailed<H>> for Error {
    fn from(failed: FreeFailed<H>) -> Self {
        failed.error
    }
}

/// Gives up the allocation.
impl From<SealFailed> for Error {
    fn from(failed: SealFailed) -> Self {
        failed.error
    }
}
