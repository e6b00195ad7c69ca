//! One daemon a directory: a lock file that lives as long as the daemon, however it ends.

use std::{io, os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, open},
    io::Errno,
};

/// Name of the lock file. It is never removed: two daemons could then lock two files of that name.
const NAME: &str = "vramd.lock";

/// The directory is this daemon's until it is dropped.
#[derive(Debug)]
pub struct DirLock(#[allow(dead_code, reason = "held for its lock")] OwnedFd);

impl DirLock {
    /// Takes the directory, or `None` if a live daemon has it.
    pub fn take(dir: &Path) -> io::Result<Option<Self>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = open(dir.join(NAME), flags, Mode::RUSR | Mode::WUSR)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = DirLock::take(dir.path()).unwrap();
        assert!(first.is_some());
        assert!(DirLock::take(dir.path()).unwrap().is_none());
        drop(first);
        assert!(DirLock::take(dir.path()).unwrap().is_some());
    }
}
