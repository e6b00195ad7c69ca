//! What each event does.
//!
//! - [`requests`]: requests and answers: what clients and operators ask for, and the views they read
//! - [`allocation`]: an allocation from its request to the return of its memory
//! - [`mapping`]: which session maps which part: sending parts, revoking them, taking answers
//! - [`pins`]: pin calls, and what pin words tell
//! - [`line`]: the line of waiters for room on devices
//! - [`moves`]: parts that move between tiers, and their bytes below the device
//! - [`node`]: sessions, time, pressure and the driver's reports

mod allocation;
mod line;
mod mapping;
mod moves;
mod node;
mod pins;
mod requests;

pub(crate) use line::{
    batch::{BatchRequest, WaitingBatch},
    make_room::AwaitedRoom,
};
pub(crate) use mapping::fd_budget::FdBudget;
pub(crate) use node::{follow_up::FollowUps, survey::Surveys, timer::Timer};
pub(crate) use requests::quota::{QuotaChange, QuotaQueue};

use crate::{
    error::Refusal,
    tenancy::{OpKind, Outcome},
};

/// How far a request got at once.
pub(crate) enum Started {
    Done(Outcome),
    /// Waits, under the operation's id that it was given.
    Waiting(OpKind),
}

pub(crate) type Start = Result<Started, Refusal>;
