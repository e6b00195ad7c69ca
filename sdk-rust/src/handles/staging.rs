//! Host memory to read into before a copy to a GPU.

#![allow(unsafe_code, reason = "page-locked memory is the driver's and no `Vec`'s")]

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ops::{Deref, DerefMut},
    process,
    ptr::NonNull,
    slice,
    sync::Arc,
};

use crate::cuda::Context;

/// The driver locks whole pages.
const PAGE: usize = 4096;

/// Host memory from which [`copy_from_host`](crate::Allocation::copy_from_host) runs at the speed of the link: it is
/// page-locked for the device of an allocation. Made by [`staging_buffer`](crate::Allocation::staging_buffer).
#[derive(Debug)]
pub struct StagingBuffer {
    start: NonNull<u8>,
    layout: Layout,
    /// Where the memory is page-locked, and by which process.
    locked: Option<(Arc<Context>, u32)>,
}

// SAFETY: needed for the pointer. The memory belongs to this value alone, and the driver's calls are made from any
// thread.
unsafe impl Send for StagingBuffer {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for StagingBuffer {}

impl StagingBuffer {
    /// Zeroed memory. It stays ordinary memory if there is no context, or if the driver cannot lock it: copies from there
    /// are right too, and slower.
    pub(crate) fn new(len: usize, context: Option<Arc<Context>>) -> Option<Self> {
        let layout = Layout::from_size_align(len.max(1), PAGE).ok()?;
        // SAFETY: needed for memory of that alignment. The layout has at least one byte.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        let locked = context.filter(|context| context.register_host(start, layout.size()).is_ok());
        Some(Self { start, layout, locked: locked.map(|context| (context, process::id())) })
    }

    pub fn is_page_locked(&self) -> bool {
        self.locked.is_some()
    }
}

impl Deref for StagingBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: needed to lend it. It has that many initialised bytes, which only this value lends.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for StagingBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the value is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for StagingBuffer {
    fn drop(&mut self) {
        if let Some((context, pid)) = &self.locked {
            // The driver of the parent process serves no child.
            if *pid != process::id() {
                return;
            }
            // Memory that the driver still has locked must stay.
            if context.unregister_host(self.start).is_err() {
                return;
            }
        }
        // SAFETY: needed to free it. It was allocated with this layout, and nothing borrows it.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_without_a_device_is_zeroed_memory() {
        let mut buffer = StagingBuffer::new(10_000, None).unwrap();
        assert!(!buffer.is_page_locked() && buffer.len() == 10_000 && buffer.iter().all(|byte| *byte == 0));
        buffer.fill(7);
        assert_eq!(buffer.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 70_000);
    }

    #[test]
    fn absurd_size_is_refused() {
        assert!(StagingBuffer::new(usize::MAX, None).is_none());
    }
}
