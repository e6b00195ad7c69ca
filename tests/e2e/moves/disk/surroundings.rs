//! The system around a daemon: file systems that are unfit for a disk tier, fill up, fail in the middle or were torn,
//! and a cgroup with a limit.
//!
//! A file system that a test mounts is mounted for one daemon alone.

use std::{fs, os::unix::fs::FileExt as _, path::PathBuf, process::Command, time::Duration};

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use vramd_client::{Access, Error};
use vramd_proto::v1::move_event::Change;
use vramd_tests::{Config, Daemon, Home, config::Effect, wait::until};

use crate::can_mount;
use crate::moves::{
    assert_nothing_left,
    clients::programs::{allocate_unpinned, is_intact, lies, send},
    disk::tier::{
        EIO, PART, assert_second_part_lost, file_of, files, has_all, heard, in_one_part, refused, text,
        until_charged, write_unpinned,
    },
    operators::list::listed,
    pins::fetch::connect,
    tiers, vramctl, vramctl_json,
};

/// The directory of a disk tier, in a home whose daemon sees a file system mounted there.
fn mounted(how: &str) -> (Home, PathBuf) {
    let home = Home::new();
    let directory = home.path().join("disk");
    fs::create_dir(&directory).unwrap();
    let line = format!("mount {how} none '{}'", directory.display());
    (home.with_mounts(line), directory)
}

#[test]
fn a_read_only_file_system_or_one_without_direct_io_ends_the_start() {
    if !can_mount(
        "a_read_only_file_system_or_one_without_direct_io_ends_the_start",
        "mount -t tmpfs none /mnt",
    ) {
        return;
    }
    for (how, why) in [("-t tmpfs -o ro", "cannot be written"), ("-t ramfs", "does not support direct IO")] {
        let (home, directory) = mounted(how);
        let config = text(&directory.display().to_string(), "8MiB", "auto");
        fs::write(home.path().join("vramd.toml"), config).unwrap();
        refused(&home, 3, "disk.directory", why);
    }
}

/// tmpfs has direct IO since Linux 6.6.
const SMALL_DISK: &str =
    "mount -t tmpfs none /mnt && dd if=/dev/zero of=/mnt/direct oflag=direct bs=4096 count=1";

/// A daemon with a disk tier of 8 MiB, in a file system of its own that is a little larger.
fn on_small_disk() -> (Daemon, PathBuf) {
    let (home, directory) = mounted("-t tmpfs -o size=9m");
    tiers("8MiB", "0").disk("8MiB").write(home.path());
    let daemon = Daemon::start_in(home);
    let seen = format!("/proc/{}/root{}", daemon.pid(), directory.display());
    (daemon, seen.into())
}

/// The outcome of the first part that is to go to disk.
fn evicted(daemon: &Daemon, id: u64) -> serde_json::Value {
    let id = vramd_types::AllocationId::from_raw(id).to_string();
    vramctl_json(daemon, &["alloc", "evict", &id, "--to", "disk"])["parts"][0].clone()
}

#[test]
fn a_part_stays_while_others_fill_the_file_system() {
    if !can_mount("a_part_stays_while_others_fill_the_file_system", SMALL_DISK) {
        return;
    }
    let (daemon, disk) = on_small_disk();
    let client = connect(&daemon);
    let memory = allocate_unpinned(&daemon, &client, 2);
    fs::write(disk.join("of-others"), vec![7; 8 << 20]).expect("it is as large");
    let told = evicted(&daemon, memory.id().get());
    assert_eq!(
        (&told["error"]["reason"], &told["error"]["facts"]["tier"]),
        (&"DEVICE_FULL".into(), &"disk".into()),
        "{told}"
    );
    let why = told["error"]["message"].as_str().unwrap();
    assert!(why.contains("no quota stands in the way: out of disk space: its file system has "), "{why}");
    is_intact(&memory, 2);
    fs::remove_file(disk.join("of-others")).unwrap();
    send(&daemon, &memory, "disk");
    assert_eq!(lies(&daemon, &memory), ["disk"; 2]);
    is_intact(&memory, 2);
    drop(memory);
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}

