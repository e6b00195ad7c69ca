//! One piece of a copy between memory and disk, and its stage.

use std::{fmt, sync::Arc};

use rustix::io::Errno;
use vramd_types::{Bytes, ExtentId};

use super::{
    checksums::Checksum,
    engine::{DiskDirection, IoFlaw},
    extent::{DiskExtent, PieceRead},
    side::Side,
};
use crate::{CopyError, DiskFlaw};

/// The two ends of a copy. Both stay alive as long as it lasts, even if they are released meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct DiskWork<M> {
    pub(crate) disk: Arc<DiskExtent>,
    pub(crate) memory: M,
}

pub(super) struct Piece<S: Side> {
    pub(super) work: DiskWork<S::Memory>,
    pub(super) at: u64,
    pub(super) length: usize,
    pub(super) stage: Stage<S::Hop>,
}

#[derive(Debug)]
pub(super) enum Stage<H> {
    /// Waits for an earlier piece to the same place, or for its turn at the disk.
    Waiting,
    /// On its way from memory to a buffer.
    Fetching(H),
    OnDisk(OnDisk),
    /// The disk has read it, or is to write it.
    Checksumming(Checksumming),
    /// On its way from a buffer to memory.
    Storing(H),
    Ended(Result<(), CopyError>),
}

/// A checksum in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checksumming {
    /// Set if the disk has read the piece; else the piece is to be written.
    pub(super) read: Option<PieceRead>,
    /// The disk accesses the memory itself.
    pub(super) is_unbuffered: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct OnDisk {
    pub(super) op: DiskOp,
    /// The disk accesses the memory itself.
    pub(super) is_unbuffered: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum DiskOp {
    Reads(PieceRead),
    /// With the checksum of the written bytes.
    Writes(Checksum),
}

impl<S: Side> Piece<S> {
    pub(super) fn new(work: DiskWork<S::Memory>, at: u64, length: usize) -> Self {
        Self { work, at, length, stage: Stage::Waiting }
    }

    /// Whether both go to the same place and this one has not ended.
    pub(super) fn is_in_the_way_of(&self, other: &Self, direction: DiskDirection) -> bool {
        let is_same = match direction {
            DiskDirection::FromDisk => S::is_same(&self.work.memory, &other.work.memory),
            DiskDirection::ToDisk => Arc::ptr_eq(&self.work.disk, &other.work.disk),
        };
        is_same && self.at == other.at && !matches!(self.stage, Stage::Ended(_))
    }
}

pub(super) fn failed(extent: ExtentId, at: u64, direction: DiskDirection, flaw: IoFlaw) -> CopyError {
    let at = Bytes::new(at);
    let flaw = match flaw {
        IoFlaw::Short(bytes) => DiskFlaw::Short(Bytes::new(bytes as u64)),
        IoFlaw::Failed(error) => DiskFlaw::Failed(Errno::raw_os_error(error)),
    };
    match direction {
        DiskDirection::FromDisk => CopyError::Unreadable { extent, at, flaw },
        DiskDirection::ToDisk => CopyError::Unwritable { extent, at, flaw },
    }
}

impl<S: Side> fmt::Debug for Piece<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piece").field("at", &self.at).field("stage", &self.stage).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_error_names_the_extent_and_the_offset() {
        let says = |direction, flaw| failed(ExtentId::from_raw(7), 4 << 20, direction, flaw).to_string();
        let extent = ExtentId::from_raw(7);
        let error = format!("cannot read extent {extent} at offset 4194304: Input/output error (os error 5)");
        assert_eq!(says(DiskDirection::FromDisk, IoFlaw::Failed(Errno::IO)), error);
        let full =
            format!("cannot write extent {extent} at offset 4194304: No space left on device (os error 28)");
        assert_eq!(says(DiskDirection::ToDisk, IoFlaw::Failed(Errno::NOSPC)), full);
        let short = format!("cannot read extent {extent} at offset 4194304: the file ends after 8192 bytes");
        assert_eq!(says(DiskDirection::FromDisk, IoFlaw::Short(8192)), short);
    }
}
