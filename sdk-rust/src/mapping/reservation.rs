//! The address range of an allocation in host memory, kept for its life, and the parts mapped into it.
//!
//! A reservation is inaccessible memory of the allocation's whole span. Parts are mapped over it and, when they are
//! revoked, replaced by inaccessible memory again. So the address never changes, and nothing else can come to lie
//! there while a handle still knows it. A forked child inherits none of it.

#![allow(unsafe_code, reason = "mapping memory at a chosen address has no safe interface")]

use std::{
    iter,
    ops::Range,
    os::fd::BorrowedFd,
    ptr::{self, NonNull},
    sync::{Mutex, MutexGuard, PoisonError},
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
    /// Ranges that could not be reserved again.
    holes: Mutex<Vec<Range<usize>>>,
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
        let reservation = Self { base, span, pid: process::getpid(), holes: Mutex::default() };
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
        let mut holes = self.holes();
        let in_hole = holes.iter().any(|hole| overlap(hole, &(offset..offset + size)));
        let fixed = if in_hole { MapFlags::FIXED_NOREPLACE } else { MapFlags::FIXED };
        // SAFETY: there is no safe interface. MAP_FIXED replaces only memory of this reservation, which `place` has
        // checked and nothing else uses; where the reservation has a hole, nothing is replaced. The memory is shared
        // with the daemon and, once sealed, with readers: the code that makes slices of it answers for that.
        unsafe { mmap(place, size, access, MapFlags::SHARED | fixed, fd, 0)? };
        cut(&mut holes, &(offset..offset + size));
        drop(holes);
        if let Err(error) = self.keep_from_children(offset, size) {
            self.unmap(offset, size)?;
            return Err(error);
        }
        Ok(())
    }

    /// Makes the range inaccessible again; the memory that was mapped there is unmapped. That needs nothing that may
    /// have run out: where the process has as many mappings as it may, the range is unmapped first and reserved
    /// again, and stays a hole if another thread was faster.
    pub(crate) fn unmap(&self, offset: usize, size: usize) -> Result<(), Errno> {
        let place = self.place(offset, size)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let reserve = |fixed| {
            // SAFETY: as in `map`. Slices of the range are gone, or the documentation warned their holder that a
            // revoke makes them fault.
            unsafe { mmap_anonymous(place, size, ProtFlags::empty(), flags | fixed) }
        };
        match reserve(MapFlags::FIXED) {
            Ok(_) => return self.keep_from_children(offset, size),
            Err(Errno::NOMEM) => {}
            Err(error) => return Err(error),
        }
        let mut holes = self.holes();
        // SAFETY: as above. The range is that of whole mappings, so the kernel need not split any.
        unsafe { munmap(place, size)? };
        if reserve(MapFlags::FIXED_NOREPLACE).is_err() {
            holes.push(offset..offset + size);
            return Ok(());
        }
        self.keep_from_children(offset, size)
    }

    fn holes(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        self.holes.lock().unwrap_or_else(PoisonError::into_inner)
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
            let mut holes = std::mem::take(&mut *self.holes());
            holes.sort_unstable_by_key(|hole| hole.start);
            let mut start = 0;
            // Other memory of the process may lie in a hole.
            for hole in holes.into_iter().chain(iter::once(self.span..self.span)) {
                let own = start..hole.start;
                start = hole.end;
                if let Ok(place) = self.place(own.start, own.len()) {
                    // SAFETY: there is no safe interface. The range is this reservation's, and its last user is gone.
                    // It fails only if the kernel is out of map entries, and then the range stays reserved.
                    let _ = unsafe { munmap(place, own.len()) };
                }
            }
        }
    }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Takes a range out of the holes.
fn cut(holes: &mut Vec<Range<usize>>, range: &Range<usize>) {
    if holes.is_empty() {
        return;
    }
    let left =
        |hole: &Range<usize>| [hole.start..range.start.min(hole.end), range.end.max(hole.start)..hole.end];
    *holes = holes.iter().flat_map(left).filter(|hole| hole.start < hole.end).collect();
}

/// Says why the kernel refused to map, and what to change if the process has as many mappings as it may.
pub(super) fn explain(error: Errno) -> String {
    let limit = || std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    // Counting the mappings would take long, since there may be very many.
    match limit().filter(|_| error == Errno::NOMEM && !can_map()) {
        Some(limit) => format!(
            "this process can make no further mapping, and vm.max_map_count allows {}: raise that (sysctl \
             vm.max_map_count), or use larger parts",
            limit.trim()
        ),
        None => error.to_string(),
    }
}

/// Whether the process can make one more mapping.
fn can_map() -> bool {
    let size = page_size();
    // SAFETY: there is no safe interface. Without MAP_FIXED the kernel chooses addresses that nothing else uses.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), size, ProtFlags::empty(), MapFlags::PRIVATE) };
    // SAFETY: the page was mapped just now, and nothing knows it.
    page.is_ok_and(|page| unsafe { munmap(page, size) }.is_ok())
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
    fn holes_are_cut_by_mapped_ranges() {
        let mut holes = vec![0..4, 6..8];
        cut(&mut holes, &(1..2));
        assert_eq!(holes, [0..1, 2..4, 6..8]);
        cut(&mut holes, &(2..7));
        assert_eq!(holes, [0..1, 7..8]);
        cut(&mut holes, &(0..8));
        assert_eq!(holes, [] as [Range<usize>; 0]);
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
