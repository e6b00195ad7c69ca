//! The handlers of events.
//!
//! Each folder owns one subject, and each file one step of it. Handlers change state only through the tables
//! and the ledger, and reach the world only through commands. Work that other subjects owe after a change
//! is done at the end of the event: handlers push facts, and [`follow_up`] has the table of what follows.
//!
//! - [`requests`]: what clients and operators ask for, what they are answered, and the views that they read
//! - [`allocation`]: an allocation from its request to the return of its memory
//! - [`mapping`]: which session maps which part: sending parts, revoking them, taking answers
//! - [`pins`]: pin calls, and what sessions say in their pin words
//! - [`line`]: the line of waiters for room on devices, and the choice of victims
//! - [`moves`]: parts that move between tiers, and the bytes that they own below their device
//! - [`node`]: sessions, deadlines, pressure, and the driver's reports
//! - [`follow_up`]: which work follows from which fact, in which order
//!
//! # A pin that meets a full device
//!
//! Read these module docs in this order.
//!
//! 1. `pins/pin_call.rs`: the client's pin call waits, since one of its parts lies in host memory.
//! 2. `line/wanted.rs`: the part enters the line of its device.
//! 3. `follow_up.rs`: at the end of the event the daemon scans the line.
//! 4. `line/scan.rs`: the scan finds no room for the part, so it plans evictions.
//! 5. `line/victims.rs`: the plan names cached extents and victims.
//! 6. `line/make_room.rs`: the plan is executed.
//! 7. `moves/migrate.rs`: each victim is evicted: revoked, then copied to its backing.
//! 8. `mapping/revocation.rs`: every mapper of the victim unmaps it.
//! 9. `moves/migration_end.rs`: the victim has left, and the driver releases its extent.
//! 10. `allocation/release.rs`: the driver returned the memory. The next scan starts the fetch, which ends in 9
//!     as well.
//! 11. `mapping/frames.rs`: the fetched part is sent to the session, which maps it.
//! 12. `pins/pin_call.rs`: the call has all its parts, and is answered.

mod allocation;
mod follow_up;
mod line;
mod mapping;
mod moves;
mod node;
mod pins;
mod requests;

pub(crate) use line::batch::{BatchRequest, WaitingBatch};
pub(crate) use node::{NodeState, timer::Timer};
pub(crate) use requests::{Requests, quota::QuotaChange};

use crate::{
    error::Refusal,
    tenancy::{OpKind, Outcome},
};

/// How far a request came in its first step.
pub(crate) enum Started {
    Done(Outcome),
    /// The operation waits under the id that it was given.
    Waiting(OpKind),
}

pub(crate) type Start = Result<Started, Refusal>;
