//! The lock of a file or directory (`flock`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

/// A locked file or directory. Dropping this unlocks it; otherwise the lock ends with the process.
///
/// Closing the descriptor is not enough: a forked child holds a copy until it executes its program, and the kernel
/// keeps the lock until the last copy is closed.
#[derive(Debug)]
pub struct FileLock(OwnedFd);

impl FileLock {
    /// Locks the file for the caller alone; `None` if another descriptor holds the lock.
    pub fn take(file: OwnedFd) -> Result<Option<Self>, Errno> {
        Self::lock(file, FlockOperation::NonBlockingLockExclusive)
    }

    /// Whether another descriptor holds the lock. It takes a shared lock for a moment, at which `take` fails.
    pub fn is_taken(file: OwnedFd) -> Result<bool, Errno> {
        Ok(Self::lock(file, FlockOperation::NonBlockingLockShared)?.is_none())
    }

    fn lock(file: OwnedFd, operation: FlockOperation) -> Result<Option<Self>, Errno> {
        match flock(&file, operation) {
            Ok(()) => Ok(Some(Self(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for FileLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // If it fails, the close that follows still ends the lock.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, path::Path};

    use super::*;

    fn open(file: &Path) -> OwnedFd {
        File::open(file).unwrap().into()
    }

    /// Such a copy of a descriptor is what a forked child holds until it executes its program.
    fn copy_of(file: impl AsFd) -> OwnedFd {
        rustix::io::dup(file).unwrap()
    }

    #[test]
    fn a_lock_ends_although_a_copy_of_its_descriptor_is_open() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lock = FileLock::take(open(file.path())).unwrap().unwrap();
        let copy = copy_of(&lock);
        assert!(FileLock::is_taken(open(file.path())).unwrap());
        assert!(FileLock::take(open(file.path())).unwrap().is_none());
        drop(lock);
        assert!(!FileLock::is_taken(open(file.path())).unwrap());
        assert!(FileLock::take(open(file.path())).unwrap().is_some());
        drop(copy);
    }

    #[test]
    fn a_look_at_a_lock_leaves_none_although_a_copy_of_its_descriptor_is_open() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let looked_at = open(file.path());
        let copy = copy_of(&looked_at);
        assert!(!FileLock::is_taken(looked_at).unwrap());
        assert!(FileLock::take(open(file.path())).unwrap().is_some());
        drop(copy);
    }
}
