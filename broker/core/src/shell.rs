//! The edge to the shell that drives the core: the time that it was told, the deadlines that it is asked for, and
//! the commands that it is given.

use std::collections::{BTreeSet, VecDeque};

use vramd_types::{DeviceIndex, SessionId};

use crate::{command::Command, event::PartRef, observed::Transitions, tenancy::OpId, time::Time};

#[derive(Debug)]
pub(crate) struct Shell {
    /// The time of the event.
    pub(crate) now: Time,
    /// Deadlines, by time and then by kind.
    pub(crate) timers: BTreeSet<(Time, Timer)>,
    /// Commands that the shell has not taken yet.
    pub(crate) outbox: VecDeque<Command>,
    /// How many invariants were found violated.
    pub(crate) violations: u64,
    pub(crate) transitions: Transitions,
}

impl Shell {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            now,
            timers: BTreeSet::new(),
            outbox: VecDeque::new(),
            violations: 0,
            transitions: Transitions::default(),
        }
    }
}

/// The work that is due at a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The next deadline of a session.
    Session(SessionId),
    /// The regular survey of all devices.
    Survey,
    /// The pressure of all places is sampled.
    Pressure,
    /// Cached memory of a tenant has stayed long enough.
    Cached,
    /// A fence has lasted long enough.
    Fence(PartRef),
    /// A batch has waited for room long enough.
    Wait(OpId),
    /// A pin call has waited long enough.
    Pin(SessionId, u64),
    /// A pin call may have stalled.
    Stall(SessionId, u64),
    /// An operator's call goes on with the next of its parts.
    Parts(OpId),
    /// More parts that are no longer advised can be unmapped in place.
    InPlaceUnmaps,
    /// Queued prefetch requests are tried again.
    Prefetch,
    /// A hopeless waiter begins to let others pass.
    Pass,
    /// A turn has lasted long enough, or waited long enough.
    Turns,
    /// More parts of a device can get backing.
    Backing(DeviceIndex),
}
