//! What another process needs to map an extent.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering, fence},
    },
};

/// A way to map an extent, by kind. Clones share the descriptor; the last one closes it.
#[derive(Clone, Debug)]
pub enum Export {
    /// Map with `mmap`, shared; its length is the extent's size.
    Memfd(Arc<SharedFd>),
    /// Import with `cuMemImportFromShareableHandle`.
    VmmFd(Arc<SharedFd>),
    /// Open with `cuIpcOpenMemHandle`.
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

/// A descriptor, and whether anybody has asked for it: then another process may have it, and the memory with it.
#[derive(Debug)]
pub struct SharedFd {
    fd: OwnedFd,
    lent: AtomicBool,
}

impl SharedFd {
    /// Nobody has it but who has this, and nobody will.
    pub(crate) fn is_sole(self: &Arc<Self>) -> bool {
        let is_last = Arc::strong_count(self) == 1;
        // What the others did before they dropped theirs is seen.
        fence(Ordering::Acquire);
        is_last && !self.lent.load(Ordering::Relaxed)
    }

    /// For the driver's own use, which gives it to nobody.
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
        assert!(!shared.is_sole(), "somebody can still ask");
        drop(handle.clone());
        drop(handle);
        assert!(shared.is_sole());
        let handle = Export::Memfd(Arc::clone(&shared));
        assert!(handle.fd().is_some());
        drop(handle);
        assert!(!shared.is_sole());
    }
}
