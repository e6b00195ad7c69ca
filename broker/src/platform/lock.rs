//! Keeps a directory for one daemon, by a lock file whose lock ends with the daemon, however it ends.

use std::{io, path::Path};

use broker_driver::FileLock;
use rustix::{
    fs::{Mode, OFlags, fstat, lstat, open},
    io::Errno,
};

/// Name of the lock file. It is never removed: otherwise two daemons could lock two files of that name.
const NAME: &str = "vramd.lock";

/// The lock of a directory. Dropping it lets another daemon take the directory.
#[derive(Debug)]
pub struct DirLock(FileLock);

impl DirLock {
    /// Takes the directory; `None` if a live daemon has it.
    pub fn take(dir: &Path) -> io::Result<Option<Self>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = open(dir.join(NAME), flags, Mode::RUSR | Mode::WUSR)?;
        Ok(FileLock::take(file)?.map(Self))
    }

    /// Whether a live daemon has the directory. Makes no file.
    pub fn is_taken(dir: &Path) -> io::Result<bool> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match open(dir.join(NAME), flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        Ok(FileLock::is_taken(file)?)
    }

    /// Whether the locked file is still the one in the directory.
    pub fn stands(&self, dir: &Path) -> bool {
        let id = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        match (fstat(&self.0), lstat(dir.join(NAME))) {
            (Ok(locked), Ok(found)) => id(locked) == id(found),
            _ => false,
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
        let first = first.unwrap();
        assert!(first.stands(dir.path()));
        std::fs::rename(dir.path().join(NAME), dir.path().join("moved")).unwrap();
        assert!(!first.stands(dir.path()));
        std::fs::rename(dir.path().join("moved"), dir.path().join(NAME)).unwrap();
        drop(first);
        assert!(DirLock::take(dir.path()).unwrap().is_some());
    }
}
