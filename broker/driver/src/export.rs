//! The export of an extent, which other processes need to map it, and whether another process may have it.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering, fence},
    },
};

/// An export, by kind. Clones share the descriptor; the last one closes it.
#[derive(Clone, Debug)]
pub enum Export {
    /// A memfd: map it with `mmap`, shared; its length is the extent's size.
    Memfd(Arc<SharedFd>),
    /// A VMM descriptor: import it with `cuMemImportFromShareableHandle`.
    VmmFd(Arc<SharedFd>),
    /// A legacy CUDA IPC handle: open it with `cuIpcOpenMemHandle`.
    CudaIpc([u8; 64]),
}

impl Export {
    /// The descriptor to send, for the kinds that have one.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Memfd(fd) | Self::VmmFd(fd) => Some(fd.as_fd()),
            Self::CudaIpc(_) => None,
        }
    }
}

/// A descriptor that remembers whether a caller has borrowed it. From then on another process may have it, and
/// the memory with it.
#[derive(Debug)]
pub struct SharedFd {
    fd: OwnedFd,
    lent: AtomicBool,
}

impl SharedFd {
    /// Whether this is the only clone and no caller has ever borrowed the descriptor, so that no other process
    /// has it.
    pub(crate) fn is_sole(self: &Arc<Self>) -> bool {
        let is_last = Arc::strong_count(self) == 1;
        // Pairs with the release in the drop of the other clones: their borrows are visible.
        fence(Ordering::Acquire);
        is_last && !self.lent.load(Ordering::Relaxed)
    }

    /// The descriptor for the driver's own calls, which send it to no process.
    pub(crate) fn own(&self) -> &OwnedFd {
        &self.fd
    }
}

impl From<OwnedFd> for SharedFd {
    fn from(fd: OwnedFd) -> Self {
        Self { fd, lent: AtomicBool::new(false) }
    }
}

impl AsFd for SharedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lent.store(true, Ordering::Relaxed);
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_lent_descriptor_counts_as_shared_forever() {
        let shared = Arc::new(SharedFd::from(OwnedFd::from(File::open("/dev/null").unwrap())));
        let handle = Export::Memfd(Arc::clone(&shared));
        assert!(!shared.is_sole(), "another clone can still lend it");
        drop(handle.clone());
        drop(handle);
        assert!(shared.is_sole());
        let handle = Export::Memfd(Arc::clone(&shared));
        assert!(handle.fd().is_some());
        drop(handle);
        assert!(!shared.is_sole());
    }
}
