//! The edge to the shell that drives the core: the time that it was told, the deadlines that it is asked for, and
//! the commands that it is given.

use std::collections::{BTreeSet, VecDeque};

use crate::{command::Command, handler::Timer, observed::Transitions, time::Time};

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
