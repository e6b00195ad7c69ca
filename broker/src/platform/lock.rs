//! Keeps a directory for one daemon, by a lock file whose lock ends with the daemon, however it ends.

use std::{io, os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, open},
    io::Errno,
};

/// Name of the lock file. It is never removed: otherwise two daemons could lock two files of that name.
const NAME: &str = "vramd.lock";

/// The lock of a directory. Dropping it lets another daemon take the directory.
#[derive(Debug)]
pub struct DirLock(#[allow(dead_code, reason = "held for its lock")] OwnedFd);

impl DirLock {
    /// Takes the directory; `None` if a live daemon has it.
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
