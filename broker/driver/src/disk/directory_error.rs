//! Why a directory cannot be used for extents.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use thiserror::Error;
use vramd_types::Bytes;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DirectoryError {
    #[error("directory {} does not exist", .0.display())]
    Missing(PathBuf),
    #[error("{} is not a directory", .0.display())]
    NoDirectory(PathBuf),
    #[error("{} cannot be written: {problem}", .directory.display())]
    NotWritable { directory: PathBuf, problem: String },
    #[error("directory {} is in use by another daemon{}", .directory.display(), holder_suffix(*.by))]
    InUse {
        directory: PathBuf,
        /// The id of its process, if the lock file names one.
        by: Option<u32>,
    },
    #[error("the file system of {} does not support direct IO", .0.display())]
    NoDirectIo(PathBuf),
    #[error("the file system of {} does not support fallocate", .0.display())]
    NoPreallocation(PathBuf),
    #[error(
        "the file system of {} has {free} ({} bytes) free, less than the configured {capacity} ({} bytes)",
        .directory.display(), .free.get(), .capacity.get()
    )]
    TooSmall { directory: PathBuf, free: Bytes, capacity: Bytes },
    /// The configuration names io_uring.
    #[error("io_uring is not available: {0}")]
    NoUring(String),
    #[error("directory {}: cannot {context}: {problem}", .directory.display())]
    Failed { directory: PathBuf, context: String, problem: String },
}

fn holder_suffix(process: Option<u32>) -> String {
    process.map(|process| format!(" (process {process})")).unwrap_or_default()
}

/// Builds errors about one directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectoryContext<'a>(&'a Path);

impl<'a> DirectoryContext<'a> {
    pub(super) fn of(directory: &'a Path) -> Self {
        Self(directory)
    }

    pub(super) fn directory(&self) -> PathBuf {
        self.0.to_owned()
    }

    pub(super) fn failed(&self, context: &str, problem: impl fmt::Display) -> DirectoryError {
        DirectoryError::Failed {
            directory: self.directory(),
            context: context.to_owned(),
            problem: problem.to_string(),
        }
    }

    pub(super) fn not_writable(&self, problem: impl fmt::Display) -> DirectoryError {
        DirectoryError::NotWritable { directory: self.directory(), problem: problem.to_string() }
    }
}
