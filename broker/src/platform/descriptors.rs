//! File descriptors of the daemon: as many as it may have, and some kept for those who are served already.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many new connections leave to memory and to the calls of others, where the limit is not small itself.
const KEPT: u64 = 64;

/// An extent is a descriptor and a session two: the soft limit of most systems, 1024, is soon met.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, soft_limit = limit.current, "the limit of open files could not be raised");
    }
}

/// How many descriptors new connections may use, if this new one is beyond them. The kernel gives out the lowest
/// number that is free, so a number says how many are in use.
pub fn exceeded_by(newest: BorrowedFd<'_>) -> Option<usize> {
    let limit = getrlimit(Resource::Nofile).current?;
    let usable = usable(limit);
    let number = u64::try_from(newest.as_raw_fd()).unwrap_or(u64::MAX);
    (number >= usable).then(|| usize::try_from(usable).unwrap_or(usize::MAX))
}

const fn usable(limit: u64) -> u64 {
    let eighth = limit / 8;
    limit - if eighth < KEPT { eighth } else { KEPT }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn some_are_kept_whatever_the_limit() {
        assert_eq!(usable(1_048_576), 1_048_576 - 64);
        assert_eq!(usable(1024), 960);
        assert_eq!(usable(40), 35);
        assert_eq!(usable(0), 0);
    }

    #[test]
    fn a_low_number_is_within() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(exceeded_by(file.as_fd()), None);
        let limit = getrlimit(Resource::Nofile).current.unwrap();
        let number = i32::try_from(usable(limit)).unwrap();
        let high = rustix::io::fcntl_dupfd_cloexec(&file, number).unwrap();
        assert_eq!(exceeded_by(high.as_fd()), Some(usize::try_from(usable(limit)).unwrap()));
    }
}
