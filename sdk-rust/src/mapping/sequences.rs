//! The table's part for declared sequences: what the daemon told of each last.

use std::collections::BTreeMap;

use vramd_proto::v1::{self, sequence_progress::Step};

use super::{Ending, Table};
use crate::{error::Result, sequence::SequenceState};

/// The sequences whose handles exist.
#[derive(Debug, Default)]
pub(super) struct Sequences {
    last: u64,
    /// `None` until the daemon has answered.
    states: BTreeMap<u64, Option<SequenceState>>,
}

impl Sequences {
    /// The sequences that the daemon works ahead of, or may soon.
    pub(super) fn running(&self) -> impl Iterator<Item = u64> {
        let is_running =
            |state: &Option<SequenceState>| matches!(state, None | Some(SequenceState::Running(_)));
        self.states.iter().filter(move |(_, state)| is_running(state)).map(|(number, _)| *number)
    }

    /// Whether the daemon has answered.
    pub(super) fn check(&self, number: u64, ending: Option<&Ending>) -> Result<bool> {
        match (self.states.get(&number), ending) {
            (Some(Some(_)), _) => Ok(true),
            (_, Some(ending)) => Err(ending.error()),
            _ => Ok(false),
        }
    }
}

impl Table {
    /// Begins a sequence. Returns its number, which is greater than all before.
    pub(crate) fn open_sequence(&self) -> Result<u64> {
        let mut state = self.lock();
        if let Some(ending) = &state.ending {
            return Err(ending.error());
        }
        state.check_here()?;
        let sequences = &mut state.sequences;
        sequences.last += 1;
        sequences.states.insert(sequences.last, None);
        Ok(sequences.last)
    }

    /// Records what the daemon told of a sequence. One without a handle is of no interest.
    pub(crate) fn record_sequence(&self, progress: v1::SequenceProgress) {
        let mut state = self.lock();
        if let Some(known) = state.sequences.states.get_mut(&progress.sequence_id) {
            *known = progress.step.map(Step::into).or_else(|| known.take());
            self.changed.notify_all();
        }
    }

    /// Returns what the daemon told last, if it has answered. A sequence ends with its session.
    pub(crate) fn sequence_state(&self, number: u64) -> Result<Option<SequenceState>> {
        let state = self.lock();
        let told = state.sequences.states.get(&number).cloned().flatten();
        match &state.ending {
            Some(ending) if matches!(told, None | Some(SequenceState::Running(_))) => Err(ending.error()),
            _ => Ok(told),
        }
    }

    pub(crate) fn forget_sequence(&self, number: u64) {
        self.lock().sequences.states.remove(&number);
    }
}
