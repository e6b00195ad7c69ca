//! One mapped part of device memory, as the simulated driver's clients map it.

#![allow(unsafe_code, reason = "mapping memory that other processes share is what is tested here")]

use std::{
    os::fd::{AsFd, BorrowedFd},
    ptr::{self, NonNull},
    slice,
    sync::atomic::AtomicU64,
};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes of a part. Other processes share them, so a test reads them only while no process writes.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    pub offset: u64,
    pub writable: bool,
}

// SAFETY: needed so that tests can hand a mapping to another thread. It is plain memory, not bound to one.
unsafe impl Send for Mapping {}
// SAFETY: needed so that two views of a word table share one. By reference it is only read, or changed as atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a memfd. The descriptor may be closed afterwards.
    pub fn new(fd: BorrowedFd<'_>, len: u64, offset: u64, writable: bool) -> rustix::io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| rustix::io::Errno::NOMEM)?;
        let access = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: mmap is only offered as an unsafe call. The kernel chooses a free address, so no memory of this
        // process is replaced.
        let start = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, fd.as_fd(), 0)? };
        let start = NonNull::new(start.cast()).ok_or(rustix::io::Errno::FAULT)?;
        Ok(Self { start, len, offset, writable })
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: reading mapped memory needs a raw slice. It is mapped readable for `len` bytes until `self` is
        // dropped, and the protocol lets no process write while a test compares.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The same memory as words that other processes may change at any time.
    pub fn words(&self) -> &[AtomicU64] {
        assert!(self.writable && self.start.cast::<AtomicU64>().is_aligned());
        // SAFETY: looking at shared words needs a raw slice. As in `bytes`, and mapped for writing, which atomics need;
        // other processes change them atomically, too.
        unsafe { slice::from_raw_parts(self.start.cast().as_ptr(), self.len / size_of::<AtomicU64>()) }
    }

    /// Fails the test on a read-only mapping, where writing would end the process.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.writable, "this mapping is read-only");
        // SAFETY: writing mapped memory needs a raw slice. It is mapped writable for `len` bytes until `self` is
        // dropped, and until it is sealed no other session maps it.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: munmap is only offered as an unsafe call. The range was mapped by `new`, and slices of it borrow
        // `self`, so none is left.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping made here can be unmapped");
    }
}
