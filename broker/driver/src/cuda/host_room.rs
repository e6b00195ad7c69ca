//! What the machine, and the cgroup of this process, have left of the host's memory.
//!
//! A limit that is exceeded ends processes, this one perhaps. So it is looked at before memory is asked for.

use std::{fs, path::Path};

use vramd_types::{Bytes, GRANULARITY};

use crate::{HostLimit, left_to_others};

const CGROUPS: &str = "/sys/fs/cgroup";

/// The limit that leaves less than that. Memory is charged to the process's cgroup or is not.
pub(super) fn in_the_way(size: Bytes, in_cgroup: bool) -> Option<HostLimit> {
    if let Some(left) = available().filter(|left| size > *left) {
        return Some(HostLimit::Free(left));
    }
    left_by_cgroup().filter(|left| in_cgroup && size > *left).map(HostLimit::Cgroup)
}

/// What could be had now, as far as anybody says.
pub(super) fn left(in_cgroup: bool) -> Option<Bytes> {
    let cgroup = if in_cgroup { left_by_cgroup() } else { None };
    [available(), cgroup].into_iter().flatten().min()
}

/// Of what is to be had on one node, of so much on all of them, the share of one device that could not be had: several are near.
pub(super) fn lacking(its: Bytes, all: Bytes, near: usize, left: Option<Bytes>) -> Bytes {
    let Some(short) = left.map(|left| all.saturating_sub(left)).filter(|short| !short.is_zero()) else {
        return Bytes::ZERO;
    };
    let parts = u128::from(all.get()).max(1) * u128::try_from(near).unwrap_or(1).max(1);
    let share = (u128::from(short.get()) * u128::from(its.get())).div_ceil(parts);
    let share = Bytes::new(u64::try_from(share).unwrap_or(u64::MAX));
    share.checked_round_up(GRANULARITY).unwrap_or(share)
}

/// What the kernel could give without swapping, and without what is others'. Asking the driver for more may end other processes instead.
fn available() -> Option<Bytes> {
    available_in(&fs::read_to_string("/proc/meminfo").ok()?)
}

/// Without what is left to others. A machine whose size is not told keeps what is free.
fn available_in(meminfo: &str) -> Option<Bytes> {
    let left_to_others = field(meminfo, "MemTotal:").map_or(Bytes::ZERO, left_to_others);
    Some(field(meminfo, "MemAvailable:")?.saturating_sub(left_to_others))
}

/// What the limits of this process's cgroup, and of those that it is in, leave. None where there is no limit.
fn left_by_cgroup() -> Option<Bytes> {
    let table = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = table.lines().find_map(|line| line.strip_prefix("0::"))?;
    left_in(Path::new(CGROUPS), path)
}

fn field(meminfo: &str, name: &str) -> Option<Bytes> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes::new(kib.saturating_mul(1024)))
}

/// Of a cgroup by its path below the root, which itself has a limit where a container has one of its own.
fn left_in(root: &Path, path: &str) -> Option<Bytes> {
    let own = root.join(path.trim_start_matches('/'));
    own.ancestors().take_while(|folder| folder.starts_with(root)).filter_map(left_of).min()
}

fn left_of(folder: &Path) -> Option<Bytes> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    // Without a limit it says `max`.
    let limit = number("memory.max")?;
    let stat = read("memory.stat").unwrap_or_default();
    // Pages of files that nobody has looked at lately go when others are wanted.
    let cold = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse().ok());
    let current = number("memory.current")?.saturating_sub(cold.unwrap_or(0));
    Some(Bytes::new(limit.saturating_sub(current)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_available_is_read() {
        let text = "MemTotal:       24684084 kB\nMemAvailable:    4194304 kB\n";
        let left = Bytes::gib(4).saturating_sub(left_to_others(Bytes::new(24_684_084 << 10)));
        assert_eq!((available_in(text), left > Bytes::gib(1)), (Some(left), true));
        assert_eq!(available_in("MemTotal: 8388608 kB\nMemAvailable: 2097151 kB\n"), Some(Bytes::ZERO));
        assert_eq!(available_in("MemAvailable: 2048 kB\n"), Some(Bytes::mib(2)));
        assert_eq!(available_in("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn what_cannot_be_had_is_shared_by_who_is_to_have_it() {
        let mib = Bytes::mib;
        let lacking = |its, all, near, left| lacking(mib(its), mib(all), near, Some(mib(left)));
        assert_eq!(lacking(40, 40, 1, 40), Bytes::ZERO);
        assert_eq!(lacking(40, 40, 1, 30), mib(10));
        assert_eq!(lacking(40, 40, 2, 30), mib(6), "in whole granules");
        assert_eq!(lacking(40, 80, 1, 60), mib(10), "the other node lacks as much");
        assert_eq!(super::lacking(mib(40), mib(40), 1, None), Bytes::ZERO, "nobody says");
    }

    #[test]
    fn the_tightest_cgroup_on_the_way_up_counts() {
        let root = tempfile::tempdir().unwrap();
        let group = |path: &str, max: &str, current: &str| {
            let folder = root.path().join(path);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("memory.max"), format!("{max}\n")).unwrap();
            fs::write(folder.join("memory.current"), format!("{current}\n")).unwrap();
        };
        let left = |path| left_in(root.path(), path).map(Bytes::get);
        group("pods/one/box", "max", "100");
        assert_eq!(left("/pods/one/box"), None);
        group("pods/one", "5000", "1000");
        group("pods", "9000", "8000");
        assert_eq!(left("/pods/one/box"), Some(1000));
        fs::write(root.path().join("pods/memory.stat"), "anon 5\ninactive_file 3500\nactive_file 9\n")
            .unwrap();
        assert_eq!(left("/pods/one/box"), Some(4000));
        group("pods/one", "5000", "6000");
        assert_eq!(left("/pods/one/box"), Some(0));
        group("", "300", "100");
        assert_eq!(
            (left("/"), left("/nowhere")),
            (Some(200), Some(200)),
            "the root of a container has a limit"
        );
    }
}
