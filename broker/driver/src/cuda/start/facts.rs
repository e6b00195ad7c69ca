//! Facts about driver and devices from the start, for operators.

use std::fmt;

use broker_platform::readings::DeviceReadings;
use vramd_types::HostNode;

use crate::cuda::start::probe::Version;

/// Whether fresh memory from the driver is known to be zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scrub {
    /// The driver zeroes released memory; tested on this device.
    Certain,
    /// It is not known to, for this reason. The daemon zeroes extents when it creates them.
    Zeroing(String),
}

/// Where the size of a context comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextSize {
    /// NVML lists the memory of this process.
    Listed,
    /// The device's use grew by so much when the context was made.
    Grown,
    /// Nothing could be measured: a usual value.
    Assumed,
}

/// The kind of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    /// The driver's own pinned memory, shared by descriptor.
    Numa,
    /// Memfds registered with the driver, if it has no such memory.
    Registered,
}

/// Facts of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    pub uuid: String,
    pub scrub: Scrub,
    pub context_size: ContextSize,
    /// Without NVML the device's use is read from CUDA.
    pub nvml: bool,
    /// Without the list the contexts of clients count as other programs' memory.
    pub lists_processes: bool,
    pub fixed: bool,
    /// Memory is created so that network cards can access it.
    pub rdma: bool,
    /// The nearest host node.
    pub host_node: HostNode,
    /// The attributes that tell the platform.
    pub readings: DeviceReadings,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaFacts {
    pub version: Version,
    /// Why NVML is not available.
    pub no_nvml: Option<String>,
    pub host: HostKind,
    /// Why links could not be measured.
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
