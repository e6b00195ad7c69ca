//! Working sets, and the turns of sessions on them. See `handler/turns` for the steps.
//!
//! A working set is a group of allocations that a program uses together. A session that has the turn of a set has all
//! its parts on the device until it yields. Turns take time only where sets do not fit together:
//!
//! ```text
//!   requested        admitted           granted              asked to yield      yielded
//!       │  waits for   │  hand-over:       │  the quantum        │  grace           │
//!       │  its turn    │  parts come       │                     │                  │
//! ```
//!
//! From the admission on the turn is a pin call of the daemon's own over all parts of the set. So the line makes room
//! for it, and its answer is the grant: no turn is granted before its parts are there.

mod order;
mod table;

use std::{sync::Arc, time::Duration};

use vramd_types::{AllocationId, Bytes, DeviceIndex, SessionId};

use crate::{error::Refusal, tenancy::TenantId, time::Time};

pub(crate) use order::divide;
pub(crate) use table::Turns;

/// A working set, by its session and the number that the client gave it.
pub(crate) type SetId = (SessionId, u64);

/// A working set as its client declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkingSetSpec {
    /// Unique in the session.
    pub name: String,
    /// Movable allocations of one device, which the session maps.
    pub allocations: Vec<AllocationId>,
}

/// How a turn stands, as its client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnState {
    /// All parts of the set are mapped, and stay until the client yields.
    Granted,
    /// The daemon asks the client to yield, maybe not for the first time. After this time the turn is overdue.
    Ending { within: Duration },
    /// The turn is not granted.
    Refused(Refusal),
}

/// How a granted turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TurnEnd {
    /// The client yielded, or ended the set.
    Yielded,
    /// The session ended, or lost its channel.
    SessionEnded,
}

/// How far the turn of a working set is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TurnPhase {
    /// The session wants no turn of this set.
    Idle,
    /// It waits until its set fits beside those of the owners.
    Waiting,
    /// It is admitted, and its parts are coming.
    HandOver,
    Owned,
    /// The client was asked to yield.
    Ending,
    /// The client did not yield in time.
    Overdue,
}

impl TurnPhase {
    /// First the one that comes first.
    pub const ALL: [Self; 6] =
        [Self::Idle, Self::Waiting, Self::HandOver, Self::Owned, Self::Ending, Self::Overdue];

    /// The name in messages and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Waiting => "waiting",
            Self::HandOver => "hand-over",
            Self::Owned => "owned",
            Self::Ending => "ending",
            Self::Overdue => "overdue",
        }
    }

    /// Whether the set has a place on the device: its parts are there, or are coming.
    pub const fn is_admitted(self) -> bool {
        matches!(self, Self::HandOver | Self::Owned | Self::Ending | Self::Overdue)
    }

    /// Whether the client has the turn.
    pub const fn is_granted(self) -> bool {
        matches!(self, Self::Owned | Self::Ending | Self::Overdue)
    }
}

/// A working set as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkingSetView {
    pub session: SessionId,
    pub tenant: Arc<str>,
    /// The UUID.
    pub device: String,
    /// The client's number.
    pub number: u64,
    pub name: Arc<str>,
    pub allocations: usize,
    pub bytes: Bytes,
    pub phase: TurnPhase,
    /// Since when it is in that phase; none if it is idle.
    pub since: Option<Time>,
    /// The number of turns that were granted.
    pub turns: u64,
    /// The time of all its granted turns together.
    pub held: Duration,
}

/// A working set that has not ended.
#[derive(Debug)]
pub(crate) struct WorkingSet {
    /// The tenant of the session.
    pub(crate) tenant: TenantId,
    pub(crate) device: DeviceIndex,
    pub(crate) name: Arc<str>,
    /// The allocations in order, each once. Some may have been freed meanwhile.
    pub(crate) members: Vec<AllocationId>,
    /// The number of turns that were granted.
    pub(crate) granted: u64,
    /// The time of all granted turns that have ended.
    pub(crate) held: Duration,
}

/// The request of an owner to yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) at: Time,
    /// An operator asked, whether another turn waits or not. Its process is not killed for that.
    pub(crate) by_operator: bool,
    /// It was reported that the client did not yield in time.
    pub(crate) is_overdue: bool,
    /// Its process was killed for that.
    pub(crate) is_killed: bool,
}

/// How far a turn is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Waiting,
    HandOver { admitted: Time },
    Held { granted: Time, asked: Option<Asked> },
}

/// The turn that a session wants or has. A session has one at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// The client's number.
    pub(crate) number: u64,
    /// The client's number for the set.
    pub(crate) set: u64,
    pub(crate) tenant: TenantId,
    pub(crate) device: DeviceIndex,
    /// Greater than that of each earlier turn.
    pub(crate) arrival: u64,
    pub(crate) requested: Time,
    /// When it is refused, if it is not granted by then.
    pub(crate) until: Option<Time>,
    pub(crate) stage: Stage,
    /// How many parts of its set were there, or were brought, while it waited.
    pub(crate) looked_at: usize,
}

impl Turn {
    pub(crate) const fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting)
    }

    /// Since when the client has the turn.
    pub(crate) const fn granted(&self) -> Option<Time> {
        match self.stage {
            Stage::Held { granted, .. } => Some(granted),
            Stage::Waiting | Stage::HandOver { .. } => None,
        }
    }

    pub(crate) const fn asked(&self) -> Option<Asked> {
        match self.stage {
            Stage::Held { asked, .. } => asked,
            Stage::Waiting | Stage::HandOver { .. } => None,
        }
    }

    /// Whether it is asked to yield for a turn or a waiter.
    pub(crate) fn is_asked_for_others(&self) -> bool {
        self.asked().is_some_and(|asked| !asked.by_operator)
    }

    /// Its phase, and since when.
    pub(crate) const fn phase(&self) -> (TurnPhase, Time) {
        match self.stage {
            Stage::Waiting => (TurnPhase::Waiting, self.requested),
            Stage::HandOver { admitted } => (TurnPhase::HandOver, admitted),
            Stage::Held { granted, asked: None } => (TurnPhase::Owned, granted),
            Stage::Held { asked: Some(asked), .. } if asked.is_overdue => (TurnPhase::Overdue, asked.at),
            Stage::Held { asked: Some(asked), .. } => (TurnPhase::Ending, asked.at),
        }
    }
}
