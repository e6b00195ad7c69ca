//! How much host memory the machine and the process's cgroup have left.
//!
//! The kernel kills processes that exceed a limit, perhaps this one. So the driver checks before it asks for
//! memory.

use std::{
    fs,
    sync::{Mutex, MutexGuard, PoisonError},
};

use vramd_types::{Bytes, GRANULARITY};

use crate::{HostLimit, cgroup, left_to_other_programs};

/// Held by a request for memory that is charged to the cgroup, until the memory is there.
#[derive(Debug)]
pub(crate) struct RequestLock {
    _held: MutexGuard<'static, ()>,
}

/// Serialises requests: two at once would both find the same room.
pub(crate) fn lock_requests() -> RequestLock {
    static REQUESTS: Mutex<()> = Mutex::new(());
    RequestLock { _held: REQUESTS.lock().unwrap_or_else(PoisonError::into_inner) }
}

/// The limit that leaves less than that. `in_cgroup`: the memory is charged to the process's cgroup.
pub(crate) fn limit_below(size: Bytes, in_cgroup: bool) -> Option<HostLimit> {
    if let Some(left) = kernel_available().filter(|left| size > *left) {
        return Some(HostLimit::Free(left));
    }
    cgroup::memory_left().filter(|left| in_cgroup && size > *left).map(HostLimit::Cgroup)
}

/// The same for the driver's own buffers, which may use the reserve for other programs.
pub(crate) fn limit_below_for_daemon(size: Bytes) -> Option<HostLimit> {
    cgroup::memory_left().filter(|left| size > *left).map(HostLimit::Cgroup)
}

/// How much could be had now, as far as it is known.
pub(crate) fn available(in_cgroup: bool) -> Option<Bytes> {
    let cgroup = if in_cgroup { cgroup::memory_left() } else { None };
    [kernel_available(), cgroup].into_iter().flatten().min()
}

/// One device's share of the host memory that cannot be had. `its` is the demand on the device's node, `all`
/// the demand on all nodes, and `near` the number of devices near the node.
pub(crate) fn missing_share(its: Bytes, all: Bytes, near: usize, left: Option<Bytes>) -> Bytes {
    let Some(short) = left.map(|left| all.saturating_sub(left)).filter(|short| !short.is_zero()) else {
        return Bytes::ZERO;
    };
    let parts = u128::from(all.get()).max(1) * u128::try_from(near).unwrap_or(1).max(1);
    let share = (u128::from(short.get()) * u128::from(its.get())).div_ceil(parts);
    let share = Bytes::new(u64::try_from(share).unwrap_or(u64::MAX));
    share.checked_round_up(GRANULARITY).unwrap_or(share)
}

/// The memory that the kernel could give without swapping and without the reserve for other programs. Asking for more may
/// kill other processes instead.
fn kernel_available() -> Option<Bytes> {
    kernel_available_in(&fs::read_to_string("/proc/meminfo").ok()?)
}

/// Without the reserve for other programs, if the size of the machine is known.
fn kernel_available_in(meminfo: &str) -> Option<Bytes> {
    let left_to_other_programs = field(meminfo, "MemTotal:").map_or(Bytes::ZERO, left_to_other_programs);
    Some(field(meminfo, "MemAvailable:")?.saturating_sub(left_to_other_programs))
}

fn field(meminfo: &str, name: &str) -> Option<Bytes> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes::new(kib.saturating_mul(1024)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_from_meminfo() {
        let text = "MemTotal:       24684084 kB\nMemAvailable:    4194304 kB\n";
        let left = Bytes::gib(4).saturating_sub(left_to_other_programs(Bytes::new(24_684_084 << 10)));
        assert_eq!((kernel_available_in(text), left > Bytes::gib(1)), (Some(left), true));
        assert_eq!(
            kernel_available_in("MemTotal: 8388608 kB\nMemAvailable: 2097151 kB\n"),
            Some(Bytes::ZERO)
        );
        assert_eq!(kernel_available_in("MemAvailable: 2048 kB\n"), Some(Bytes::mib(2)));
        assert_eq!(kernel_available_in("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn missing_memory_is_split_between_nodes_and_devices() {
        let mib = Bytes::mib;
        let missing_share = |its, all, near, left| missing_share(mib(its), mib(all), near, Some(mib(left)));
        assert_eq!(missing_share(40, 40, 1, 40), Bytes::ZERO);
        assert_eq!(missing_share(40, 40, 1, 30), mib(10));
        assert_eq!(missing_share(40, 40, 2, 30), mib(6), "in whole granules");
        assert_eq!(missing_share(40, 80, 1, 60), mib(10), "the other node lacks as much");
        assert_eq!(super::missing_share(mib(40), mib(40), 1, None), Bytes::ZERO, "the amount is unknown");
    }
}
