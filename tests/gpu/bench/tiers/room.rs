//! Memory for direct IO: aligned, and in the largest pages that the kernel has.

#![allow(unsafe_code, reason = "advice on memory is given by address")]

use rustix::mm::{Advice, madvise};

/// The alignment of a large page, and so of a block of any disk.
const ALIGNMENT: usize = 2 << 20;

/// A block of memory. Dropping it frees it.
#[derive(Debug)]
pub(super) struct AlignedRoom {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedRoom {
    pub(super) fn new(length: usize) -> Self {
        let mut bytes = vec![0; length + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        let first = bytes[start..].as_mut_ptr();
        // SAFETY: The range is inside the vector's own memory, and the advice changes no byte of it. If it fails, pages are only
        // smaller.
        let _ = unsafe { madvise(first.cast(), length, Advice::LinuxHugepage) };
        let mut room = Self { bytes, start, length };
        // Touches every page before the timing begins.
        room.bytes_mut().fill(0x5a);
        room
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..][..self.length]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.length]
    }
}
