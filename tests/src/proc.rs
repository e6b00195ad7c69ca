//! What the kernel says of processes, as an independent witness.

use std::{fs, path::Path};

/// How many file descriptors a process has open.
pub fn fd_count(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// How many of its file descriptors are simulated device memory.
pub fn memory_fd_count(pid: u32) -> usize {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    entries
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter(|link| is_memory(link))
        .count()
}

/// How many mappings of simulated device memory it has.
pub fn memory_mapping_count(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines().filter(|line| line.contains("/memfd:vramd-sim:")).count()
}

/// Whether the process is there and not a zombie.
pub fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

/// Whether the process is stopped by a signal.
pub fn is_stopped(pid: u32) -> bool {
    state(pid) == Some('T')
}

fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn is_memory(link: &Path) -> bool {
    link.to_string_lossy().starts_with("/memfd:vramd-sim:")
}
