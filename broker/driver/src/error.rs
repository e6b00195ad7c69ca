//! How a driver fails.

use std::fmt;

use rustix::io::Errno;
use thiserror::Error;
use vramd_types::{Bytes, ExtentId};

use crate::disk::DirectoryError;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DriverError {
    /// An ordinary event: something else has the memory.
    #[error("out of memory")]
    OutOfMemory,
    /// As ordinary, of the host.
    #[error("out of host memory: {0}")]
    OutOfHostMemory(HostLimit),
    /// As ordinary, of the disk.
    #[error("out of disk: {0}")]
    OutOfDisk(DiskLimit),
    /// When the driver is opened.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("{0}")]
    Failed(String),
}

/// What stood in the way of memory of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostLimit {
    /// All that was configured.
    Capacity(Bytes),
    /// So much the kernel could give without swapping, and without what is left to others.
    Free(Bytes),
    /// So much its cgroup leaves.
    Cgroup(Bytes),
    /// What the process may lock, `RLIMIT_MEMLOCK`, which is less than it would have then.
    Locked(Bytes),
    /// The kernel or the driver has no more to pin.
    Pinned,
}

impl fmt::Display for HostLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capacity(bytes) => write!(f, "its capacity is {} bytes", bytes.get()),
            Self::Free(bytes) => {
                write!(f, "{} bytes of it are free, besides what is left to others", bytes.get())
            }
            Self::Cgroup(bytes) => write!(f, "its cgroup's limit leaves {} bytes", bytes.get()),
            Self::Locked(bytes) => write!(f, "RLIMIT_MEMLOCK is {} bytes", bytes.get()),
            Self::Pinned => f.write_str("no more can be pinned"),
        }
    }
}

/// What stood in the way of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskLimit {
    /// All that was configured.
    Capacity(Bytes),
    /// So much the file system has left.
    Free(Bytes),
    /// What the daemon's user may have there.
    Quota,
}

impl fmt::Display for DiskLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capacity(bytes) => write!(f, "its capacity is {} bytes", bytes.get()),
            Self::Free(bytes) => write!(f, "{} bytes of its file system are free", bytes.get()),
            Self::Quota => f.write_str("the quota of its file system is used up"),
        }
    }
}

/// Why a copy, or a digest, has not ended well. The source is as it was; of the destination nothing is known.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CopyError {
    #[error("cancelled")]
    Cancelled,
    /// What the disk has is not what was written to it. It is lost, and that extent alone with it.
    #[error("{extent} is damaged on disk, in the 2 MiB from {} on", .at.get())]
    Damaged { extent: ExtentId, at: Bytes },
    /// Nothing is lost: nothing was there.
    #[error("{extent} was not written from {} on", .at.get())]
    Unwritten { extent: ExtentId, at: Bytes },
    #[error("read {extent} from {} on: {flaw}", .at.get())]
    Unreadable { extent: ExtentId, at: Bytes, flaw: DiskFlaw },
    #[error("write {extent} from {} on: {flaw}", .at.get())]
    Unwritable { extent: ExtentId, at: Bytes, flaw: DiskFlaw },
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl CopyError {
    /// Whether the disk itself says that what was written there cannot be had, and not only that it was not had this time.
    pub fn is_loss(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Unreadable { flaw, .. } => flaw.is_of_medium(),
            Self::Cancelled | Self::Unwritten { .. } | Self::Unwritable { .. } | Self::Driver(_) => false,
        }
    }

    /// What was read, where it was the disk.
    pub fn read_from(&self) -> Option<ExtentId> {
        match self {
            Self::Damaged { extent, .. }
            | Self::Unreadable { extent, .. }
            | Self::Unwritten { extent, .. } => Some(*extent),
            Self::Cancelled | Self::Unwritable { .. } | Self::Driver(_) => None,
        }
    }
}

/// How the disk failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFlaw {
    /// After so many bytes there was no more.
    Short(Bytes),
    /// The kernel's number for it.
    Failed(i32),
}

impl DiskFlaw {
    /// The kernel tells a bad medium from all else: ENODATA is a sector that cannot be read, EILSEQ and EBADMSG are one whose
    /// checksum is wrong, EUCLEAN is a file system that is damaged. EIO is anything, a cable too, and the next reading may go well.
    fn is_of_medium(self) -> bool {
        let of_medium = [Errno::NODATA, Errno::ILSEQ, Errno::BADMSG, Errno::UCLEAN];
        match self {
            // All of it was there when it was written.
            Self::Short(_) => true,
            Self::Failed(number) => of_medium.iter().any(|errno| errno.raw_os_error() == number),
        }
    }
}

impl fmt::Display for DiskFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(bytes) => write!(f, "it ends after {} bytes", bytes.get()),
            Self::Failed(number) => write!(f, "{}", std::io::Error::from_raw_os_error(*number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_medium_loses_what_was_there_and_a_bad_moment_does_not() {
        let (extent, at) = (ExtentId::from_raw(7), Bytes::ZERO);
        let unreadable = |flaw| CopyError::Unreadable { extent, at, flaw };
        let failed = |errno: Errno| unreadable(DiskFlaw::Failed(errno.raw_os_error()));
        assert!(CopyError::Damaged { extent, at }.is_loss() && unreadable(DiskFlaw::Short(at)).is_loss());
        for errno in [Errno::NODATA, Errno::ILSEQ, Errno::BADMSG, Errno::UCLEAN] {
            assert!(failed(errno).is_loss(), "{errno}");
        }
        for errno in [Errno::IO, Errno::TIMEDOUT, Errno::NOLINK, Errno::NODEV, Errno::AGAIN, Errno::NOMEM] {
            assert!(!failed(errno).is_loss(), "{errno}");
        }
        let unwritable =
            CopyError::Unwritable { extent, at, flaw: DiskFlaw::Failed(Errno::NODATA.raw_os_error()) };
        for other in [CopyError::Cancelled, CopyError::Unwritten { extent, at }, unwritable] {
            assert!(!other.is_loss(), "{other}");
        }
    }
}
