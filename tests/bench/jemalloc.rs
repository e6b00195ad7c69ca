//! jemalloc, as C programs call it where they want an alignment.

#![allow(unsafe_code, reason = "jemalloc is a C library")]

use std::ptr::NonNull;

use tikv_jemalloc_sys::{MALLOCX_ALIGN, mallocx, sdallocx};

use crate::pool::Allocator;

const ALIGNMENT: usize = 256;

#[derive(Debug)]
pub(crate) struct Jemalloc;

/// Of so many bytes.
#[derive(Debug)]
pub(crate) struct Block(NonNull<u8>, usize);

impl Allocator for Jemalloc {
    type Block = Block;

    fn alloc(&self, size: usize) -> Block {
        assert!(size > 0, "jemalloc's zero is undefined");
        // SAFETY: a call of C without other conditions than that the size is not zero.
        let block = unsafe { mallocx(size, MALLOCX_ALIGN(ALIGNMENT)) };
        Block(NonNull::new(block.cast()).expect("there is memory for the trace"), size)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `mallocx` of that size and with the same flags, and is freed here alone.
        unsafe { sdallocx(self.0.as_ptr().cast(), self.1, MALLOCX_ALIGN(ALIGNMENT)) };
    }
}
