//! Host memory mapped in this process, which devices can access too.
#![allow(unsafe_code, reason = "calls of the CUDA driver, and memory that is read and written by address")]

use std::{io, os::fd::BorrowedFd, ptr, ptr::NonNull, slice, sync::Arc};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::{
    Context, CudaError, Mapping,
    physical::number,
    registered::{Pages, Registered},
};

/// One piece of host memory, whole. It is dropped only when no device uses it.
#[derive(Debug)]
pub(crate) struct HostView {
    start: NonNull<u8>,
    length: usize,
    writable: bool,
    kind: ViewKind,
}

#[derive(Debug)]
enum ViewKind {
    Vmm { _mapping: Mapping },
    File(Mapped),
    Registered { _mapping: Registered<Mapped> },
}

/// A file's pages.
#[derive(Debug)]
struct Mapped {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: The pointer keeps the type from being sent. The mapping belongs to the process, not to a thread, and `self` is
// its only owner.
unsafe impl Send for HostView {}
// SAFETY: The pointer keeps the type from being shared. Shared, it is read and written by address. Its users
// agree on access by other means: the broker never lets two of them access the same bytes, except to read.
unsafe impl Sync for HostView {}

impl HostView {
    /// Of memory that is mapped for the CPU too.
    pub(crate) fn of_vmm(mapping: Mapping, writable: bool) -> Self {
        let start = ptr::with_exposed_provenance_mut(number(mapping.address()));
        let start = NonNull::new(start).expect("the driver reserves no addresses around zero");
        Self { start, length: mapping.size(), writable, kind: ViewKind::Vmm { _mapping: mapping } }
    }

    /// The first `length` bytes of a file sealed against shrinking, kept out of child processes.
    pub(crate) fn of_file(fd: BorrowedFd<'_>, length: usize, writable: bool) -> io::Result<Self> {
        let access = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: Mapping needs an unsafe call. The address is the kernel's choice, so no memory that Rust knows is
        // replaced.
        let start = unsafe { mmap(ptr::null_mut(), length, access, MapFlags::SHARED, fd, 0) }?;
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            return Err(io::Error::other("mapped at address zero"));
        };
        let mapped = Mapped { start, length };
        // SAFETY: The advice needs an unsafe call. The range is the one just mapped, and leaving it out of children
        // changes nothing in this process.
        unsafe { madvise(start.as_ptr().cast(), length, Advice::LinuxDontFork) }?;
        start.as_ptr().expose_provenance();
        Ok(Self { start, length, writable, kind: ViewKind::File(mapped) })
    }

    /// Has the driver pin a file's memory, for all contexts of the process. Memory that the driver mapped is
    /// pinned already.
    pub(crate) fn register(self, context: &Arc<Context>) -> Result<Self, CudaError> {
        let kind = match self.kind {
            ViewKind::File(mapped) => ViewKind::Registered { _mapping: Registered::of(context, mapped)? },
            pinned @ (ViewKind::Vmm { .. } | ViewKind::Registered { .. }) => pinned,
        };
        Ok(Self { kind, ..self })
    }

    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    /// The current content of a range. Other processes may write the same memory meanwhile. The caller may hash
    /// these bytes, but must not decide anything by reading one of them twice.
    pub(crate) fn bytes(&self, at: usize, length: usize) -> &[u8] {
        let start = self.at(at, length);
        // SAFETY: The range is inside the mapping, which lives as long as `self`, and every byte is a valid
        // `u8`. The caller of a digest ensures that nothing is copied here meanwhile. Otherwise the read is
        // torn, and no length, index or pointer is ever taken from it.
        unsafe { slice::from_raw_parts(start, length) }
    }

    /// The start of a range, for access by address.
    pub(crate) fn start_of(&self, at: usize, length: usize) -> NonNull<u8> {
        assert!(self.writable, "the driver's own views may be written");
        NonNull::new(self.at(at, length)).expect("no mapping begins at zero")
    }

    pub(crate) fn read(&self, at: usize, into: &mut [u8]) {
        // SAFETY: The range is inside the mapping; the slice is memory of this process's own.
        unsafe { self.at(at, into.len()).copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
    }

    /// `false` if the memory is read-only.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> bool {
        if self.writable {
            // SAFETY: The range is inside the mapping, which may be written; the slice is memory of this process's own.
            unsafe { self.at(at, bytes.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        self.writable
    }

    /// Copies to the same place in another view, which is writable and of other memory.
    pub(crate) fn copy_to(&self, other: &Self, at: usize, length: usize) {
        assert!(other.writable, "the driver's own views may be written");
        // SAFETY: Both ranges are inside their mappings, and these are apart: each was mapped by itself. Nothing borrows
        // the bytes.
        unsafe { self.at(at, length).copy_to_nonoverlapping(other.at(at, length), length) };
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn zero(&self, at: usize, length: usize) {
        assert!(self.writable, "the driver's own views may be written");
        // SAFETY: The range is inside the mapping, which may be written. Nothing borrows the bytes.
        unsafe { self.at(at, length).write_bytes(0, length) };
    }

    fn at(&self, at: usize, length: usize) -> *mut u8 {
        assert!(at.checked_add(length).is_some_and(|end| end <= self.length), "out of the mapping");
        self.start.as_ptr().wrapping_add(at)
    }
}

// SAFETY: The range is its own mapping's, which is as long, until it is dropped.
unsafe impl Pages for Mapped {
    fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: Unmapping needs an unsafe call. The range is this mapping's own, and no slice of it outlives the view of which
        // it is a part.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "a whole mapping is always unmapped");
    }
}
