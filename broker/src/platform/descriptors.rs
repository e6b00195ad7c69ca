//! File descriptors of the daemon: as many as it may have, and some kept for those who are served already.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many new connections of clients leave to memory, to the calls of others and to operators, where the limit is
/// not small itself.
const RESERVED: u64 = 64;

/// How many descriptors there may be, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    pub limit: u64,
    pub open: u64,
}

/// An extent is a descriptor and a session two: the soft limit of most systems, 1024, is soon met.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, soft_limit = limit.current, "the limit of open files could not be raised");
    }
}

impl Descriptors {
    /// Those of this process, now.
    pub fn of_process() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // What cannot be counted for want of a descriptor is as many as there may be.
        Self { limit, open: open_count().unwrap_or(limit) }
    }

    /// How many descriptors connections of clients may use, if they do use more.
    pub fn exceeded(&self) -> Option<usize> {
        let usable = usable(self.limit);
        (self.open > usable).then(|| usize::try_from(usable).unwrap_or(usize::MAX))
    }

    /// How many extents there can be so that connections, and the daemon's own files, find room beside them.
    pub fn extents_max(&self) -> usize {
        let share = self.limit - self.limit / 4;
        let room = self.limit.saturating_sub(self.open).saturating_sub(RESERVED);
        usize::try_from(share.min(room).max(1)).unwrap_or(usize::MAX)
    }

    /// How many pieces of the host's memory may be kept that no extent has, a descriptor each.
    pub fn pieces_max(&self) -> usize {
        usize::try_from(self.limit / 8).unwrap_or(usize::MAX)
    }

    /// As if so many more were open.
    #[must_use]
    pub fn beside(self, more: usize) -> Self {
        Self { open: self.open.saturating_add(more as u64), ..self }
    }

    /// How many descriptors can be in flight: the kernel takes as many of one user as it may have open, and fails
    /// every send after that.
    pub fn in_flight_max(&self) -> usize {
        usize::try_from((self.limit / 2).max(1)).unwrap_or(usize::MAX)
    }
}

/// Counts without a descriptor of its own where the kernel can, since Linux 6.2: there it is the directory's size.
fn open_count() -> Option<u64> {
    match fs::metadata("/proc/self/fd").ok()?.len() {
        // The descriptor that the directory is read by is one of those counted.
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
        // Other tests of this process open and close theirs.
        assert!((60..=600).contains(&counted), "{counted}");
        drop(many);
        assert_eq!(Descriptors { limit: 1024, open: 960 }.exceeded(), None);
        assert_eq!(Descriptors { limit: 1024, open: 961 }.exceeded(), Some(960));
    }
}
