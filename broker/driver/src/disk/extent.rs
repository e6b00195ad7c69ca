//! One extent on disk.

use std::{os::fd::OwnedFd, sync::Arc};

use vramd_types::{Bytes, ExtentId, GRANULARITY};

use super::{
    directory::{Directory, ExtentFile},
    sums::Sums,
};
use crate::DriverError;

/// Dropping it deletes its file.
#[derive(Debug)]
pub(crate) struct DiskExtent {
    id: ExtentId,
    size: Bytes,
    sums: Sums,
    file: ExtentFile,
}

impl DiskExtent {
    pub(super) fn new(directory: &Arc<Directory>, id: ExtentId, size: Bytes) -> Result<Self, DriverError> {
        if size.is_zero() || !size.is_multiple_of(GRANULARITY) {
            return Err(DriverError::Failed(format!("{} bytes are no multiple of 2 MiB", size.get())));
        }
        let file = directory.make(id, size)?;
        Ok(Self { id, size, sums: Sums::new(id, size), file })
    }

    pub(crate) fn id(&self) -> ExtentId {
        self.id
    }

    pub(crate) fn size(&self) -> Bytes {
        self.size
    }

    pub(crate) fn file(&self) -> &Arc<OwnedFd> {
        &self.file.fd
    }

    pub(super) fn sums(&self) -> &Sums {
        &self.sums
    }
}
