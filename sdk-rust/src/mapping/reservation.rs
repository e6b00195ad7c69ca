//! The address range of an allocation in host memory, kept for its life, and the parts mapped into it.
//!
//! A reservation is inaccessible memory of the allocation's whole span. Parts are mapped over it and, when they are
//! revoked, replaced by inaccessible memory again. So the address never changes, and nothing else can come to lie
//! there while a handle still knows it. A forked child inherits none of it.

#![allow(unsafe_code, reason = "mapping memory at a chosen address has no safe interface")]

use std::{
    os::fd::BorrowedFd,
    ptr::{self, NonNull},
};

use rustix::{
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap},
    param::page_size,
    process,
};

use crate::process::inherited;

/// A range of this process's addresses that nothing else uses.
#[derive(Debug)]
pub(crate) struct Reservation {
    base: NonNull<u8>,
    span: usize,
    pid: process::Pid,
}

// SAFETY: needed for the pointer. The range is owned, and the methods that change what lies there ask the kernel,
// which is safe from any thread.
unsafe impl Send for Reservation {}
// SAFETY: as above.
unsafe impl Sync for Reservation {}

impl Reservation {
    pub(crate) fn new(span: usize) -> Result<Self, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: there is no safe interface. Without MAP_FIXED the kernel chooses addresses that nothing else uses.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), span, ProtFlags::empty(), flags)? };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let reservation = Self { base, span, pid: process::getpid() };
        inherited::remember(base.addr().get(), span);
        reservation.keep_from_children(0, span)?;
        Ok(reservation)
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn span(&self) -> usize {
        self.span
    }

    /// Maps the first `size` bytes of `fd` at `offset`. On failure nothing is mapped there.
    pub(crate) fn map(
        &self,
        fd: BorrowedFd<'_>,
        offset: usize,
        size: usize,
        writable: bool,
    ) -> Result<(), Errno> {
        let place = self.place(offset, size)?;
        let access = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: there is no safe interface. MAP_FIXED replaces only memory of this reservation, which `place` has
        // checked and nothing else uses. The memory is shared with the daemon and, once sealed, with readers: the
        // code that makes slices of it answers for that.
        unsafe { mmap(place, size, access, MapFlags::SHARED | MapFlags::FIXED, fd, 0)? };
        if let Err(error) = self.keep_from_children(offset, size) {
            self.unmap(offset, size)?;
            return Err(error);
        }
        Ok(())
    }

    /// Makes the range inaccessible again; the memory that was mapped there is unmapped.
    pub(crate) fn unmap(&self, offset: usize, size: usize) -> Result<(), Errno> {
        let place = self.place(offset, size)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: as in `map`. Slices of the range are gone, or the documentation warned their holder that a revoke
        // makes them fault.
        unsafe { mmap_anonymous(place, size, ProtFlags::empty(), flags)? };
        self.keep_from_children(offset, size)
    }

    /// The address of a range of whole pages inside the reservation.
    fn place(&self, offset: usize, size: usize) -> Result<*mut std::ffi::c_void, Errno> {
        let inside = size > 0 && offset.checked_add(size).is_some_and(|end| end <= self.span);
        let aligned = offset.is_multiple_of(page_size()) && size.is_multiple_of(page_size());
        if inside && aligned { Ok(self.base.as_ptr().wrapping_add(offset).cast()) } else { Err(Errno::INVAL) }
    }

    fn keep_from_children(&self, offset: usize, size: usize) -> Result<(), Errno> {
        let place = self.base.as_ptr().wrapping_add(offset).cast();
        // SAFETY: there is no safe interface. The advice concerns forked children only, and every caller's range lies
        // in the reservation.
        unsafe { madvise(place, size, Advice::LinuxDontFork) }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if process::getpid() == self.pid {
            inherited::forget(self.base.addr().get(), self.span);
            // SAFETY: there is no safe interface. The range is this reservation's, and its last user is gone. It
            // fails only if the kernel is out of map entries, and then the range stays reserved.
            let _ = unsafe { munmap(self.base.as_ptr().cast(), self.span) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    const SIZE: usize = 2 << 20;

    fn memfd() -> OwnedFd {
        let fd = memfd_create("vramd-client-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, SIZE as u64).unwrap();
        fd
    }

    /// The line of /proc/self/maps that begins at `address`.
    fn maps_line(address: usize) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().find(|line| line.starts_with(&format!("{address:x}-"))).map(str::to_owned)
    }

    #[test]
    fn part_is_mapped_again_at_its_address() {
        let reservation = Reservation::new(2 * SIZE).unwrap();
        let fd = memfd();
        let at = reservation.base().as_ptr().wrapping_add(SIZE);

        reservation.map(fd.as_fd(), SIZE, SIZE, true).unwrap();
        // SAFETY: just mapped, writable, and known to this test alone.
        unsafe { at.write(7) };
        assert!(maps_line(at.addr()).unwrap().contains("rw-s"));

        reservation.unmap(SIZE, SIZE).unwrap();
        assert!(!std::fs::read_to_string("/proc/self/maps").unwrap().contains(&format!("{:x}-", at.addr())));

        reservation.map(fd.as_fd(), SIZE, SIZE, false).unwrap();
        assert!(maps_line(at.addr()).unwrap().contains("r--s"));
        // SAFETY: mapped again, readable.
        assert_eq!(unsafe { at.read() }, 7);
    }

    #[test]
    fn ranges_outside_the_reservation_are_refused() {
        let reservation = Reservation::new(SIZE).unwrap();
        let fd = memfd();
        for (offset, size) in [(SIZE, SIZE), (0, 2 * SIZE), (1, SIZE), (0, 0), (0, 17), (usize::MAX, 4096)] {
            assert_eq!(reservation.map(fd.as_fd(), offset, size, true), Err(Errno::INVAL), "{offset} {size}");
            assert_eq!(reservation.unmap(offset, size), Err(Errno::INVAL), "{offset} {size}");
        }
    }

    #[test]
    fn forked_child_inherits_no_mapping() {
        let reservation = Reservation::new(2 * SIZE).unwrap();
        let fd = memfd();
        reservation.map(fd.as_fd(), 0, SIZE, true).unwrap();
        let flags_of = |address: usize| {
            let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let region = smaps.split_once(&format!("{address:x}-")).unwrap().1;
            region.lines().find(|line| line.starts_with("VmFlags:")).unwrap().to_owned()
        };
        let base = reservation.base().as_ptr().addr();
        assert!(flags_of(base).contains(" dc"), "{}", flags_of(base));
        assert!(flags_of(base + SIZE).contains(" dc"), "{}", flags_of(base + SIZE));
    }
}
