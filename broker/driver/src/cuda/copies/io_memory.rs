//! The memory of this driver that the disk reads and writes.
#![allow(unsafe_code, reason = "memory that the kernel reads and writes by address")]

use std::ptr::NonNull;

use crate::cuda::{copies::buffers::LentBuffer, host::memory::HostSpan};
use crate::disk::IoMemory;

#[derive(Debug)]
pub(crate) enum CudaIoMemory {
    Buffer(LentBuffer),
    Host(HostSpan),
}

// SAFETY: A pinned buffer is such memory itself, and a borrowed one stays in place until this value is dropped.
// A span keeps its memory mapped, at the same place, as long as it lives; the kernel or the driver has
// initialised its bytes. A digest of the memory meanwhile reads torn bytes, see `HostView::bytes`.
unsafe impl IoMemory for CudaIoMemory {
    fn start(&self) -> NonNull<u8> {
        match self {
            Self::Buffer(pinned) => IoMemory::start(&**pinned),
            Self::Host(span) => span.start(),
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Buffer(pinned) => IoMemory::length(&**pinned),
            Self::Host(span) => span.length(),
        }
    }
}
