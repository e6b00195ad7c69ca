//! Copies between extents: the parts that every driver shares.
//!
//! ```text
//!  submit ─► Table: progress of each copy, whether it is cancelled
//!    │
//!    └─► Lanes ── a queue for each direction of each device, and of the disk ──► lane::run, a thread each
//!                                                                 cuts copies into chunks, keeps a few
//!                                                                 in flight, reports at the end
//!                                                                   ├─► Links: which class goes next, and whether now
//!                                                                   └─► Mover: the driver's own; moves a chunk
//! ```

pub(crate) mod lane;
mod lanes;
mod links;
mod queue;
mod table;

use std::fmt;

use vramd_types::{Bytes, DeviceIndex, ExtentId};

pub(crate) use self::{
    lane::Mover,
    lanes::{Direction, LaneEnd, LaneEnds, Lanes, Located},
    links::{Links, shared_link},
    table::{RequestedCopy, Table},
};
use crate::DriverError;

/// A queue of copies in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneId {
    /// From the host to this device.
    ToDevice(DeviceIndex),
    /// From this device to the host.
    FromDevice(DeviceIndex),
    /// From this device to a device, perhaps itself.
    BetweenDevices(DeviceIndex),
    WithinHost,
    FromDisk,
    ToDisk,
}

impl LaneId {
    /// The device of the lane; none for lanes of the disk or within the host.
    pub fn device(self) -> Option<DeviceIndex> {
        match self {
            Self::ToDevice(device) | Self::FromDevice(device) | Self::BetweenDevices(device) => Some(device),
            Self::WithinHost | Self::FromDisk | Self::ToDisk => None,
        }
    }
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ToDevice(device) => write!(f, "to device {device}"),
            Self::FromDevice(device) => write!(f, "from device {device}"),
            Self::BetweenDevices(device) => write!(f, "between devices, from {device}"),
            Self::WithinHost => f.write_str("within the host"),
            Self::FromDisk => f.write_str("from disk"),
            Self::ToDisk => f.write_str("to disk"),
        }
    }
}

/// Checks that so many bytes can be copied from one extent to the other.
pub(crate) fn check(from: (ExtentId, Bytes), to: (ExtentId, Bytes), size: Bytes) -> Result<(), DriverError> {
    if from.0 == to.0 {
        return Err(DriverError::Failed(format!("extent {} cannot be copied onto itself", from.0)));
    }
    for (extent, has) in [from, to] {
        if size > has {
            let problem = format!("extent {extent} has {} bytes, {} were requested", has.get(), size.get());
            return Err(DriverError::Failed(problem));
        }
    }
    Ok(())
}

/// The caller must choose the memory between the two.
pub(crate) fn both_on_disk(from: ExtentId, to: ExtentId) -> DriverError {
    DriverError::Failed(format!("extents {from} and {to} both lie on disk: copy through memory"))
}
