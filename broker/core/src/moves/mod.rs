//! Moves: migrations of parts between tiers, write-backs, and backings. See [`MigrationState`] for the life of a
//! migration.

mod backing;
mod missing_backings;
mod outcome;
mod state;
mod write_back;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use smallvec::SmallVec;
use vramd_types::{AllocationId, ExtentId, SessionId};

pub(crate) use backing::{Backing, BackingAccount, BackingSum, Backings};
pub(crate) use missing_backings::MissingBackings;
pub(crate) use outcome::{MoveEnd, MoveError, MoveReport, Stop};
pub(crate) use state::MigrationStep;
pub use state::{MigrationEvent, MigrationState};
pub(crate) use write_back::{WriteBack, WriteBacks};
pub use write_back::{WriteBackEvent, WriteBackState};

use crate::{
    event::{PartRef, Tier},
    tenancy::{Arrival, OpId},
    time::Time,
};

/// The cause of a migration or write-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// A client wants the part on its device, or a waiter needs the room that it takes there.
    Demand,
    /// The part is written back ahead of need, and stays where it is.
    WriteBack,
    /// The tenant's charge on the device exceeds its limit.
    Rebalance,
    /// The part's tier is full and the part is cold.
    Pressure,
    /// An operator asked for it.
    Operator,
}

#[derive(Debug)]
pub(crate) struct Migration {
    /// The destination. The source is the part's own extent until the migration is done.
    pub(crate) to: ExtentId,
    /// The tier that the part leaves.
    pub(crate) from_tier: Tier,
    pub(crate) to_tier: Tier,
    pub(crate) cause: Cause,
    pub(crate) since: Time,
    pub(crate) state: MigrationState,
    /// The destination has been created.
    pub(crate) is_made: bool,
    /// The destination has the part's bytes, so no copy is needed, or only a comparison where that is
    /// configured.
    pub(crate) clean: bool,
    /// No session maps the part, and none will until the migration ends.
    pub(crate) is_unmapped: bool,
    /// A client waits for the part, or a waiter for its room.
    pub(crate) awaited: bool,
    /// The arrival of the waiter that needs the part's room.
    pub(crate) for_arrival: Option<Arrival>,
    /// How often the fetch was retried for lack of driver memory without a release in between.
    pub(crate) vain_tries: u32,
    /// Why the migration was stopped, if it was.
    pub(crate) stopped: Option<Stop>,
    /// Operations that wait for its end.
    pub(crate) ops: SmallVec<[OpId; 2]>,
}

pub(crate) type Migrations = BTreeMap<PartRef, Migration>;

/// Everything about parts that move, may move, or have bytes below their device.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    pub(crate) migrations: Migrations,
    pub(crate) write_backs: WriteBacks,
    /// Migrations that have ended, for `handler/allocation/after_move.rs`.
    pub(crate) ended: VecDeque<MoveReport>,
    /// The backing of each part that lies on its device.
    pub(crate) backings: Backings,
    /// Extents of an allocation that none of its parts lies in: destinations of moves, backings, and extents
    /// that parts have left.
    pub(crate) detached_extents: BTreeMap<AllocationId, BTreeSet<ExtentId>>,
    /// Sessions that wait for a part that they attached to arrive on its device.
    pub(crate) attach_waiters: BTreeMap<PartRef, BTreeSet<SessionId>>,
    /// Parts that a device must no longer access in host memory, and that may still be mapped there.
    pub(crate) in_place_to_unmap: BTreeSet<PartRef>,
    /// How often each discardable part was dropped.
    pub(crate) drop_counts: BTreeMap<PartRef, u64>,
    /// Parts under an operator hold: they stay on their devices.
    pub(crate) operator_holds: BTreeSet<PartRef>,
}
