//! Copies between extents: what is the same for every driver.
//!
//! ```text
//!  submit ─► Table: by id, how far it is, whether it is cancelled
//!    │
//!    └─► Lanes ── a queue for each direction of each device, and of the disk ──► lane::run, a thread each
//!                                                                 cuts into chunks, keeps a few of them
//!                                                                 under way, tells in the end
//!                                                                   └─► Link: the driver's own; moves a chunk
//! ```

pub(crate) mod lane;
mod lanes;
mod table;
mod waiting;

use vramd_types::{Bytes, ExtentId};

pub(crate) use self::{
    lane::Link,
    lanes::{Direction, Found, LaneEnd, LaneEnds, Lanes},
    table::{Asked, Table},
};
use crate::DriverError;

/// Whether so many bytes can be copied from the one to the other.
pub(crate) fn check(from: (ExtentId, Bytes), to: (ExtentId, Bytes), size: Bytes) -> Result<(), DriverError> {
    if from.0 == to.0 {
        return Err(DriverError::Failed(format!("{} cannot be copied onto itself", from.0)));
    }
    for (extent, has) in [from, to] {
        if size > has {
            let problem = format!("{extent} has {} bytes, not {}", has.get(), size.get());
            return Err(DriverError::Failed(problem));
        }
    }
    Ok(())
}

/// Memory would have to lie in between, and it is the caller's to say which.
pub(crate) fn both_on_disk(from: ExtentId, to: ExtentId) -> DriverError {
    DriverError::Failed(format!("{from} and {to} lie on disk: one is copied to memory first"))
}