/// A pin needs the room of a part that is to go to disk.
#[test]
fn a_pin_waits_while_its_victims_find_the_file_system_full() {
    if !can_mount("a_pin_waits_while_its_victims_find_the_file_system_full", SMALL_DISK) {
        return;
    }
    let (daemon, disk) = on_small_disk();
    let [wants, has] = [connect(&daemon), connect(&daemon)];
    let wanted = allocate_unpinned(&daemon, &wants, 1);
    send(&daemon, &wanted, "disk");
    until_charged(&daemon, [0, 0, 2]);
    let there = allocate_unpinned(&daemon, &has, 4);
    fs::write(disk.join("of-others"), vec![7; 6 << 20]).expect("it is as large");
    let stayed = || {
        let ended = listed(&daemon).ended;
        ended.iter().any(|it| it.outcome() == Change::Failed && it.detail.starts_with("tier disk of "))
    };
    until("something is asked to leave", || {
        let late = wanted.pin_timeout(0..1, Access::Read, Duration::from_millis(300)).map(drop);
        assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
        stayed()
    });
    assert_eq!(lies(&daemon, &there), ["device"; 4]);
    fs::remove_file(disk.join("of-others")).unwrap();
    is_intact(&wanted, 1);
    is_intact(&there, 4);
    drop((wanted, there));
    wants.flush().unwrap();
    has.flush().unwrap();
    assert_nothing_left(&daemon);
}

#[test]
fn a_file_system_that_turns_read_only_fails_evictions_alone() {
    if !can_mount("a_file_system_that_turns_read_only_fails_evictions_alone", SMALL_DISK) {
        return;
    }
    let (daemon, _) = on_small_disk();
    let client = connect(&daemon);
    let memory = allocate_unpinned(&daemon, &client, 2);
    let turns = |how: &str| {
        let (target, directory) = (daemon.pid().to_string(), daemon.home().path().join("disk"));
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &target, "mount", "-o", &format!("remount,{how}")]);
        assert!(command.arg(directory).status().unwrap().success(), "{how}");
    };
    turns("ro");
    let told = evicted(&daemon, memory.id().get());
    assert_eq!(told["error"]["reason"], "DRIVER_FAILED", "{told}");
    is_intact(&memory, 2);
    turns("rw");
    send(&daemon, &memory, "disk");
    is_intact(&memory, 2);
    drop(memory);
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}

/// The disk fails at the third of the part's four pieces.
#[test]
fn a_part_stays_while_its_writes_to_disk_fail() {
    let broken = Effect::Fail("an error of the disk".to_owned());
    let daemon = Daemon::start(&tiers("8MiB", "0").disk("8MiB").fault("copy", 1, broken));
    let client = connect(&daemon);
    let memory = in_one_part(&daemon, &client, 4);
    let told = evicted(&daemon, memory.id().get());
    let problem = told["problem"].as_str().unwrap_or_default();
    assert_eq!(told["outcome"], "failed", "{told}");
    assert!(problem.starts_with("cannot write extent ") && problem.ends_with(EIO), "{told}");
    assert_eq!(lies(&daemon, &memory), ["device"]);
    has_all(&memory, 4);
    send(&daemon, &memory, "disk");
    assert_eq!(lies(&daemon, &memory), ["disk"]);
    has_all(&memory, 4);
    drop(memory);
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}

/// An append-only file: even root can neither delete nor empty it. Until this is dropped.
struct AppendOnly(fs::File);

impl AppendOnly {
    fn new(file: fs::File) -> rustix::io::Result<Self> {
        set_append_only(&file, true)?;
        Ok(Self(file))
    }
}

impl Drop for AppendOnly {
    fn drop(&mut self) {
        set_append_only(&self.0, false).expect("it could be set");
    }
}

fn set_append_only(file: &fs::File, on: bool) -> rustix::io::Result<()> {
    let mut flags = ioctl_getflags(file)?;
    flags.set(IFlags::APPEND, on);
    ioctl_setflags(file, flags)
}

