//! The ends of moves, in the core's own terms. Outcomes for operators are made of them at the edge.

use vramd_types::ExtentId;

use super::Cause;
use crate::{
    command::PartRevocation,
    event::{PartRef, Tier},
    eviction::EvictionReason,
    placement::PlacementSum,
    pool::ExtentError,
    tenancy::TenantId,
    time::Time,
};

/// Why a move cannot begin, or failed.
#[derive(Clone, Debug)]
pub(crate) enum MoveError {
    /// Its destination could not be had.
    Extent(ExtentError),
    /// The allocation is gone.
    Gone,
    /// There is no tier below the device.
    NoTierBelow,
    /// The driver could not copy.
    CopyFailed { problem: String },
    /// The bytes on disk differ from those written.
    ContentLost { problem: String },
}

impl From<ExtentError> for MoveError {
    fn from(error: ExtentError) -> Self {
        Self::Extent(error)
    }
}

impl MoveError {
    /// Whether the driver had no memory for the destination.
    pub(crate) const fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Extent(ExtentError::OutOfMemory { .. } | ExtentError::OutOfRoom { .. }))
    }
}

/// Why a part stays where it is.
#[derive(Clone, Debug)]
pub(crate) enum Stop {
    /// Not every session can unmap it.
    InUse(PartRevocation),
    /// A client wants it, or another move goes first.
    Wanted,
    /// An operator holds it on its device.
    Held,
    /// Its allocation was freed.
    Freed,
    Failed(MoveError),
}

/// The end of a migration, for everything that waited for it.
#[derive(Debug)]
pub(crate) struct MoveReport {
    pub(crate) part: PartRef,
    pub(crate) end: MoveEnd,
    /// The extent on its device in which it stays after all.
    pub(crate) stays: Option<ExtentId>,
    pub(crate) cause: Cause,
    /// When its copy began, if it was copied.
    pub(crate) copied_since: Option<Time>,
    /// The tenant of a waiter that the part left for, if it left for one.
    pub(crate) left_for: Option<TenantId>,
    pub(crate) from: Tier,
    /// Why it was chosen to leave its device, if it was.
    pub(crate) reason: Option<EvictionReason>,
    /// The sum by which it moved to its device, if there was one.
    pub(crate) sum: Option<PlacementSum>,
    /// A client waited for it.
    pub(crate) awaited: bool,
}

#[derive(Debug)]
pub(crate) enum MoveEnd {
    /// The part is at its destination.
    Arrived,
    /// The part is where it was, and nothing is wrong with it.
    Stayed,
    /// The part could not come to its device for lack of memory at the driver, after so many tries.
    OutOfMemory { vain_tries: u32 },
    /// The part could not come to its device.
    NotFetched(MoveError),
    /// The part could not leave its device, or move between the tiers below.
    NotLeft,
    /// The content of the part is lost.
    Lost(MoveError),
}
