//! The handlers of events.
//!
//! Each folder owns one subject, and each file one step of it. Handlers change state only through the tables
//! and the ledger, and reach the world only through commands.
//!
//! A folder calls only folders above it in this list, so no cycle of calls is larger than one folder:
//!
//! - [`shared`]: questions and notes of more than one subject
//! - [`calls`]: answers to calls, and the views that they show
//! - [`extents`]: extents that are ordered, cached and released, and the backing of parts
//! - [`mapping`]: which session maps which part: sending parts, revoking them
//! - [`moves`]: parts that move between tiers
//! - [`line`]: the line of waiters for room on devices, and the choice of victims
//! - [`prefetch`]: parts that clients ask for ahead of their use
//! - [`sequence`]: the order in which clients will use parts, and the requests ahead of it
//! - [`pins`]: pin calls, and the use of parts that sessions write into their pin words
//! - [`turns`]: working sets, and turns of sessions on them
//! - [`allocation`]: an allocation from its request to the return of its memory
//! - [`after_revocation`], [`scan`]: a revocation that has ended; the walk along the line
//! - [`requests`], [`node`]: requests of clients and operators; sessions, frames, surveys and pressure
//! - [`completion`], [`timers`], [`follow_up`]: the driver's reports, deadlines, and follow-up work, each handed
//!   to its subject
//!
//! A lower folder that has news for a higher one leaves a report or pushes a fact. [`follow_up`] has the table of
//! the work that follows.
//!
//! # A pin that meets a full device
//!
//! Read these module docs in this order.
//!
//! 1. `pins/pin_call.rs`: the client's pin call waits, since one of its parts lies in host memory.
//! 2. `line/wanted.rs`: the part enters the line of its device.
//! 3. `follow_up.rs`: at the end of the event the daemon scans the line.
//! 4. `scan/mod.rs`: the scan finds no room for the part, so it plans evictions.
//! 5. `line/victims.rs`: the plan names cached extents and victims.
//! 6. `line/make_room.rs`: the plan is executed.
//! 7. `moves/migrate.rs`: each victim is evicted. `mapping/revocation.rs` has every mapper unmap it, and the
//!    driver copies it to its backing.
//! 8. `moves/migration_end.rs`: the victim has left, and the driver releases its extent. The next scan starts the
//!    fetch, which ends here as well.
//! 9. `mapping/frames.rs`: the fetched part is sent to the session, which maps it. The call has all its parts, and
//!    is answered.

mod after_revocation;
mod allocation;
mod calls;
mod completion;
mod extents;
mod follow_up;
mod line;
mod mapping;
#[cfg(feature = "planted")]
mod mistakes;
mod moves;
mod node;
mod pins;
mod prefetch;
mod requests;
mod scan;
mod sequence;
mod shared;
mod timers;
mod turns;

pub(crate) use node::NodeState;
pub(crate) use requests::Requests;

use crate::{error::Refusal, ops::OpKind, tenancy::Outcome};

/// How far a request came in its first step.
pub(crate) enum Started {
    Done(Outcome),
    /// The operation waits under the id that it was given.
    Waiting(OpKind),
}

pub(crate) type Start = Result<Started, Refusal>;
