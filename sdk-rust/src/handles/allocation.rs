//! Handles of mapped memory: an [`Allocation`] is written, then sealed; a [`Sealed`] one is only read.
//!
//! The address of a handle never changes. The memory there can be taken away in two ways.
//!
//! **By eviction**, while no session pins it. A handle starts with a *handle pin* of its own, so slices and pointers
//! stay valid. A program that uses memory only now and then gives that pin up (`unpin`) and pins memory while it uses
//! it (`pin`): the guard brings evicted parts back, to the same address, with the same bytes. A guard may outlive its
//! handle. While guards are alive, `seal`, `free` and `detach` are refused with [`Error::Pinned`]; a dropped handle
//! is released when its last guard is gone.
//!
//! **For good**, when an operator frees the allocation or ends the session. The handle pin does not count then. Once
//! no guard is left the SDK unmaps the memory. From then on an access through an old slice of the handle faults
//! (SIGSEGV), and a kernel's access ends its context, as with a device that fell off the bus. New slices and copies
//! return [`Error::NotMapped`]; `is_mapped` returns false.

use std::{fmt, ops::Range, time::Duration};

use vramd_types::AllocationId;
use vramd_words::Access;

use crate::{
    error::{Error, Result},
    handles::{
        addresses::{Addresses, free_keeping},
        advice::Advice,
        handle::Handle,
        info::{AllocationInfo, Tier},
        staging::StagingBuffer,
    },
    pins::{Pinnable, Pinned, PinnedRef, private},
    session::{
        Released,
        call_style::{CallStyle, run_ready},
    },
};

/// Memory of this session alone, mapped for reading and writing. Dropping it unsealed frees it.
///
/// Fixed memory is the exception: other sessions of the tenant may write it too, and dropping an attached handle only
/// detaches it.
#[derive(Debug)]
pub struct Allocation {
    // Boxed, so that returning it from a failed seal costs a successful one nothing.
    handle: Box<Handle>,
}

/// Sealed memory, mapped read-only: no session can write it any more. Several handles of one session share one mapping,
/// which ends with the last of them.
///
/// Dropping it detaches the session; if the session owns it and it is not persistent, dropping frees it.
#[derive(Debug)]
pub struct Sealed {
    handle: Box<Handle>,
}

/// Sealing failed; the allocation is returned. [`Allocation::is_mapped`] says whether it is still mapped.
#[derive(Debug)]
pub struct SealFailed {
    pub allocation: Allocation,
    pub error: Error,
}

