//! The driver's own view of an extent's bytes.
#![allow(unsafe_code, reason = "memory is mapped and read by address; nothing else does it")]

use std::{ffi::c_void, io, os::fd::BorrowedFd, ptr::NonNull, slice};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// A read-only mapping of a whole memfd, kept out of child processes: a fork would hold the memory as long as
/// it lives.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<c_void>,
    length: usize,
}

impl Mapping {
    /// Maps the first `length` bytes of `fd`, which must not be zero, of a file sealed against shrinking.
    pub(super) fn new(fd: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        // SAFETY: Mapping needs an unsafe call. The address is the kernel's choice, so no memory that Rust knows is
        // replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, fd, 0) }?;
        let start = NonNull::new(start).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        let mapping = Self { start, length };
        // SAFETY: The advice needs an unsafe call. The range is the one just mapped, and leaving it out of children
        // changes nothing in this process.
        unsafe { madvise(start.as_ptr(), length, Advice::LinuxDontFork) }?;
        Ok(mapping)
    }

    /// The current content. Other processes may map the same memory and write it meanwhile. The caller may hash
    /// or copy these bytes, but must not decide anything by reading one of them twice.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: The bytes are reached by address alone. The range stays mapped as long as `self` lives. The
        // file cannot shrink (it is sealed, and punched holes read as zero), so no access faults. Every byte is
        // a valid `u8`. This process never writes them by address: the kernel does that for a copy. Another
        // process that still holds the memory could write them. Then the reader sees stale or torn bytes, and
        // no length, index or pointer is ever taken from them.
        unsafe { slice::from_raw_parts(self.start.cast::<u8>().as_ptr(), self.length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: Unmapping needs an unsafe call. The range is this mapping's own, and no slice of it outlives
        // `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.length) };
        debug_assert!(unmapped.is_ok(), "a whole mapping is always unmapped");
    }
}

// SAFETY: The pointer keeps the type from being sent. The mapping belongs to the process, not to a thread, and `self`
// is its only owner.
unsafe impl Send for Mapping {}
// SAFETY: The pointer keeps the type from being shared. Shared, it only gives out `&[u8]`.
unsafe impl Sync for Mapping {}
