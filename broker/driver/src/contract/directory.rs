//! The directory for extents on disk.

use std::{fs, os::unix::fs::MetadataExt, path::Path, process};

use vramd_types::Bytes;

use super::{
    Bench, Harness, Verdict,
    bench::SMALL,
    folder::{CAPACITY, Folder},
};
use crate::{DirectoryError, DiskConfig, DiskEngine, DiskLimit, DriverError, disk};

fn opened<'a>(harness: &'a dyn Harness, folder: &Folder) -> Bench<'a> {
    Bench::with_disk(harness, folder.config(), Vec::new())
}

pub fn files_are_named_preallocated_and_deleted(harness: &dyn Harness) -> Verdict {
    let folder = Folder::new(harness);
    let mut bench = opened(harness, &folder);
    let size = Bytes::mib(6);
    let (one, other) = (bench.create_disk(size), bench.create_disk(size));
    let (one, other) = (one.expect("there is room"), other.expect("there is room"));
    let file = fs::metadata(folder.file_of(one)).expect("it is named by its id");
    assert_eq!(file.len(), size.get());
    assert!(file.blocks() * 512 >= size.get(), "all of it is allocated");
    assert_eq!(file.mode() & 0o777, 0o600, "only the daemon's user reads it");
    assert!(bench.release_id(one));
    assert_eq!(folder.files(), [format!("vramd-extent-{}", other.get())]);
    bench.finish();
    assert_eq!(folder.files(), Vec::<String>::new(), "an orderly end leaves nothing");
    Verdict::Passed
}

pub fn the_disk_capacity_is_observed_and_returned(harness: &dyn Harness) -> Verdict {
    let folder = Folder::new(harness);
    let mut bench = opened(harness, &folder);
    assert_eq!(bench.disk().map(|disk| disk.capacity), Some(CAPACITY));
    let full = DriverError::OutOfDisk(DiskLimit::Capacity(CAPACITY));
    let problem = format!("out of disk space: the configured size is {CAPACITY}");
    assert_eq!(full.to_string(), problem);
    assert_eq!(bench.create_disk(CAPACITY.saturating_add(SMALL)), Err(full.clone()));
    for _ in 0..2 {
        let half = Bytes::new(CAPACITY.get() / 2);
        let made = [bench.create_disk(half), bench.create_disk(half)];
        assert_eq!(bench.create_disk(SMALL), Err(full.clone()));
        for extent in made {
            assert!(bench.release_id(extent.expect("there is room for both")));
        }
    }
    bench.finish();
    Verdict::Passed
}

pub fn only_files_of_an_earlier_daemon_are_deleted(harness: &dyn Harness) -> Verdict {
    let folder = Folder::new(harness);
    let others = ["notes.txt", "vramd-extent-", "vramd-extent-007", "vramd-extent-7.bak", "xvramd-extent-7"];
    for name in ["vramd-extent-7", "vramd-extent-18446744073709551615", "vramd-probe"].iter().chain(&others) {
        fs::write(folder.path().join(name), b"left over").expect("it can be written");
    }
    let directory = "vramd-extent-8";
    fs::create_dir(folder.path().join(directory)).expect("it can be made");
    let bench = opened(harness, &folder);
    let mut left: Vec<&str> = others.into_iter().chain([directory]).collect();
    left.sort_unstable();
    assert_eq!(folder.files(), left);
    bench.finish();
    assert_eq!(folder.files(), left);
    Verdict::Passed
}

pub fn a_directory_serves_one_driver(harness: &dyn Harness) -> Verdict {
    let folder = Folder::new(harness);
    let mut bench = opened(harness, &folder);
    let extent = bench.create_disk(SMALL).expect("there is room");
    let in_use = DirectoryError::InUse { directory: folder.path().to_owned(), by: Some(process::id()) };
    assert_eq!(refused(harness, folder.config()), in_use);
    let says = format!(
        "directory {} is in use by another daemon (process {})",
        folder.path().display(),
        process::id()
    );
    assert_eq!(in_use.to_string(), says);
    assert!(folder.file_of(extent).exists(), "nothing of the first one's is touched");
    bench.finish();
    opened(harness, &folder).finish();
    Verdict::Passed
}

pub fn an_unusable_directory_is_refused(harness: &dyn Harness) -> Verdict {
    let folder = Folder::new(harness);
    let with = |directory: &Path, capacity| {
        refused(harness, DiskConfig { directory: directory.to_owned(), capacity, engine: None })
    };
    let nowhere = folder.path().join("nowhere");
    assert_eq!(with(&nowhere, CAPACITY), DirectoryError::Missing(nowhere.clone()));
    let file = folder.path().join("file");
    fs::write(&file, b"").expect("it can be written");
    assert_eq!(with(&file, CAPACITY), DirectoryError::NoDirectory(file.clone()));
    let system = Path::new("/sys/kernel");
    let not_writable = with(system, CAPACITY);
    assert!(matches!(not_writable, DirectoryError::NotWritable { .. }), "{not_writable:?}");
    let too_small = with(folder.path(), Bytes::new(1 << 60));
    let DirectoryError::TooSmall { free, capacity, .. } = too_small else { panic!("{too_small:?}") };
    assert!(free < capacity && capacity == Bytes::new(1 << 60));
    assert_eq!(folder.files(), ["file"], "nothing is left");
    Verdict::Passed
}

pub fn extents_on_disk_need_a_directory(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    assert_eq!(bench.disk(), None);
    let none = DriverError::Failed("no directory for extents on disk is configured".to_owned());
    assert_eq!(bench.create_disk(SMALL), Err(none));
    bench.finish();
    Verdict::Passed
}

/// io_uring if the kernel permits it, else threads, and why.
pub fn the_engine_is_reported(harness: &dyn Harness) -> Verdict {
    let folder = Folder::new(harness);
    let bench = opened(harness, &folder);
    let facts = bench.disk().expect("it has a disk").clone();
    bench.finish();
    match disk::check_uring() {
        Ok(()) => assert_eq!((facts.engine, facts.no_uring), (DiskEngine::Uring, None)),
        Err(why) => {
            assert_eq!((facts.engine, facts.no_uring), (DiskEngine::Threads, Some(why.clone())));
            let requested = folder.config_with(Some(DiskEngine::Uring));
            assert_eq!(refused(harness, requested), DirectoryError::NoUring(why));
        }
    }
    let bench = Bench::with_disk(harness, folder.config_with(Some(DiskEngine::Threads)), Vec::new());
    let facts = bench.disk().expect("it has a disk").clone();
    assert_eq!((facts.engine, facts.no_uring), (DiskEngine::Threads, None), "as requested");
    bench.finish();
    Verdict::Passed
}

fn refused(harness: &dyn Harness, config: DiskConfig) -> DirectoryError {
    match harness.open_with_disk(Some(config), Vec::new()) {
        Err(DriverError::Directory(error)) => error,
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it was opened"),
    }
}
