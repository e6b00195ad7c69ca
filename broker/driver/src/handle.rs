//! What another process needs to map an extent.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

/// A way to map an extent, by kind. Clones share the descriptor; the last one closes it.
#[derive(Clone, Debug)]
pub enum Handle {
    /// Map with `mmap`, shared; its length is the extent's size.
    Memfd(Arc<OwnedFd>),
    /// Import with `cuMemImportFromShareableHandle`.
    VmmFd(Arc<OwnedFd>),
    /// Open with `cuIpcOpenMemHandle`.
    CudaIpc([u8; 64]),
}

impl Handle {
    /// The descriptor to send, for the kinds that have one.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Memfd(fd) | Self::VmmFd(fd) => Some(fd.as_fd()),
            Self::CudaIpc(_) => None,
        }
    }
}
