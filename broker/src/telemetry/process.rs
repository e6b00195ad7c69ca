//! Reads the daemon's own processor time, memory and descriptors from `/proc`.
//!
//! The metrics have the names that Prometheus gives them in every program.

use std::{
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::{
    param::{clock_ticks_per_second, page_size},
    process::{Resource, getrlimit},
};

/// The fields of `/proc/self/stat` behind the name, from the state on: user and system time, and the start.
const USER_TIME: usize = 11;
const SYSTEM_TIME: usize = 12;
const STARTED: usize = 19;

/// Returns whole seconds.
pub(super) fn cpu_seconds() -> Option<u64> {
    let ticks = stat(USER_TIME)?.checked_add(stat(SYSTEM_TIME)?)?;
    ticks.checked_div(clock_ticks_per_second())
}

pub(super) fn resident_bytes() -> Option<u64> {
    let pages: u64 = fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    pages.checked_mul(u64::try_from(page_size()).ok()?)
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
    let started = Duration::from_secs(stat(STARTED)?.checked_div(clock_ticks_per_second())?);
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
