//! Refusals of file systems.

use std::{
    os::unix::fs::symlink,
    thread,
    time::{Duration, Instant},
};

use rustix::fs::open;

use super::*;

#[test]
fn a_file_system_without_direct_io_is_refused() {
    let path = Path::new("/proc/self");
    let opened = try_out(&DirectoryContext::of(path), || open("/proc/self/comm", DIRECT, Mode::empty()));
    assert_eq!(opened, Err(DirectoryError::NoDirectIo(path.to_owned())));
    let says = "the file system of /proc/self does not support direct IO";
    assert_eq!(opened.unwrap_err().to_string(), says);
}

#[test]
fn a_file_system_without_preallocation_is_refused() {
    let path = Path::new("/dev");
    let opened = try_out(&DirectoryContext::of(path), || open("/dev/null", OFlags::RDWR, Mode::empty()));
    assert!(
        matches!(opened, Err(DirectoryError::NoPreallocation(_) | DirectoryError::Failed { .. })),
        "{opened:?}"
    );
}

#[test]
fn only_names_of_the_driver_are_its_own() {
    assert!(
        is_own_name("vramd-extent-0")
            && is_own_name(&name_of(ExtentId::from_raw(u64::MAX)))
            && is_own_name(PROBE)
    );
    for name in ["vramd-extent-", "vramd-extent-01", "vramd-extent-+1", "vramd-extent-1 ", LOCK, ""] {
        assert!(!is_own_name(name), "{name:?}");
    }
}

#[test]
fn a_failed_create_costs_no_capacity() {
    let folder = tempfile::tempdir().unwrap();
    let directory = Arc::new(Directory::open(folder.path(), Bytes::mib(4)).unwrap());
    let id = ExtentId::from_raw(1);
    fs::write(folder.path().join(name_of(id)), b"in the way").unwrap();
    for _ in 0..3 {
        assert!(matches!(directory.create_file(id, Bytes::mib(4)), Err(DriverError::Failed(_))));
    }
    drop(directory.create_file(ExtentId::from_raw(2), Bytes::mib(4)).unwrap());
    assert_eq!(*directory.used.lock().unwrap(), Bytes::ZERO);
    assert!(folder.path().join(name_of(id)).exists(), "a foreign file is left alone");
}

fn in_use(folder: &Path) -> Option<u32> {
    match Directory::open(folder, Bytes::mib(4)) {
        Err(DirectoryError::InUse { by, .. }) => by,
        other => panic!("it is another's: {other:?}"),
    }
}

#[test]
fn a_directory_stays_locked_without_its_lock_file() {
    let folder = tempfile::tempdir().unwrap();
    let directory = Directory::open(folder.path(), Bytes::mib(4)).unwrap();
    assert_eq!(in_use(folder.path()), Some(std::process::id()));
    fs::remove_file(folder.path().join(LOCK)).unwrap();
    assert_eq!(in_use(folder.path()), None, "the owner is unknown");
    drop(directory);
    // A child that another test forks has the lock too, until it executes its program.
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(refused) = Directory::open(folder.path(), Bytes::mib(4)) {
        assert!(Instant::now() < end, "{refused}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_foreign_file_named_like_the_probe_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let probe = folder.path().join(PROBE);
    symlink("/nowhere", &probe).unwrap();
    let refused = Directory::open(folder.path(), Bytes::mib(4)).unwrap_err();
    assert!(refused.to_string().contains("File exists"), "{refused}");
    assert!(probe.is_symlink());
}

/// A file with a second name, for inspection, whose own name has become that of a directory.
fn undeletable(folder: &Path, directory: &Arc<Directory>, id: ExtentId) -> ExtentFile {
    let file = directory.create_file(id, Bytes::mib(2)).unwrap();
    let name = folder.join(name_of(id));
    fs::hard_link(&name, folder.join("second_name")).unwrap();
    fs::remove_file(&name).unwrap();
    fs::create_dir(&name).unwrap();
    file
}

#[test]
fn an_undeletable_extent_file_is_truncated() {
    let folder = tempfile::tempdir().unwrap();
    let directory = Arc::new(Directory::open(folder.path(), Bytes::mib(4)).unwrap());
    let file = undeletable(folder.path(), &directory, ExtentId::from_raw(1));
    assert_eq!(file.delete(), Ok(()));
    assert_eq!(fs::metadata(folder.path().join("second_name")).unwrap().len(), 0);
    assert_eq!(*directory.used.lock().unwrap(), Bytes::ZERO);
}

#[test]
fn bytes_of_an_undeletable_file_stay_charged() {
    let folder = tempfile::tempdir().unwrap();
    let directory = Arc::new(Directory::open(folder.path(), Bytes::mib(4)).unwrap());
    let mut file = undeletable(folder.path(), &directory, ExtentId::from_raw(1));
    file.fd = Arc::new(open(folder.path().join("second_name"), OFlags::RDONLY, Mode::empty()).unwrap());
    assert_eq!(file.delete(), Err(Errno::ISDIR), "it says why");
    assert_eq!(*directory.used.lock().unwrap(), Bytes::mib(2));
    let full = Err(DriverError::OutOfDisk(DiskLimit::Capacity(Bytes::mib(4))));
    assert_eq!(directory.create_file(ExtentId::from_raw(2), Bytes::mib(4)).map(drop), full);
    drop(directory.create_file(ExtentId::from_raw(3), Bytes::mib(2)).unwrap());
}
