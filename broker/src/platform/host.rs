//! Reads how much memory the machine has, and how much of it this process may lock and use.

use std::fs;

use broker_driver::cgroup;
use rustix::process::{Resource, getrlimit};
use vramd_types::Bytes;

/// The bit of `CAP_IPC_LOCK`: a process with it may lock any amount.
const IPC_LOCK: u64 = 1 << 14;

/// The host's memory. `None` means that there is no bound, or that it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host {
    pub total: Option<Bytes>,
    pub lockable: Option<Bytes>,
    /// The memory that the process's cgroup and those above it may use.
    pub in_cgroup: Option<Bytes>,
    /// Maximum bytes of the driver's buffers within that.
    pub buffers: Bytes,
}

/// How host memory counts that the daemon uses. Memory that the GPU driver takes itself counts for no process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostUse {
    /// It counts as locked by this process.
    pub locked: bool,
    /// It counts as used by this process's cgroup.
    pub in_cgroup: bool,
    /// Maximum bytes of the driver's buffers beside it.
    pub buffers: Bytes,
}

impl Host {
    pub fn of_process(by: HostUse) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let privileged = may_lock_all(&read("/proc/self/status"));
        let limit = || getrlimit(Resource::Memlock).current.map(Bytes::new);
        Self {
            total: total_in(&read("/proc/meminfo")),
            lockable: (by.locked && !privileged).then(limit).flatten(),
            in_cgroup: by.in_cgroup.then(cgroup::memory_limit).flatten(),
            buffers: by.buffers,
        }
    }
}

fn total_in(meminfo: &str) -> Option<Bytes> {
    let kib: u64 = field(meminfo, "MemTotal:")?.strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes::new(kib.saturating_mul(1024)))
}

fn may_lock_all(status: &str) -> bool {
    let effective = field(status, "CapEff:").and_then(|bits| u64::from_str_radix(bits, 16).ok());
    effective.is_some_and(|bits| bits & IPC_LOCK != 0)
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_and_status_are_parsed() {
        let meminfo = "MemTotal:       24684084 kB\nMemFree:            2048 kB\n";
        assert_eq!(total_in(meminfo), Some(Bytes::new(24_684_084 << 10)));
        assert_eq!(total_in("MemFree: 1 kB\n"), None);
        assert!(may_lock_all("Name:\tvramd\nCapEff:\t000001ffffffffff\n"));
        assert!(!may_lock_all("CapEff:\t0000000000000000\n"));
        assert!(!may_lock_all(""));
    }

    #[test]
    fn this_machine_has_memory() {
        let host = Host::of_process(HostUse::default());
        assert!(host.total.is_some_and(|total| total > Bytes::mib(64)), "{host:?}");
        assert_eq!(
            (host.lockable, host.in_cgroup),
            (None, None),
            "it counts for no process, so nothing bounds it"
        );
    }
}
