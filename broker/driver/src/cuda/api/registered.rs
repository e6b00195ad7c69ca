//! Memory of this process that the driver pins. Unpinning waits for the driver.
#![allow(unsafe_code, reason = "calls of the CUDA driver, which gets addresses of memory")]

use std::{
    io,
    mem::ManuallyDrop,
    ptr::NonNull,
    sync::{Arc, atomic::Ordering},
};

use cudarc::driver::sys::CUresult;

use super::{Context, CudaError, error::Code};
use crate::disk::{Buffer, IoMemory};

/// Pages of this process.
///
/// # Safety
///
/// From `start` on, `length` bytes are mapped as long as the value lives, wherever it is moved.
pub(crate) unsafe trait Pages {
    fn start(&self) -> NonNull<u8>;

    fn length(&self) -> usize;
}

/// Pages that devices can access, from every context of the process.
///
/// They are dropped only when no device uses them.
#[derive(Debug)]
pub(crate) struct Registered<P: Pages> {
    context: Arc<Context>,
    /// Dropped once the driver has unregistered it, or never: an address that the driver still knows must not
    /// become other memory.
    pages: ManuallyDrop<P>,
}

impl<P: Pages> Registered<P> {
    pub(super) fn of(context: &Arc<Context>, pages: P) -> Result<Self, CudaError> {
        const PORTABLE: u32 = 1;
        const DEVICEMAP: u32 = 2;
        let _entered = context.enter()?;
        let api = context.api();
        let (start, length) = (pages.start().as_ptr().cast(), pages.length());
        // SAFETY: A foreign call on a range that is mapped until it is unregistered.
        let code = unsafe { (api.functions.cuMemHostRegister_v2)(start, length, PORTABLE | DEVICEMAP) };
        api.check("cuMemHostRegister_v2", code)?;
        api.registered.fetch_add(length as u64, Ordering::Relaxed);
        Ok(Self { context: Arc::clone(context), pages: ManuallyDrop::new(pages) })
    }
}

impl<P: Pages> Drop for Registered<P> {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        let api = self.context.api();
        // SAFETY: A foreign call, once for the one registration that this value stands for. No device uses the range any more.
        let code = unsafe { (api.functions.cuMemHostUnregister)(self.pages.start().as_ptr().cast()) };
        if api.check("cuMemHostUnregister", code).is_ok() {
            api.registered.fetch_sub(self.pages.length() as u64, Ordering::Relaxed);
            // SAFETY: The value is dropped only here, once, and no code can reach it any more.
            unsafe { ManuallyDrop::drop(&mut self.pages) };
        }
    }
}

/// A buffer for copies. While one is in flight it is inside a `Transfer`, which lends it to no code.
pub(crate) type Pinned = Registered<Buffer>;

impl Pinned {
    /// Uses pages of this process: those that the driver makes itself are small ones, see [`Buffer`]. The
    /// caller has checked that there is room.
    pub(crate) fn new(context: &Arc<Context>, length: usize) -> Result<Self, CudaError> {
        // There are no addresses left, or no memory for page tables: the kernel has no other errors for such a
        // mapping.
        let none = |error: io::Error| {
            CudaError::new("mmap", Code::new(CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32), error.to_string())
        };
        Self::of(context, Buffer::new(length).map_err(none)?)
    }

    /// For transfers from it.
    pub(crate) fn address(&self) -> u64 {
        IoMemory::start(self).as_ptr().expose_provenance() as u64
    }
}

// SAFETY: Its own mapping, of that length, until it is dropped.
unsafe impl Pages for Buffer {
    fn start(&self) -> NonNull<u8> {
        IoMemory::start(self)
    }

    fn length(&self) -> usize {
        IoMemory::length(self)
    }
}

// SAFETY: All bytes belong to the buffer. While the device works on it, it is inside a `Transfer`, which lends
// it to no code.
unsafe impl IoMemory for Pinned {
    fn start(&self) -> NonNull<u8> {
        IoMemory::start(&*self.pages)
    }

    fn length(&self) -> usize {
        IoMemory::length(&*self.pages)
    }
}
