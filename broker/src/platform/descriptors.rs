//! The daemon's file descriptors: raises their limit, and keeps some free for existing clients and operators.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that new client connections leave for memory, for calls of others and for operators, unless the limit
/// itself is small.
const RESERVED: u64 = 64;

/// The limit of descriptors, and the number that are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    pub limit: u64,
    pub open: u64,
}

/// Raises the soft limit to the hard limit. An extent takes one descriptor and a session two, so the usual soft limit
/// of 1024 is soon reached.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, soft_limit = limit.current, "the limit of open files could not be raised");
    }
}

impl Descriptors {
    /// Counts those of this process now.
    pub fn of_process() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // If counting fails for lack of a descriptor, all of them are open.
        Self { limit, open: open_count().unwrap_or(limit) }
    }

    /// Returns how many descriptors client connections may still use.
    pub fn free(&self) -> u64 {
        usable(self.limit).saturating_sub(self.open)
    }

    /// The maximum number of extents that leaves room for connections and the daemon's own files.
    pub fn extents_max(&self) -> usize {
        let share = self.limit - self.limit / 4;
        let room = self.limit.saturating_sub(self.open).saturating_sub(RESERVED);
        usize::try_from(share.min(room).max(1)).unwrap_or(usize::MAX)
    }

    /// The maximum number of pieces of pinned free memory, each of which takes a descriptor.
    pub fn pieces_max(&self) -> usize {
        usize::try_from(self.limit / 8).unwrap_or(usize::MAX)
    }

    /// The same with further descriptors open.
    #[must_use]
    pub fn beside(self, more: usize) -> Self {
        Self { open: self.open.saturating_add(more as u64), ..self }
    }

    /// The maximum number of descriptors in flight. The kernel allows one user as many as it may have open, and fails
    /// every send beyond that.
    pub fn in_flight_max(&self) -> usize {
        usize::try_from((self.limit / 2).max(1)).unwrap_or(usize::MAX)
    }
}

/// Counts the open descriptors. Since Linux 6.2 the directory's size is their number, which takes no descriptor to
/// read.
fn open_count() -> Option<u64> {
    match fs::metadata("/proc/self/fd").ok()?.len() {
        // The descriptor of the directory itself is counted too.
        0 => Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as u64),
        count => Some(count),
    }
}

const fn usable(limit: u64) -> u64 {
    let eighth = limit / 8;
    limit - if eighth < RESERVED { eighth } else { RESERVED }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_are_kept_whatever_the_limit() {
        assert_eq!(usable(1_048_576), 1_048_576 - 64);
        assert_eq!(usable(1024), 960);
        assert_eq!(usable(40), 35);
        assert_eq!(usable(0), 0);
    }

    #[test]
    fn extents_leave_room_for_all_else() {
        let extents_max = |limit, open| Descriptors { limit, open }.extents_max();
        assert_eq!(extents_max(1_048_576, 30), 786_432);
        assert_eq!(extents_max(256, 30), 162);
        assert_eq!(extents_max(64, 30), 1);
        let with_host = Descriptors { limit: 256, open: 30 };
        assert_eq!((with_host.pieces_max(), with_host.beside(32).extents_max()), (32, 130));
        assert_eq!(Descriptors { limit: 1024, open: 30 }.in_flight_max(), 512);
    }

    #[test]
    fn descriptors_are_counted_not_numbered() {
        let before = open_count().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let many: Vec<_> =
            (0..100).map(|number| rustix::io::fcntl_dupfd_cloexec(&file, 500 + number).unwrap()).collect();
        let counted = open_count().unwrap() - before;
        // Other tests of this process open and close descriptors.
        assert!((60..=600).contains(&counted), "{counted}");
        drop(many);
        let free = |open| Descriptors { limit: 1024, open }.free();
        assert_eq!((free(950), free(960), free(961)), (10, 0, 0));
    }
}
