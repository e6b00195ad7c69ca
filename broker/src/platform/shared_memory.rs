//! Memory shared with one other process, as a memfd that neither process can shrink.

#![allow(unsafe_code, reason = "a mapping of memory that another process writes")]

use std::{
    fmt, io,
    num::NonZeroUsize,
    os::fd::{AsFd, OwnedFd},
    ptr::{self, NonNull},
    slice,
    sync::atomic::AtomicU64,
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

/// A mapping of words, all zero at first. Untouched pages take no memory.
pub struct SharedMemory {
    start: NonNull<AtomicU64>,
    words: NonZeroUsize,
}

// SAFETY: the reactor and the channels' tasks use it from several threads. It is an address of memory that lives as
// long as this does, is only ever used as atomics, and belongs to no thread.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; atomics may be shared.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Creates memory for that number of words, and the descriptor by which another process maps it. Its size is
    /// sealed.
    pub fn create(name: &str, words: NonZeroUsize) -> io::Result<(Self, OwnedFd)> {
        let bytes = words.get().checked_mul(size_of::<AtomicU64>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // With `vm.memfd_noexec = 2` no other memfd may be made. Kernels before 6.3 do not know the flag.
        let fd = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => memfd_create(name, flags)?,
            made => made?,
        };
        ftruncate(&fd, bytes as u64)?;
        // If the file could shrink, reading beyond its end would end this process.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        // SAFETY: a new mapping at a place of the kernel's choice replaces no existing mapping.
        let start = unsafe {
            mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0)
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok((Self { start, words }, fd))
    }
}

/// Seals the memory: from now on no process can map it for writing or punch holes in it. Existing mappings stay.
pub fn close_to_writers(fd: impl AsFd) -> io::Result<()> {
    Ok(fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?)
}

impl AsRef<[AtomicU64]> for SharedMemory {
    fn as_ref(&self) -> &[AtomicU64] {
        // SAFETY: a mapping has no safe reader. It spans `words` words, page-aligned and mapped as long as `self`
        // lives, and its file cannot shrink. Another process writes them at any time, which atomics allow.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words.get()) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value alone, and no borrow of it outlives `self`. Unmapping could fail
        // only otherwise.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.words.get() * size_of::<AtomicU64>()) };
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMemory").field("words", &self.words).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use rustix::{
        fs::{FallocateFlags, fallocate},
        io::Errno,
        mm,
    };

    use super::*;

    const WORDS: NonZeroUsize = NonZeroUsize::new(1024).expect("it is not zero");

    fn map_again(fd: &OwnedFd) -> rustix::io::Result<*mut libc::c_void> {
        // SAFETY: as in `create`.
        unsafe { mmap(ptr::null_mut(), 8192, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0) }
    }

    #[test]
    fn both_mappings_see_the_same_words() {
        let (memory, fd) = SharedMemory::create("words-test", WORDS).unwrap();
        let theirs = map_again(&fd).unwrap().cast::<AtomicU64>();
        assert!(memory.as_ref().iter().all(|word| word.load(Ordering::Relaxed) == 0));
        // SAFETY: the mapping has 1,024 words, and stands until the end of the test.
        let last = unsafe { &*theirs.add(1023) };
        last.store(7, Ordering::Relaxed);
        assert_eq!(memory.as_ref()[1023].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn no_process_can_shrink_or_punch_it() {
        let (memory, fd) = SharedMemory::create("words-test", WORDS).unwrap();
        for bytes in [0, 4096, 1 << 20] {
            assert_eq!(ftruncate(&fd, bytes), Err(Errno::PERM), "{bytes}");
        }
        let mapped = map_again(&fd).unwrap();
        memory.as_ref()[5].store(9, Ordering::Relaxed);
        close_to_writers(&fd).unwrap();
        assert_eq!(map_again(&fd), Err(Errno::PERM));
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(fallocate(&fd, hole, 0, 4096), Err(Errno::PERM));
        // SAFETY: the mapping belongs to this test, which does not use it again.
        let removed = unsafe { mm::madvise(mapped, 4096, mm::Advice::LinuxRemove) };
        assert!(removed.is_err(), "holes can be punched through a mapping");
        assert_eq!(memory.as_ref()[5].load(Ordering::Relaxed), 9);
        assert_eq!(fcntl_add_seals(&fd, SealFlags::WRITE), Err(Errno::PERM));
    }
}
