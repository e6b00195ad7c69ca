//! Memory that a disk is read into and written from past the page cache: aligned, and in pages as large as the kernel has them.

#![allow(unsafe_code, reason = "advice on memory is given by address")]

use rustix::mm::{Advice, madvise};

/// Of a large page, and so of a block of any disk.
const ALIGNMENT: usize = 2 << 20;

/// Dropping it frees it.
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
        // SAFETY: The range is inside the vector's own memory, and the advice changes no byte of it. Without it pages are
        // smaller, and that is all.
        let _ = unsafe { madvise(first.cast(), length, Advice::LinuxHugepage) };
        let mut room = Self { bytes, start, length };
        // Every page is there before anything is timed.
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
