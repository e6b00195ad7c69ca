//! The folder of one case, and its files.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use vramd_types::{Bytes, ExtentId};

use super::Harness;
use crate::{DiskConfig, DiskEngine};

/// More than any case needs.
pub(super) const CAPACITY: Bytes = Bytes::mib(128);

/// Deleted when it is dropped.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(harness: &dyn Harness) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let path = harness.directory().join(format!("vramd-contract-{}-{number}", process::id()));
        fs::create_dir(&path).unwrap_or_else(|error| panic!("make {}: {error}", path.display()));
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn config(&self) -> DiskConfig {
        self.config_with(None)
    }

    pub(super) fn config_with(&self, engine: Option<DiskEngine>) -> DiskConfig {
        DiskConfig { directory: self.0.clone(), capacity: CAPACITY, engine }
    }

    pub(super) fn file_of(&self, extent: ExtentId) -> PathBuf {
        self.0.join(format!("vramd-extent-{}", extent.get()))
    }

    /// All files except the lock.
    pub(super) fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("the folder is there");
        let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        let mut files: Vec<String> = entries.map(|entry| name(entry.expect("it can be read"))).collect();
        files.retain(|name| name != "vramd.lock");
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