#[test]
fn an_undeletable_file_is_logged_and_its_bytes_stay_charged() {
    if let Err(error) = AppendOnly::new(tempfile::tempfile().unwrap()) {
        eprintln!(
            "an_undeletable_file_is_logged_and_its_bytes_stay_charged: cannot have such a file: {error}; not checked in this run"
        );
        return;
    }
    let daemon = Daemon::start(&tiers("8MiB", "0").disk("8MiB"));
    let client = connect(&daemon);
    let memory = allocate_unpinned(&daemon, &client, 2);
    send(&daemon, &memory, "disk");
    let append_only = AppendOnly::new(file_of(&daemon, memory.id().get(), 1)).unwrap();
    drop(memory);
    client.flush().unwrap();
    let told = "cannot be deleted, its 2097152 bytes stay in use: Operation not permitted (os error 1)";
    until("the operator is told", || daemon.log().contains(told));
    until_charged(&daemon, [0, 0, 2]);
    let state = daemon.state();
    let unreturned: u64 = state.quotas.iter().map(|row| row.unreturned_bytes).sum();
    assert_eq!(unreturned, 2 << 20, "{state:?}");
    // The rest of the disk is available all the same.
    let next = write_unpinned(&client, 3);
    send(&daemon, &next, "disk");
    is_intact(&next, 3);
    drop(next);
    client.flush().unwrap();
    until_charged(&daemon, [0, 0, 2]);
    assert_eq!(daemon.log().matches(told).count(), 1, "once");
    drop(append_only);
    let home = daemon.stop().1;
    assert_eq!(files(home.path()).len(), 1, "it is left to the next daemon");
    let next = Daemon::start_in(home);
    assert_eq!(files(next.home().path()), Vec::<PathBuf>::new());
}

/// The first half of the part was written. The second half has its former content: zeros.
#[test]
fn a_torn_write_loses_the_content_of_its_part_alone() {
    assert_second_part_lost(|file| {
        file.write_all_at(&vec![0; PART / 2], PART as u64 / 2).expect("it is written");
        file.sync_all().expect("it is on disk");
    });
}

/// As after a power failure: files on disk, whole or torn, belong to no part, and no daemon reads them.
#[test]
fn files_of_a_killed_daemon_are_never_read() {
    let config = tiers("8MiB", "0").disk("8MiB");
    let daemon = Daemon::start(&config);
    let client = connect(&daemon);
    let memory = allocate_unpinned(&daemon, &client, 2);
    send(&daemon, &memory, "disk");
    let id = memory.id().to_string();
    let home = daemon.kill();
    assert_eq!(files(home.path()).len(), 2, "no daemon has deleted them");
    let daemon = Daemon::start_in(home);
    assert_eq!(files(daemon.home().path()), Vec::<PathBuf>::new());
    let output = vramctl(&daemon, &["alloc", "show", &id]);
    assert!(heard(&output).contains("ALLOCATION_NOT_FOUND"), "{}", heard(&output));
    let again = connect(&daemon);
    // Each part reads as zeros at its first pin.
    let anew = write_unpinned(&again, 2);
    send(&daemon, &anew, "disk");
    until_charged(&daemon, [0, 0, 4]);
    is_intact(&anew, 2);
    drop(anew);
    again.flush().unwrap();
    assert_nothing_left(&daemon);
    drop((memory, client));
}

#[test]
fn a_host_tier_above_the_cgroups_limit_ends_the_start() {
    if !can_mount("a_host_tier_above_the_cgroups_limit_ends_the_start", "mount --bind /tmp /sys/fs/cgroup") {
        return;
    }
    let home = Home::new();
    let cgroups = home.path().join("cgroups");
    fs::create_dir(&cgroups).unwrap();
    fs::write(cgroups.join("memory.max"), format!("{}\n", 96 << 20)).unwrap();
    let home = home.with_mounts(format!("mount --bind '{}' /sys/fs/cgroup", cgroups.display()));
    let config = |host| {
        let pieces = format!("host_size = \"{host}\"\npart_size = \"2MiB\"");
        Config::devices(&["8MiB", "8MiB"]).memory(&pieces)
    };
    config("18MiB").write(home.path());
    let output = home.command().output().unwrap();
    let heard = heard(&output);
    assert_eq!(output.status.code(), Some(3), "{heard}");
    let why = "memory.host_size: 36 MiB for 2 devices is too much: the cgroup of this process may have 96 MiB, of which 64 MiB are left to the daemon";
    assert!(heard.contains(why), "{heard}");
    config("16MiB").write(home.path());
    let daemon = Daemon::start_in(home);
    until("all of it is there", || daemon.log().contains("host memory is pinned ahead of need"));
}
