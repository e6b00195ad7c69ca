//! Reads the daemon's own processor time, memory and descriptors from `/proc`.
//!
//! The metrics have the names that Prometheus gives them in every program.

use std::{
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::process::{Resource, getrlimit};

use crate::platform::process::status_field;

/// The fields of `/proc/self/stat` behind the name, from the state on: user and system time, and the start.
const USER_TIME: usize = 11;
const SYSTEM_TIME: usize = 12;
const STARTED: usize = 19;
/// The kernel's `USER_HZ`, the unit of these times: the same on every architecture that the daemon runs on. To ask for
/// it, rustix reads the kernel's vDSO, which valgrind hides, and the daemon would crash under valgrind.
const TICKS_PER_SECOND: u64 = 100;

/// Returns whole seconds.
pub(super) fn cpu_seconds() -> Option<u64> {
    let ticks = stat(USER_TIME)?.checked_add(stat(SYSTEM_TIME)?)?;
    ticks.checked_div(TICKS_PER_SECOND)
}

pub(super) fn resident_bytes() -> Option<u64> {
    let resident = status_field("self", "VmRSS").ok()?;
    resident.strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

pub(super) fn open_fds() -> Option<u64> {
    // The listing has a descriptor of its own.
    u64::try_from(fs::read_dir("/proc/self/fd").ok()?.count()).ok()?.checked_sub(1)
}

pub(super) fn max_fds() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Returns seconds since 1970.
pub(super) fn start_time() -> Option<u64> {
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime = Duration::from_secs_f64(uptime.split(' ').next()?.parse().ok()?);
    let started = Duration::from_secs(stat(STARTED)?.checked_div(TICKS_PER_SECOND)?);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(now.checked_sub(uptime.checked_sub(started)?)?.as_secs())
}

fn stat(field: usize) -> Option<u64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name may have blanks and brackets.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(field)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_of_this_process() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let started = start_time().unwrap();
        assert!((now - 86_400..=now + 1).contains(&started), "{started} of {now}");
        assert!(cpu_seconds().unwrap() < 86_400);
        assert!(resident_bytes().unwrap() > 1 << 20);
        assert!(open_fds().unwrap() < max_fds().unwrap());
    }
}
