//! What a file system refuses.

use rustix::fs::open;

use super::*;

#[test]
fn a_file_system_without_direct_io_is_told() {
    let path = Path::new("/proc/self");
    let opened = try_out(&Doing::of(path), || open("/proc/self/comm", DIRECT, Mode::empty()));
    assert_eq!(opened, Err(DirectoryError::NoDirectIo(path.to_owned())));
    let says = "the file system of /proc/self has no direct IO";
    assert_eq!(opened.unwrap_err().to_string(), says);
}

#[test]
fn a_file_that_cannot_be_preallocated_is_told() {
    let path = Path::new("/dev");
    let opened = try_out(&Doing::of(path), || open("/dev/null", OFlags::RDWR, Mode::empty()));
    assert!(
        matches!(opened, Err(DirectoryError::NoPreallocation(_) | DirectoryError::Failed { .. })),
        "{opened:?}"
    );
}

#[test]
fn only_names_that_we_give_are_ours() {
    assert!(is_ours("vramd-extent-0") && is_ours(&name_of(ExtentId::from_raw(u64::MAX))) && is_ours(PROBE));
    for name in ["vramd-extent-", "vramd-extent-01", "vramd-extent-+1", "vramd-extent-1 ", LOCK, ""] {
        assert!(!is_ours(name), "{name:?}");
    }
}

#[test]
fn what_could_not_be_made_costs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let directory = Arc::new(Directory::open(folder.path(), Bytes::mib(4)).unwrap());
    let id = ExtentId::from_raw(1);
    fs::write(folder.path().join(name_of(id)), b"in the way").unwrap();
    for _ in 0..3 {
        assert!(matches!(directory.make(id, Bytes::mib(4)), Err(DriverError::Failed(_))));
    }
    drop(directory.make(ExtentId::from_raw(2), Bytes::mib(4)).unwrap());
    assert_eq!(*directory.used.lock().unwrap(), Bytes::ZERO);
    assert!(folder.path().join(name_of(id)).exists(), "what is not ours is left alone");
}
