//! How a driver fails.

use std::fmt;

use thiserror::Error;
use vramd_types::Bytes;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DriverError {
    /// An ordinary event: something else has the memory.
    #[error("out of memory")]
    OutOfMemory,
    /// As ordinary, of the host.
    #[error("out of host memory: {0}")]
    OutOfHostMemory(HostLimit),
    #[error("{0}")]
    Failed(String),
}

/// What stood in the way of memory of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostLimit {
    /// All that was configured.
    Capacity(Bytes),
    /// So much the kernel could give without swapping.
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
            Self::Free(bytes) => write!(f, "{} bytes of it are free", bytes.get()),
            Self::Cgroup(bytes) => write!(f, "its cgroup's limit leaves {} bytes", bytes.get()),
            Self::Locked(bytes) => write!(f, "RLIMIT_MEMLOCK is {} bytes", bytes.get()),
            Self::Pinned => f.write_str("no more can be pinned"),
        }
    }
}

/// Why a copy has not ended well. The source is as it was; of the destination nothing is known.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CopyError {
    #[error("cancelled")]
    Cancelled,
    #[error(transparent)]
    Driver(#[from] DriverError),
}
