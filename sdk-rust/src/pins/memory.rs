//! The memory of a word table.

#![allow(unsafe_code, reason = "mapping shared memory and reading it as atomics have no safe interface")]

use std::{
    os::fd::BorrowedFd,
    ptr::{self, NonNull},
    slice,
    sync::Arc,
};

use rustix::{
    fs::fstat,
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap},
};
use vramd_words::AtomicU64;

use crate::process::Process;

/// Mapped until its last user is gone. No child inherits it.
#[derive(Clone, Debug)]
pub(crate) struct Memory(Arc<Mapping>);

#[derive(Debug)]
struct Mapping {
    base: NonNull<AtomicU64>,
    bytes: usize,
    process: Process,
}

// SAFETY: needed for the pointer. The range is owned, and read and written as atomics alone.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Memory {
    /// Maps the first bytes of a file that both sides write. The file must be that long: an access beyond its end
    /// kills the process.
    pub(crate) fn shared(fd: BorrowedFd<'_>, bytes: u64) -> Result<Self, Errno> {
        if u64::try_from(fstat(fd)?.st_size).unwrap_or(0) < bytes {
            return Err(Errno::INVAL);
        }
        Self::keep(bytes, |bytes, access| {
            // SAFETY: there is no safe interface. Without MAP_FIXED the kernel chooses addresses that nothing else uses.
            unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, fd, 0) }
        })
    }

    /// Maps zeros of this process alone, which take memory only once they are written.
    pub(crate) fn private(bytes: u64) -> Result<Self, Errno> {
        Self::keep(bytes, |bytes, access| {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: as above.
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, flags) }
        })
    }

    fn keep(
        bytes: u64,
        map: impl FnOnce(usize, ProtFlags) -> Result<*mut std::ffi::c_void, Errno>,
    ) -> Result<Self, Errno> {
        let bytes = usize::try_from(bytes).map_err(|_| Errno::NOMEM)?;
        let base = map(bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let mapping = Mapping { base, bytes, process: Process::current() };
        // SAFETY: there is no safe interface. The advice concerns forked children only, and the range is this mapping's.
        unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxDontFork)? };
        Ok(Self(Arc::new(mapping)))
    }
}

impl AsRef<[AtomicU64]> for Memory {
    #[inline]
    fn as_ref(&self) -> &[AtomicU64] {
        // SAFETY: needed to see it. The range is mapped for reading and writing as long as `self` lives, aligned to a
        // page, and used as atomics alone. A forked child, where it is not mapped, never gets here: every path to the
        // words first checks which process this is.
        unsafe { slice::from_raw_parts(self.0.base.as_ptr(), self.0.bytes / size_of::<AtomicU64>()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if Process::current() == self.process {
            // SAFETY: there is no safe interface. The range is this mapping's, and its last user is gone.
            let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{os::fd::AsFd as _, sync::atomic::Ordering};

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn both_sides_see_what_either_writes() {
        let fd = memfd_create("vramd-words-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 8192).unwrap();
        let (one, other) =
            (Memory::shared(fd.as_fd(), 8000).unwrap(), Memory::shared(fd.as_fd(), 64).unwrap());
        assert_eq!((one.as_ref().len(), other.as_ref().len()), (1000, 8));
        one.as_ref()[7].store(7, Ordering::Relaxed);
        assert_eq!(other.as_ref()[7].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_file_that_is_too_short_is_not_mapped() {
        let fd = memfd_create("vramd-words-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 4096).unwrap();
        assert_eq!(Memory::shared(fd.as_fd(), 4097).unwrap_err(), Errno::INVAL);
    }
}
