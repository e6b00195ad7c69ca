//! Memory for disk IO.
//!
//! The kernel reads and writes it behind the program's back. So each implementation guarantees the range, and
//! an engine owns the value until the kernel is done.
#![allow(unsafe_code, reason = "memory that the kernel reads and writes by address")]

use std::{io, ops::Range, ptr, ptr::NonNull, slice};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::ALIGNMENT;

/// A range of memory that the kernel may read and write.
///
/// # Safety
///
/// From `start` on, `length` bytes are mapped and initialised as long as the value lives, wherever it is moved.
/// The kernel may read and write them meanwhile: no code holds a reference to them except through `bytes`.
pub(crate) unsafe trait IoMemory: Send + 'static {
    /// A multiple of [`ALIGNMENT`].
    fn start(&self) -> NonNull<u8>;

    fn length(&self) -> usize;

    /// The current content.
    fn bytes(&self) -> &[u8] {
        // SAFETY: `length` bytes are mapped and initialised, as the trait demands. While the kernel works on
        // them an engine owns the value and lends it to no code.
        unsafe { slice::from_raw_parts(self.start().as_ptr(), self.length()) }
    }
}

/// Zeros a range, which may have held bytes of any tenant.
pub(super) fn clear(buffer: &mut impl IoMemory, range: Range<usize>) {
    assert!(range.start <= range.end && range.end <= buffer.length(), "there is such a range");
    // SAFETY: `length` bytes are mapped, as the trait demands, and the caller has the buffer alone, without a
    // reference to its bytes.
    unsafe { buffer.start().as_ptr().add(range.start).write_bytes(0, range.end - range.start) }
}

/// The size of a huge page, which lies together in physical memory.
const HUGE: usize = 2 << 20;

/// A buffer of whole pages, kept out of child processes: after a fork the wrong process could get what is
/// written.
///
/// A large buffer asks for huge pages. Into scattered small pages a virtual disk read up to a third slower,
/// since it may need one request for each page.
#[derive(Debug)]
pub(crate) struct Buffer {
    start: NonNull<u8>,
    length: usize,
    /// The mapping that contains the buffer.
    mapping: NonNull<u8>,
    mapped: usize,
}

// SAFETY: The pointer keeps the type from being sent. The mapping belongs to the process, not to a thread, and `self` is
// its only owner.
unsafe impl Send for Buffer {}

// SAFETY: The range is inside this buffer's own mapping, of pages that begin as zero, until it is dropped.
unsafe impl IoMemory for Buffer {
    fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn length(&self) -> usize {
        self.length
    }
}

impl Buffer {
    pub(crate) fn new(length: usize) -> io::Result<Self> {
        let length = length.next_multiple_of(ALIGNMENT);
        let alignment = if length < HUGE { ALIGNMENT } else { HUGE };
        // Mappings begin at any page. The range before the next huge page is never touched.
        let mapped = length + alignment - ALIGNMENT;
        // SAFETY: Mapping needs an unsafe call. The address is the kernel's choice, so no memory that Rust knows is
        // replaced.
        let mapping = unsafe {
            mmap_anonymous(ptr::null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        let mapping =
            NonNull::new(mapping.cast::<u8>()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        let skipped = mapping.as_ptr().addr().next_multiple_of(alignment) - mapping.as_ptr().addr();
        // SAFETY: Mapping and aligned address both begin at a page, so the distance between them is at most
        // `mapped - length`.
        let start = unsafe { mapping.add(skipped) };
        let buffer = Self { start, length, mapping, mapped };
        if length >= HUGE {
            // SAFETY: The advice needs an unsafe call. The range is inside the mapping just made, and the size
            // of its pages changes nothing for its users. A kernel without huge pages refuses and uses small
            // ones.
            let _ = unsafe { madvise(start.as_ptr().cast(), length, Advice::LinuxHugepage) };
        }
        // SAFETY: The advice needs an unsafe call. The range is the one just mapped, and leaving it out of children
        // changes nothing in this process.
        unsafe { madvise(mapping.as_ptr().cast(), mapped, Advice::LinuxDontFork) }?;
        Ok(buffer)
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `length` bytes are mapped and initialised, and no other code has them while the buffer is
        // borrowed for writing.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }

    /// Copies these bytes to its beginning.
    pub(crate) fn fill(&mut self, bytes: &[u8]) {
        self.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: Unmapping needs an unsafe call. The mapping is this buffer's own, no slice of it outlives `self`, and an
        // engine owns the buffer while the kernel works on it.
        let unmapped = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapped) };
        debug_assert!(unmapped.is_ok(), "a whole mapping is always unmapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_zeroed_and_writable() {
        let mut buffer = Buffer::new(ALIGNMENT + 1).unwrap();
        assert_eq!(buffer.length(), 2 * ALIGNMENT);
        assert_eq!(buffer.start().as_ptr().align_offset(ALIGNMENT), 0);
        assert!(buffer.bytes().iter().all(|byte| *byte == 0));
        buffer.fill(b"abc");
        assert_eq!(&buffer.bytes()[..4], b"abc\0");
        clear(&mut buffer, 1..3);
        assert_eq!(&buffer.bytes()[..4], b"a\0\0\0");
    }

    #[test]
    fn a_large_buffer_begins_at_a_huge_page() {
        for length in [HUGE, HUGE + 1, 3 * HUGE] {
            let mut buffer = Buffer::new(length).unwrap();
            assert_eq!(buffer.length(), length.next_multiple_of(ALIGNMENT));
            assert_eq!(buffer.start().as_ptr().align_offset(HUGE), 0);
            buffer.bytes_mut().fill(7);
            assert!(buffer.bytes().iter().all(|byte| *byte == 7));
        }
    }

    /// The kernel's flags of the mapping at that address.
    fn flags_at(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_it = false;
        for line in maps.lines() {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let bounds = range.and_then(|(start, end)| {
                Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
            });
            match (bounds, line.strip_prefix("VmFlags:")) {
                (Some((start, end)), _) => is_it = (start..end).contains(&address),
                (None, Some(flags)) if is_it => return format!("{flags} "),
                _ => {}
            }
        }
        panic!("nothing is mapped at {address:#x}: {maps}");
    }

    #[test]
    fn a_large_buffer_asks_for_huge_pages_and_is_not_inherited() {
        let has_huge_pages = std::path::Path::new("/sys/kernel/mm/transparent_hugepage/enabled").exists();
        for (length, is_large) in [(ALIGNMENT, false), (HUGE, true), (3 * HUGE, true)] {
            let buffer = Buffer::new(length).unwrap();
            let flags = flags_at(buffer.start().as_ptr().addr());
            assert_eq!(flags.contains(" hg "), is_large && has_huge_pages, "{length}: {flags}");
            assert!(flags.contains(" dc "), "{length}: {flags}");
        }
    }
}
