//! Parts on their way between tiers. See [`MigrationState`] for how one goes.

mod backing;
mod line;
mod missing_backings;
mod state;
mod write_back;

use std::collections::BTreeMap;

use vramd_types::ExtentId;

pub(crate) use backing::{Backing, BackingAccount, BackingSum, Backings};
pub(crate) use line::{LastScan, Line, LineEntry, Position, Waiter};
pub(crate) use missing_backings::MissingBackings;
pub(crate) use state::MigrationStep;
pub use state::{MigrationEvent, MigrationState};
pub(crate) use write_back::{WriteBack, WriteBacks};
pub use write_back::{WriteBackEvent, WriteBackState};

use crate::{
    collections::Few,
    command::PartMove,
    event::{PartRef, Tier},
    tenancy::{Arrival, OpId},
    time::Time,
};

/// Why a part moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Somebody wants it on its device, or wants the room that it takes there.
    Demand,
    /// Its content is copied below ahead of need, and it stays where it is.
    WriteBack,
    /// Its tenant holds more on the device than its limit is now.
    Rebalance,
    /// The tier that it lies in is full, and nobody has used it for long.
    Pressure,
    /// An operator said so.
    Operator,
}

#[derive(Debug)]
pub(crate) struct Migration {
    /// Where it goes. Where it comes from is the part's own extent until it is there.
    pub(crate) to: ExtentId,
    /// The tier that it comes from.
    pub(crate) from_tier: Tier,
    pub(crate) to_tier: Tier,
    pub(crate) cause: Cause,
    pub(crate) since: Time,
    pub(crate) state: MigrationState,
    /// The destination has been made.
    pub(crate) is_made: bool,
    /// The destination holds what the part holds, or should where that is checked first: it need not be copied.
    pub(crate) clean: bool,
    /// Nobody maps the part, and nobody will until this is over.
    pub(crate) is_unmapped: bool,
    /// Somebody waits for it, or for its room.
    pub(crate) awaited: bool,
    /// When who needs its room came.
    pub(crate) for_arrival: Option<Arrival>,
    /// How often it was tried, since the driver had no memory, though nothing had left.
    pub(crate) vain_tries: u32,
    /// Why it was given up, once it was.
    pub(crate) stopped: Option<PartMove>,
    /// Operations that wait for it to be over.
    pub(crate) ops: Few<OpId>,
}

pub(crate) type Migrations = BTreeMap<PartRef, Migration>;
