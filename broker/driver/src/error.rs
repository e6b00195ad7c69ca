//! Errors of a driver: why memory could not be had, and why a copy failed.

use std::fmt;

use rustix::io::Errno;
use thiserror::Error;
use vramd_types::{Bytes, ExtentId};

use crate::disk::DirectoryError;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DriverError {
    /// The device has no more memory. An ordinary event: other programs may have taken it.
    #[error("the device is out of memory")]
    OutOfMemory,
    /// The host has no more memory for the driver. An ordinary event.
    #[error("out of host memory: {0}")]
    OutOfHostMemory(HostLimit),
    /// The disk has no more room. An ordinary event.
    #[error("out of disk space: {0}")]
    OutOfDisk(DiskLimit),
    /// The directory for extents is unusable. Only when a driver is opened.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("{0}")]
    Failed(String),
}

/// The limit that stood in the way of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostLimit {
    /// The configured size of the host tier.
    Capacity(Bytes),
    /// The kernel could give so much without swapping, beyond the reserve for other programs.
    Free(Bytes),
    /// The limit of the process's cgroup leaves so much.
    Cgroup(Bytes),
    /// `RLIMIT_MEMLOCK`, which is below what the process would have locked then.
    Locked(Bytes),
    /// The kernel or the CUDA driver could not pin more.
    Pinned,
}

impl fmt::Display for HostLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capacity(bytes) => write!(f, "the configured size is {bytes}"),
            Self::Free(bytes) => write!(f, "{bytes} are free beyond the reserve for other programs"),
            Self::Cgroup(bytes) => write!(f, "the memory limit of the daemon's cgroup leaves {bytes}"),
            Self::Locked(bytes) => write!(f, "RLIMIT_MEMLOCK of the daemon is {bytes}; raise it"),
            Self::Pinned => f.write_str("the driver cannot pin more"),
        }
    }
}

/// The limit that stood in the way of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskLimit {
    /// The configured size of the disk tier.
    Capacity(Bytes),
    /// The file system has so much left.
    Free(Bytes),
    /// The quota of the daemon's user on that file system.
    Quota,
}

impl fmt::Display for DiskLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capacity(bytes) => write!(f, "the configured size is {bytes}"),
            Self::Free(bytes) => write!(f, "its file system has {bytes} free"),
            Self::Quota => f.write_str("the daemon's quota on its file system is used up"),
        }
    }
}

/// Why a copy or a digest failed. The source is unchanged; the content of the destination is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CopyError {
    #[error("cancelled")]
    Cancelled,
    /// The disk returned other bytes than were written. The content of this extent is lost, and of no other.
    #[error("extent {extent} is damaged on disk, in the 2 MiB at offset {}", .at.get())]
    Damaged { extent: ExtentId, at: Bytes },
    /// The range was never written, so nothing is lost.
    #[error("extent {extent} was never written at offset {}", .at.get())]
    Unwritten { extent: ExtentId, at: Bytes },
    #[error("cannot read extent {extent} at offset {}: {flaw}", .at.get())]
    Unreadable { extent: ExtentId, at: Bytes, flaw: DiskFlaw },
    #[error("cannot write extent {extent} at offset {}: {flaw}", .at.get())]
    Unwritable { extent: ExtentId, at: Bytes, flaw: DiskFlaw },
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl CopyError {
    /// Whether the content on disk is lost for good, and not only unreadable this time.
    pub fn is_loss(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Unreadable { flaw, .. } => flaw.is_of_medium(),
            Self::Cancelled | Self::Unwritten { .. } | Self::Unwritable { .. } | Self::Driver(_) => false,
        }
    }

    /// The disk extent that was read, if one was.
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
    /// The file ended after so many bytes.
    Short(Bytes),
    /// The kernel's `errno`.
    Failed(i32),
}

impl DiskFlaw {
    /// Whether the kernel blames the medium. ENODATA is an unreadable sector, EILSEQ and EBADMSG a sector with
    /// a wrong checksum, EUCLEAN a damaged file system. EIO can be anything, a cable too, and the next read may
    /// succeed.
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
            Self::Short(bytes) => write!(f, "the file ends after {} bytes", bytes.get()),
            Self::Failed(number) => write!(f, "{}", std::io::Error::from_raw_os_error(*number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bad_medium_loses_content() {
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
