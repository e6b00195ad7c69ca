//! What was found out about driver and devices at the start, for operators.

use std::fmt;

use vramd_types::HostNode;

use crate::cuda::start::probe::Version;

/// Whether memory that comes from the driver is known to be zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scrub {
    /// The driver zeroes what is released; looked at on this device.
    Certain,
    /// It is not known to, for this reason, so extents are zeroed as they are made.
    Zeroing(String),
}

/// Where the size of a context comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextSize {
    /// NVML lists what this process takes.
    Listed,
    /// The device's use grew by so much when the context was made.
    Grown,
    /// Nothing could be measured: what is usual.
    Assumed,
}

/// What memory of the host is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    /// The driver's own pinned memory, which goes by descriptor.
    Numa,
    /// Memfds that are registered with the driver, where it has no such.
    Registered,
}

/// Of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    pub uuid: String,
    pub scrub: Scrub,
    pub context_size: ContextSize,
    /// Without it the device's use is read from CUDA.
    pub nvml: bool,
    /// Without it the contexts of clients are taken for outsiders' memory.
    pub lists_processes: bool,
    pub fixed: bool,
    /// Memory is made so that network cards can reach it.
    pub rdma: bool,
    /// The piece of the host's memory that is nearest.
    pub host_node: HostNode,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaFacts {
    pub version: Version,
    /// Why NVML is not there, if it is not.
    pub no_nvml: Option<String>,
    pub host: HostKind,
    /// Why links could not be measured, if they could not.
    pub unmeasured: Option<String>,
    pub devices: Vec<DeviceFacts>,
}

impl fmt::Display for Scrub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certain => f.write_str("certain"),
            Self::Zeroing(why) => write!(f, "not certain, zeroing: {why}"),
        }
    }
}

impl fmt::Display for HostKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Numa => "HOST_NUMA",
            Self::Registered => "registered memfds",
        })
    }
}

impl fmt::Display for ContextSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Listed => "listed by NVML",
            Self::Grown => "measured by the device's use",
            Self::Assumed => "assumed",
        })
    }
}
