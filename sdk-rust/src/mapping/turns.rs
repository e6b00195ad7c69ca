//! The table's part for turns: what the daemon told of each working set and of each turn.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use vramd_proto::v1::{self, turn_progress::Step};
use vramd_types::Reason;

use super::{Ending, Table};
use crate::error::{Error, Result};

/// The working sets and turns whose handles exist.
#[derive(Debug, Default)]
pub(super) struct Turns {
    last_set: u64,
    /// `None` until the daemon has answered.
    sets: BTreeMap<u64, Option<Result<()>>>,
    last_turn: u64,
    turns: BTreeMap<u64, Progress>,
}

/// How far a turn is, by the daemon's last frame about it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Progress {
    Waiting,
    Granted,
    /// The daemon asks for the turn, and takes it for overdue from then on.
    Ending {
        overdue_at: Instant,
    },
    Refused(Error),
}

impl Turns {
    /// Whether the session has a turn or waits for one.
    pub(super) fn has_turn(&self) -> bool {
        self.turns.values().any(|progress| !matches!(progress, Progress::Refused(_)))
    }

    /// Whether the daemon has answered a set.
    pub(super) fn check_set(&self, number: u64, ending: Option<&Ending>) -> Result<bool> {
        match (self.sets.get(&number), ending) {
            (Some(Some(answer)), _) => answer.clone().map(|()| true),
            (_, Some(ending)) => Err(ending.error()),
            _ => Ok(false),
        }
    }

    /// Whether a turn is granted; an error if it never will be.
    pub(super) fn check_granted(&self, number: u64, ending: Option<&Ending>) -> Result<bool> {
        match (self.turns.get(&number), ending) {
            (Some(Progress::Refused(error)), _) => Err(error.clone()),
            (Some(Progress::Granted | Progress::Ending { .. }), _) => Ok(true),
            (_, Some(ending)) => Err(ending.error()),
            _ => Ok(false),
        }
    }

    /// Whether the daemon has asked for a turn back, or the program has yielded it; an error once the session has ended.
    pub(super) fn check_ending(&self, number: u64, ending: Option<&Ending>) -> Result<bool> {
        match (self.turns.get(&number), ending) {
            (_, Some(ending)) => Err(ending.error()),
            (Some(Progress::Ending { .. }) | None, _) => Ok(true),
            _ => Ok(false),
        }
    }
}

impl Table {
    /// Begins a working set. Returns its number, which is greater than all before.
    pub(crate) fn open_working_set(&self) -> Result<u64> {
        let mut state = self.lock();
        if let Some(ending) = &state.ending {
            return Err(ending.error());
        }
        if !state.words.is_shared() {
            return Err(Error::refused(Reason::KindUnsupported, &[("kind", &"working sets of")]));
        }
        state.check_here()?;
        let turns = &mut state.turns;
        turns.last_set += 1;
        turns.sets.insert(turns.last_set, None);
        Ok(turns.last_set)
    }

    /// Begins a turn. Returns its number, which is greater than all before.
    pub(crate) fn open_turn(&self) -> Result<u64> {
        let mut state = self.lock();
        if let Some(ending) = &state.ending {
            return Err(ending.error());
        }
        state.check_here()?;
        let turns = &mut state.turns;
        turns.last_turn += 1;
        turns.turns.insert(turns.last_turn, Progress::Waiting);
        Ok(turns.last_turn)
    }

    /// Records the daemon's answer to a working set. One without a handle is of no interest.
    pub(crate) fn record_working_set(&self, answer: v1::WorkingSetAnswer) {
        let mut state = self.lock();
        if let Some(known) = state.turns.sets.get_mut(&answer.set_id) {
            *known = Some(answer.refused.map_or(Ok(()), |refused| Err(refused.into())));
            self.changed.notify_all();
        }
    }

    /// Records what became of a turn. One without a handle is of no interest.
    pub(crate) fn record_turn(&self, progress: v1::TurnProgress) {
        let mut state = self.lock();
        let Some(known) = state.turns.turns.get_mut(&progress.turn_id) else { return };
        match progress.step {
            Some(Step::Granted(_)) => *known = Progress::Granted,
            Some(Step::Ending(it)) => *known = Progress::Ending { overdue_at: after(it.deadline_ms) },
            Some(Step::Refused(refused)) => *known = Progress::Refused(refused.into()),
            None => return,
        }
        self.changed.notify_all();
    }

    /// Returns how far a turn is. After the end of the session nothing changes any more, and the error says why.
    pub(crate) fn turn_progress(&self, number: u64) -> Result<Progress> {
        let state = self.lock();
        match &state.ending {
            Some(ending) => Err(ending.error()),
            None => Ok(state.turns.turns.get(&number).cloned().unwrap_or(Progress::Waiting)),
        }
    }

    pub(crate) fn forget_working_set(&self, number: u64) {
        self.lock().turns.sets.remove(&number);
    }

    pub(crate) fn forget_turn(&self, number: u64) {
        self.lock().turns.turns.remove(&number);
        // Another thread may wait until the daemon asks for it.
        self.changed.notify_all();
    }
}

/// The time so many milliseconds from now. One beyond the clock's range is as good as never.
fn after(milliseconds: u64) -> Instant {
    const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + Duration::from_millis(milliseconds).min(NEVER)
}