/// Freeing or detaching failed; the handle is returned. With [`Error::Pinned`] nothing was done. Otherwise
/// [`Allocation::is_mapped`] says whether it is still mapped, and trying again does no harm.
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

    pub(crate) fn handle_mut(&mut self) -> &mut Handle {
        &mut self.handle
    }

    pub fn id(&self) -> AllocationId {
        self.handle.info().id
    }

    /// The allocation as the daemon described it when it was allocated.
    pub fn info(&self) -> &AllocationInfo {
        self.handle.info()
    }

    /// The address of the memory: a device pointer if it [is device memory](Self::is_device_memory), valid in the
    /// primary context of its device; otherwise an address of this process. It stays the same, mapped or not. It is 0
    /// for memory requested as unpinned until the first pin.
    pub fn as_device_ptr(&self) -> u64 {
        self.handle.as_device_ptr()
    }

    /// Whether the address is a GPU's, which the CPU cannot access. Known as soon as the address is.
    pub fn is_device_memory(&self) -> bool {
        self.handle.is_device_memory()
    }

    /// Copies bytes to host memory from any tier, and returns when they have arrived. It fails, and nothing worse, if
    /// an operator takes the memory away meanwhile. It waits for no kernel of the program.
    pub fn copy_to_host(&self, offset_bytes: u64, to: &mut [u8]) -> Result<()> {
        run_ready(self.handle.copy_to_host(CallStyle::Blocking, offset_bytes, to))
    }

    /// Copies bytes from host memory, and returns when they have arrived. It fails, and nothing worse, if an operator
    /// takes the memory away meanwhile. It waits for no kernel of the program.
    pub fn copy_from_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<()> {
        run_ready(self.handle.copy_from_host(CallStyle::Blocking, offset_bytes, from))
    }

    /// Host memory of that many bytes to read into before [`Self::copy_from_host`]: page-locked for the device of this
    /// allocation. It is ordinary memory if that lies in no device memory, if it was never mapped, or if the driver cannot
    /// lock so much.
    pub fn staging_buffer(&self, bytes: usize) -> Result<StagingBuffer> {
        self.handle.staging_buffer(bytes)
    }

    /// The requested bytes, in place. Refused for device memory, for memory that is no longer mapped, and in a forked
    /// child.
    pub fn as_slice(&self) -> Result<&[u8]> {
        self.handle.as_slice()
    }

    /// The requested bytes, writable in place. Refused as [`Self::as_slice`] is.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8]> {
        self.handle.as_mut_slice()
    }

    pub fn is_mapped(&self) -> bool {
        self.handle.is_mapped()
    }

    /// Ends writing for ever: the session unmaps, the daemon hashes the bytes, and the session maps them again
    /// read-only at the same address. Without a handle pin they may return only with the next pin.
    pub fn seal(mut self) -> Result<Sealed, SealFailed> {
        match run_ready(self.handle.seal(CallStyle::Blocking)) {
            Ok(()) => Ok(Sealed { handle: self.handle }),
            Err(error) => Err(SealFailed { allocation: self, error }),
        }
    }

    /// Unmaps and frees it, and returns what is still charged. While guards of this process pin it, the call fails
    /// and returns the handle.
    pub fn free(mut self) -> Result<Released, FreeFailed<Self>> {
        let outcome = run_ready(self.handle.free(CallStyle::Blocking));
        outcome.map_err(|error| FreeFailed { handle: self, error })
    }

    /// Frees it, and keeps its addresses, for [`crate::Client::allocate_at`]. Its content is lost. While guards of this
    /// process pin it, or before its parts have arrived once, the call fails and returns the handle.
    pub fn free_keeping_addresses(self) -> Result<Addresses, FreeFailed<Self>> {
        free_keeping(self.handle)
    }

    /// Moves it to a tier below its device now, although no other client needs the room: [`Tier::Host`] or
    /// [`Tier::Disk`]. Its address and its bytes stay, and the next pin fetches it. It fails with [`Error::Pinned`] while
    /// it is pinned, also by its handle; on any error some parts may have stayed.
    pub fn evict(&self, tier: Tier) -> Result<()> {
        run_ready(self.handle.evict(CallStyle::Blocking, tier))
    }

    /// Tells the daemon how the allocation is used: see [`Advice`]. [`Self::info`] goes on describing it as it was
    /// allocated.
    pub fn advise(&self, advice: Advice) -> Result<()> {
        run_ready(self.handle.advise(CallStyle::Blocking, None, advice))
    }

    /// Gives advice for some of the parts. Advice about access in place is for a whole allocation alone.
    pub fn advise_parts(&self, parts: Range<u32>, advice: Advice) -> Result<()> {
        run_ready(self.handle.advise(CallStyle::Blocking, Some(parts), advice))
    }

    /// Keeps all parts mapped until the guard is dropped, and waits until they have arrived. Pinning a mapped part is
    /// an atomic change of its word and one of the guards' count; so is unpinning. At most 1,024 parts.
    pub fn pin(&self, access: Access) -> Result<Pinned> {
        self.handle.pin(None, access)
    }

    /// Pins some of the parts, as [`Self::pin`] does.
    pub fn pin_parts(&self, parts: Range<u32>, access: Access) -> Result<Pinned> {
        self.handle.pin(Some(parts), access)
    }

    /// Like [`Self::pin_parts`], but waits at most `wait` for parts that are away. [`Error::Deadline`] then means
    /// that nothing is pinned. The other pins wait as long as [`crate::ClientBuilder::request_timeout`].
    pub fn pin_timeout(&self, parts: Range<u32>, access: Access, wait: Duration) -> Result<Pinned> {
        self.handle.pin_timeout(parts, access, wait)
    }

    /// Like [`Self::pin_parts`], with a guard that borrows this handle, at half the cost.
    #[inline]
    pub fn pin_ref(&self, parts: Range<u32>, access: Access) -> Result<PinnedRef<'_>> {
        self.handle.pin_ref(Some(parts), access)
    }

    /// Gives up the handle pin. From now on the daemon may unmap the memory while no guard pins it, and slices of the
    /// handle are refused ([`Error::NotPinned`]). Copies bring it back as they need it.
    pub fn unpin(&mut self) -> Result<()> {
        self.handle.unpin()
    }

    /// Takes the handle pin again, and waits until all parts have arrived.
    pub fn repin(&mut self) -> Result<()> {
        run_ready(self.handle.hold(CallStyle::Blocking))
    }

    /// Whether the handle has its handle pin, as every handle does at first unless it was requested as unpinned.
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

    pub(crate) fn handle_mut(&mut self) -> &mut Handle {
        &mut self.handle
    }

    pub fn id(&self) -> AllocationId {
        self.handle.info().id
    }

    /// The allocation as the daemon described it when it was sealed or attached.
    pub fn info(&self) -> &AllocationInfo {
        self.handle.info()
    }

    /// `blake3:` and 64 hexadecimal digits over the requested bytes, as the daemon hashed them.
    pub fn digest(&self) -> &str {
        self.handle.info().digest.as_deref().unwrap_or_default()
    }

    /// The address of the memory: a device pointer if it [is device memory](Self::is_device_memory), valid in the
    /// primary context of its device; otherwise an address of this process. It stays the same, mapped or not.
    pub fn as_device_ptr(&self) -> u64 {
        self.handle.as_device_ptr()
    }

    /// Whether the address is a GPU's, which the CPU cannot access.
    pub fn is_device_memory(&self) -> bool {
        self.handle.is_device_memory()
    }

    /// Copies bytes to host memory from any tier, and returns when they have arrived. It fails, and nothing worse, if
    /// an operator takes the memory away meanwhile. It waits for no kernel of the program.
    pub fn copy_to_host(&self, offset_bytes: u64, to: &mut [u8]) -> Result<()> {
        run_ready(self.handle.copy_to_host(CallStyle::Blocking, offset_bytes, to))
    }

    /// The requested bytes, in place. Refused for device memory, for memory that is no longer mapped, and in a forked
    /// child.
    pub fn as_slice(&self) -> Result<&[u8]> {
        self.handle.as_slice()
    }

    pub fn is_mapped(&self) -> bool {
        self.handle.is_mapped()
    }

    /// See [`Allocation::evict`]. Sessions that have attached it unmap it too.
    pub fn evict(&self, tier: Tier) -> Result<()> {
        run_ready(self.handle.evict(CallStyle::Blocking, tier))
    }

    /// Unmaps it and frees the allocation; only its owner may. Other sessions keep their mappings. While this process
    /// has guards or other handles of it, the call fails and returns the handle.
    pub fn free(mut self) -> Result<Released, FreeFailed<Self>> {
        let outcome = run_ready(self.handle.free(CallStyle::Blocking));
        outcome.map_err(|error| FreeFailed { handle: self, error })
    }

    /// Unmaps it, and leaves the allocation as it is. While guards of this process pin it, the call fails and returns
    /// the handle. While this session has other handles of it, only this handle ends, and the mapping stays.
    pub fn detach(mut self) -> Result<(), FreeFailed<Self>> {
        let outcome = run_ready(self.handle.detach(CallStyle::Blocking));
        outcome.map_err(|error| FreeFailed { handle: self, error })
    }

    /// Tells the daemon how all its readers use the allocation; only its owner may. See [`Advice`]. [`Self::info`]
    /// goes on describing it as it was before.
    pub fn advise(&self, advice: Advice) -> Result<()> {
        run_ready(self.handle.advise(CallStyle::Blocking, None, advice))
    }

    /// Gives advice for some of the parts. Advice about access in place is for a whole allocation alone.
    pub fn advise_parts(&self, parts: Range<u32>, advice: Advice) -> Result<()> {
        run_ready(self.handle.advise(CallStyle::Blocking, Some(parts), advice))
    }

    /// Keeps all parts mapped until the guard is dropped, and waits until they have arrived. Pinning a mapped part is
    /// an atomic change of its word and one of the guards' count; so is unpinning. At most 1,024 parts.
    pub fn pin(&self, access: Access) -> Result<Pinned> {
        self.handle.pin(None, access)
    }

    /// Pins some of the parts, as [`Self::pin`] does.
    pub fn pin_parts(&self, parts: Range<u32>, access: Access) -> Result<Pinned> {
        self.handle.pin(Some(parts), access)
    }

    /// Like [`Self::pin_parts`], but waits at most `wait` for parts that are away. [`Error::Deadline`] then means
    /// that nothing is pinned. The other pins wait as long as [`crate::ClientBuilder::request_timeout`].
    pub fn pin_timeout(&self, parts: Range<u32>, access: Access, wait: Duration) -> Result<Pinned> {
        self.handle.pin_timeout(parts, access, wait)
    }

    /// Like [`Self::pin_parts`], with a guard that borrows this handle, at half the cost.
    #[inline]
    pub fn pin_ref(&self, parts: Range<u32>, access: Access) -> Result<PinnedRef<'_>> {
        self.handle.pin_ref(Some(parts), access)
    }

    /// Gives up the handle pin. From now on the daemon may unmap the memory while no guard pins it, and slices of the
    /// handle are refused ([`Error::NotPinned`]). Copies bring it back as they need it.
    pub fn unpin(&mut self) -> Result<()> {
        self.handle.unpin()
    }

    /// Takes the handle pin again, and waits until all parts have arrived.
    pub fn repin(&mut self) -> Result<()> {
        run_ready(self.handle.hold(CallStyle::Blocking))
    }

    /// Whether the handle has its handle pin, as every handle does at first unless it was requested as unpinned.
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

impl<H: private::Sealed> fmt::Display for FreeFailed<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "releasing {}: {}", self.handle.handle().0.info().id, self.error)
    }
}

impl<H: private::Sealed + fmt::Debug> std::error::Error for FreeFailed<H> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Drops the handle; the allocation is released once no guard is left.
impl<H> From<FreeFailed<H>> for Error {
    fn from(failed: FreeFailed<H>) -> Self {
        failed.error
    }
}

/// Drops the allocation.
impl From<SealFailed> for Error {
    fn from(failed: SealFailed) -> Self {
        failed.error
    }
}
