//! The state directory, which outlives the daemon: quotas and the boot epoch.

mod atomic_file;
mod boot_epoch;
mod quotas;

use std::{
    io,
    path::{Path, PathBuf},
};

use broker_core::StoredQuotas;
use thiserror::Error;

use crate::platform::{
    lock::DirLock,
    private_dir::{self, PrivateDirError},
};

/// The state directory, locked for this daemon.
#[derive(Debug)]
pub struct State {
    dir: PathBuf,
    _lock: DirLock,
}

#[derive(Debug, Error)]
pub enum StateError {
    #[error("the state directory {0} is in use by a live daemon")]
    InUse(PathBuf),
    #[error("the state directory cannot be used: {0}")]
    Dir(#[from] PrivateDirError),
    #[error("cannot use {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// The daemon never guesses a damaged value: ids could repeat, or limits be forgotten.
    #[error("{path} is damaged: {problem}. Repair it, or remove it")]
    Damaged { path: PathBuf, problem: String },
}

impl State {
    /// Makes the directory if it is missing, and locks it.
    pub fn open(dir: &Path) -> Result<Self, StateError> {
        let failed = |source| StateError::Io { path: dir.to_owned(), source };
        private_dir::take(dir, 0o700)?;
        let lock = DirLock::take(dir).map_err(failed)?.ok_or_else(|| StateError::InUse(dir.to_owned()))?;
        Ok(Self { dir: dir.to_owned(), _lock: lock })
    }

    /// Counts this start. The count is on disk before it is returned.
    pub fn next_boot_epoch(&self) -> Result<u64, StateError> {
        boot_epoch::next(&self.dir)
    }

    /// Loads the stored quotas.
    pub fn quotas(&self) -> Result<StoredQuotas, StateError> {
        quotas::load(&self.dir)
    }

    /// Replaces the stored quotas. They are on disk when it returns. Blocks.
    pub fn store_quotas(&self, quotas: &StoredQuotas) -> io::Result<()> {
        quotas::store(&self.dir, quotas)
    }
}
