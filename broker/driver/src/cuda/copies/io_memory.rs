//! What of this driver's memory the disk is told of.
#![allow(unsafe_code, reason = "memory that the kernel reads and writes by address")]

use std::ptr::NonNull;

use crate::cuda::{copies::buffers::LentBuffer, host::memory::HostSpan};
use crate::disk::IoMemory;

#[derive(Debug)]
pub(crate) enum CudaIoMemory {
    Buffer(LentBuffer),
    Host(HostSpan),
}

// SAFETY: Pinned buffers are rooms themselves, and one that is lent stays where it is until this is dropped. A span keeps its memory
// mapped, at the same place, for as long as it lives; its bytes come from the kernel or the driver, which have written them. Who has
// the memory hashed meanwhile reads what is torn, see `HostView::bytes`.
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
