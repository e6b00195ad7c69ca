//! The kernel's view of processes, as an independent witness. A process that has ended is not one with nothing: these
//! functions panic on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::until;

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

/// Stops the process with SIGSTOP, and waits until each of its threads has stopped.
#[track_caller]
pub fn stop(pid: u32) {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("the id of a process");
    kill_process(process, Signal::STOP).expect("the process can be signalled");
    until("all threads have stopped", || is_stopped(pid));
}

/// Whether a signal has stopped every thread of the process. Until then one may answer a call.
pub fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    // A thread may end meanwhile.
    threads.into_iter().all(|thread| thread.is_ok_and(|thread| state_in(&thread.path()) == Some('T')))
}

fn state(pid: u32) -> Option<char> {
    state_in(Path::new(&format!("/proc/{pid}")))
}

/// The state of a process, or of a thread, by the kernel's folder about it.
fn state_in(folder: &Path) -> Option<char> {
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
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

#[cfg(test)]
mod tests {
    use std::{
        os::unix::{fs::OpenOptionsExt as _, process::ExitStatusExt as _},
        process::{Child, Command, Stdio},
        thread,
    };

    use rustix::fs::{CWD, Mode, OFlags, mkfifoat};

    use super::*;

    /// Its second thread begins a child that waits for a file, and the kernel stops no thread in that call.
    const SECOND_THREAD: &str = "
import os, sys, threading, time
actions = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
begin = lambda: os.posix_spawn('/bin/true', ['true'], {}, file_actions=actions)
threading.Thread(target=begin, daemon=True).start()
time.sleep(600)
";

    /// The program, which ends with the test. Its output goes nowhere, so that no reader waits for its end.
    struct Program {
        child: Child,
        file: PathBuf,
    }

    impl Program {
        fn start(file: PathBuf) -> Self {
            let mut python = Command::new("python3");
            python.args(["-c", SECOND_THREAD]).arg(&file);
            python.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            Self { child: python.spawn().unwrap(), file }
        }

        fn has_child(&self) -> bool {
            let parent = self.child.id().to_string();
            let processes = fs::read_dir("/proc").unwrap();
            processes.flatten().any(|process| {
                let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
                // The state and the parent follow the name.
                let after = stat.rsplit_once(") ").map(|(_, after)| after);
                after.and_then(|after| after.split(' ').nth(1)) == Some(&*parent)
            })
        }

        fn has_thread(&self, in_state: char) -> bool {
            let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
            threads.flatten().any(|thread| state_in(&thread.path()) == Some(in_state))
        }
    }

    impl Drop for Program {
        fn drop(&mut self) {
            _ = self.child.kill();
            _ = self.child.wait();
            // A child that still waits for the file outlives the program.
            _ = fs::File::options()
                .write(true)
                .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
                .open(&self.file);
        }
    }

    #[test]
    fn a_process_is_stopped_once_all_its_threads_are() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        mkfifoat(CWD, &file, Mode::RUSR | Mode::WUSR).unwrap();
        let mut python = Program::start(file.clone());
        let pid = python.child.id();
        // Any thread may be in that state for a moment, while it reads from disk.
        until("the second thread has begun its child", || python.has_child());
        until("the second thread waits for its child", || python.has_thread('D'));
        thread::scope(|scope| {
            let stop = scope.spawn(|| stop(pid));
            until("the first thread has stopped", || state(pid) == Some('T'));
            assert!(python.has_thread('D') && !is_stopped(pid), "and the second has not");
            drop(fs::File::options().write(true).open(&file).unwrap());
            stop.join().unwrap();
        });
        assert!(is_stopped(pid));
        python.child.kill().unwrap();
        assert_eq!(python.child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        assert!(!is_stopped(pid), "a process that has ended is not stopped");
    }
}
