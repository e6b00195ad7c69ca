//! Why an extent could not be had, in the core's own terms. Refusals for users are made of it at the edge.

use vramd_types::{Bytes, DeviceIndex};

use crate::ledger::{Place, Shortage};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExtentError {
    /// The ledger admits no such bytes.
    Shortage { place: Place, shortage: Shortage, requested: Bytes },
    /// All devices together have as many extents as may exist.
    TooMany,
    /// The source of ids is used up.
    IdsExhausted,
    /// The driver had no memory, although the ledger had room.
    OutOfMemory { place: Place, requested: Bytes },
    /// The host or the disk had no room, although the ledger had. The text names the limit that was reached.
    OutOfRoom { place: Place, requested: Bytes, problem: String },
    /// The driver failed otherwise.
    DriverFailed { device: DeviceIndex, problem: String },
}
