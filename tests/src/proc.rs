//! The kernel's view of processes, as an independent witness. A process that has ended is not one with nothing: these
//! functions panic on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

/// How many file descriptors a process has open.
#[track_caller]
pub fn fd_count(pid: u32) -> usize {
    fds(pid).count()
}

/// The same by kind: `socket`, `anon_inode:[pidfd]`, a path, ….
#[track_caller]
pub fn fds_by_kind(pid: u32) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    // A descriptor that was closed meanwhile does not count.
    for link in fds(pid).filter_map(|path| fs::read_link(path).ok()) {
        let link = link.to_string_lossy();
        let kind =
            link.split_once(":[").filter(|(kind, _)| *kind != "anon_inode").map_or(&*link, |(kind, _)| kind);
        *kinds.entry(kind.to_owned()).or_default() += 1;
    }
    kinds
}

/// Whether one of its threads is in this system call.
#[track_caller]
pub fn is_in_call(pid: u32, number: libc::c_long) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap_or_else(|why| panic!("process {pid} can't be looked at: {why}"));
    // The number is the first word of the file. A thread may end meanwhile.
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("syscall")).ok())
        .any(|call| call.split(' ').next().is_some_and(|first| first.parse() == Ok(number)))
}

/// How many of its file descriptors are simulated device memory.
#[track_caller]
pub fn memory_fd_count(pid: u32) -> usize {
    fds(pid).filter_map(|path| fs::read_link(path).ok()).filter(|link| is_memory(link)).count()
}

/// How many mappings of simulated device memory it has.
#[track_caller]
pub fn memory_mapping_count(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))
        .unwrap_or_else(|why| panic!("process {pid} can't be looked at: {why}"));
    maps.lines().filter(|line| line.contains("/memfd:vramd-sim:")).count()
}

/// The memory of a simulated device that any process of this node has open or maps: names, each with its inode. Without
/// the host memory beside it, which its daemon keeps.
pub fn memory_of(uuid: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    each_memory(uuid, |_, name, inode| {
        if !is_of_host(name) {
            seen.insert(format!("{} {inode}", name.trim_end_matches(" (deleted)")));
        }
    });
    seen
}

/// Host memory with this device's name: names, each with its inode, and the processes that have it.
pub fn host_memory_of(uuid: &str) -> BTreeMap<String, BTreeSet<u32>> {
    let mut seen: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    each_memory(uuid, |pid, name, inode| {
        if is_of_host(name) {
            seen.entry(format!("{} {inode}", name.trim_end_matches(" (deleted)"))).or_default().insert(pid);
        }
    });
    seen
}

/// Calls `note` with each process, name and inode of memory with this device's name, open or mapped.
fn each_memory(uuid: &str, mut note: impl FnMut(u32, &str, &str)) {
    let wanted = format!("/memfd:vramd-sim:{uuid}:");
    for process in fs::read_dir("/proc").expect("/proc can be listed").flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // Processes may end during the listing.
        let mut note = |name: &str, inode: &str| {
            if name.starts_with(&wanted) {
                note(pid, name, inode);
            }
        };
        for entry in fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            if let (Ok(link), Ok(file)) = (fs::read_link(entry.path()), fs::metadata(entry.path())) {
                note(&link.to_string_lossy(), &file.ino().to_string());
            }
        }
        for line in fs::read_to_string(process.path().join("maps")).unwrap_or_default().lines() {
            if let Some(at) = line.find("/memfd:") {
                note(&line[at..], line[..at].split_ascii_whitespace().last().unwrap_or_default());
            }
        }
    }
}

/// Resident memory of a process without a file or memfd behind it, in bytes.
#[track_caller]
pub fn anonymous_bytes(pid: u32) -> u64 {
    status_bytes(pid, "RssAnon:")
}

/// All resident memory of a process, in bytes.
#[track_caller]
pub fn resident_bytes(pid: u32) -> u64 {
    status_bytes(pid, "VmRSS:")
}

/// CPU time of all its threads, in the kernel and outside, as exact as the kernel's clock ticks.
#[track_caller]
pub fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
        .unwrap_or_else(|why| panic!("process {pid} can't be looked at: {why}"));
    let fields = stat.rsplit_once(") ").expect("a name in parentheses").1;
    let ticks = |field: usize| fields.split(' ').nth(field).and_then(|text| text.parse::<u32>().ok());
    let ticks = ticks(11).zip(ticks(12)).map(|(user, system)| user + system).expect("two times");
    let each = rustix::param::clock_ticks_per_second();
    Duration::from_secs(1) * ticks / u32::try_from(each).expect("100, usually")
}

#[track_caller]
fn status_bytes(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .unwrap_or_else(|why| panic!("process {pid} can't be looked at: {why}"));
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("Linux 4.5 or later");
    let kibibytes = line.trim().strip_suffix(" kB").and_then(|number| number.parse::<u64>().ok());
    kibibytes.expect("a number of kB") << 10
}

/// Whether the process exists and is no zombie.
pub fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

/// Whether a signal has stopped the process.
pub fn is_stopped(pid: u32) -> bool {
    state(pid) == Some('T')
}

fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[track_caller]
fn fds(pid: u32) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap_or_else(|why| panic!("process {pid} can't be looked at: {why}"));
    entries.map(|entry| entry.expect("its descriptors can be listed").path())
}

fn is_memory(link: &Path) -> bool {
    let link = link.to_string_lossy();
    link.starts_with("/memfd:vramd-sim:") && !is_of_host(&link)
}

fn is_of_host(name: &str) -> bool {
    name.contains(":host-")
}
