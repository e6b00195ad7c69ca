//! The state directory, which outlives the daemon: quotas and the boot epoch.

mod atomic_file;
mod boot_epoch;
mod quotas;

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use broker_core::{StoredQuota, StoredQuotas, StoredTenant};
use thiserror::Error;

use crate::{
    platform::{
        lock::DirLock,
        private_dir::{self, PrivateDirError},
        tenant_rules::Rule,
    },
    surroundings::Warning,
};

/// The state directory, locked for this daemon.
#[derive(Debug)]
pub struct State {
    dir: PathBuf,
    _lock: DirLock,
}

/// Everything about tenants that survives a restart of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    pub quotas: StoredQuotas,
    /// The tenants file that was applied last.
    pub applied: Option<Applied>,
}

/// A tenants file that was applied, as it was understood at that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Where it came from, for people: a path.
    pub source: String,
    /// When, in seconds since 1970.
    pub at_s: u64,
    /// The tenants that it names.
    pub tenants: BTreeSet<String>,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
    /// Its quotas, with the UUIDs of devices.
    pub quotas: Vec<StoredQuota>,
    pub standings: Vec<StoredTenant>,
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
    #[error("{path} is damaged: {problem}. {remedy}")]
    Damaged { path: PathBuf, problem: String, remedy: String },
}

impl State {
    /// Makes the directory if it is missing, and locks it.
    pub fn open(dir: &Path) -> Result<Self, StateError> {
        let failed = |source| StateError::Io { path: dir.to_owned(), source };
        private_dir::take(dir, 0o700)?;
        let lock = DirLock::take(dir).map_err(failed)?.ok_or_else(|| StateError::InUse(dir.to_owned()))?;
        for name in [boot_epoch::NAME, quotas::NAME] {
            atomic_file::remove_leftovers(dir, name);
        }
        Ok(Self { dir: dir.to_owned(), _lock: lock })
    }

    /// Reads the state as a start would, and changes nothing. Returns whether a live daemon has the directory, and what
    /// is stored of tenants.
    pub fn check(dir: &Path) -> Result<(bool, Stored), StateError> {
        if !private_dir::check(dir)? {
            return Ok((false, Stored::default()));
        }
        let stored = quotas::load(dir)?;
        boot_epoch::last(dir, quotas::are_stored(dir))?;
        let is_taken =
            DirLock::is_taken(dir).map_err(|source| StateError::Io { path: dir.to_owned(), source })?;
        Ok((is_taken, stored))
    }

    /// Warns of a damaged copy of the quotas. The quotas themselves do not depend on it.
    pub fn warning(dir: &Path) -> Option<Warning> {
        let path = dir.join(atomic_file::old(quotas::NAME));
        quotas::copy_problem(dir).map(|problem| Warning::DamagedCopy { path, problem })
    }

    /// Counts this start. The count is on disk before it is returned. With `reset` a damaged count is set aside.
    pub fn next_boot_epoch(&self, reset: bool) -> Result<u64, StateError> {
        let epoch = boot_epoch::next(&self.dir, quotas::are_stored(&self.dir), reset)?;
        // From now on a missing file is one that was removed.
        if !quotas::are_stored(&self.dir) {
            if epoch > 1 {
                tracing::warn!(state = %self.dir.display(), "quotas.json is missing: the node has no quotas");
            }
            let _ = quotas::store(&self.dir, &Stored::default());
        }
        Ok(epoch)
    }

    /// Loads what is stored of tenants. With `reset` damaged ones are set aside, for those before the last change.
    pub fn tenants(&self, reset: bool) -> Result<Stored, StateError> {
        match quotas::load(&self.dir) {
            Err(StateError::Damaged { path, problem, .. }) if reset => {
                let stored = quotas::reset(&self.dir)
                    .map_err(|source| StateError::Io { path: path.clone(), source })?;
                tracing::warn!(path = %path.display(), problem, quotas = stored.quotas.quotas.len(), "state reset: the quotas before the last change are in force");
                Ok(stored)
            }
            loaded => loaded,
        }
    }

    /// Replaces what is stored of tenants. It is on disk when it returns. Blocks.
    pub fn store_tenants(&self, stored: &Stored) -> io::Result<()> {
        quotas::store(&self.dir, stored)
    }
}
