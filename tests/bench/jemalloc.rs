//! jemalloc, called as C programs call it for aligned memory.

#![allow(unsafe_code, reason = "jemalloc is a C library")]

use std::ptr::NonNull;

use tikv_jemalloc_sys::{MALLOCX_ALIGN, mallocx, sdallocx};

use crate::pool::Allocator;

const ALIGNMENT: usize = 256;

#[derive(Debug)]
pub(crate) struct Jemalloc;

/// A block of jemalloc with its size in bytes.
#[derive(Debug)]
pub(crate) struct Block(NonNull<u8>, usize);

impl Allocator for Jemalloc {
    type Block = Block;

    fn alloc(&self, size: usize) -> Block {
        assert!(size > 0, "jemalloc's zero is undefined");
        // SAFETY: a call of C whose only condition is that the size is not zero.
        let block = unsafe { mallocx(size, MALLOCX_ALIGN(ALIGNMENT)) };
        Block(NonNull::new(block.cast()).expect("there is memory for the trace"), size)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `mallocx` with that size and the same flags, and only this `drop` frees it.
        unsafe { sdallocx(self.0.as_ptr().cast(), self.1, MALLOCX_ALIGN(ALIGNMENT)) };
    }
}
