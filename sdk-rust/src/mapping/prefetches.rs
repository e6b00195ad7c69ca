//! The table's part for prefetch requests: how far each is, as the daemon reported last.

use std::collections::BTreeMap;

use vramd_proto::v1::{self, prefetch_progress::Step};

use super::{Ending, Table};
use crate::{
    error::{Error, Result},
    prefetch::PrefetchState,
};

/// The requests whose handles exist.
#[derive(Debug, Default)]
pub(super) struct Prefetches {
    last: u64,
    /// `None` until the daemon has answered.
    states: BTreeMap<u64, Option<PrefetchState>>,
}

impl Prefetches {
    /// Whether the daemon has answered, and with `settled` whether the parts are there or will not come.
    pub(super) fn check(&self, number: u64, settled: bool, ending: Option<&Ending>) -> Result<bool> {
        match (self.states.get(&number).and_then(Option::as_ref), ending) {
            (Some(state), _) if !settled || !state.is_pending() => Ok(true),
            (_, Some(ending)) => Err(ending.error()),
            _ => Ok(false),
        }
    }
}

impl Prefetches {
    /// The requests that may still bring something.
    pub(super) fn pending(&self) -> Vec<u64> {
        let is_pending = |state: &Option<PrefetchState>| state.as_ref().is_none_or(PrefetchState::is_pending);
        self.states.iter().filter(|(_, state)| is_pending(state)).map(|(number, _)| *number).collect()
    }
}

impl Table {
    /// Begins a request. Returns its number, which is greater than all before.
    pub(crate) fn open_prefetch(&self) -> Result<u64> {
        let mut state = self.lock();
        if let Some(ending) = &state.ending {
            return Err(ending.error());
        }
        if !state.words.is_shared() {
            return Err(Error::refused(vramd_types::Reason::KindUnsupported, &[("kind", &"prefetched")]));
        }
        state.check_here()?;
        let prefetches = &mut state.prefetches;
        prefetches.last += 1;
        prefetches.states.insert(prefetches.last, None);
        Ok(prefetches.last)
    }

    /// Records how far a request is. One without a handle is of no interest.
    pub(crate) fn record_prefetch(&self, progress: v1::PrefetchProgress) {
        let mut state = self.lock();
        if let Some(known) = state.prefetches.states.get_mut(&progress.prefetch_id) {
            *known = progress.step.map(Step::into).or_else(|| known.take());
            self.changed.notify_all();
        }
    }

    /// Returns how far a request is, if the daemon has answered it. One that was pending when its session ended fails.
    pub(crate) fn prefetch_state(&self, number: u64) -> Result<Option<PrefetchState>> {
        let state = self.lock();
        let reached = state.prefetches.states.get(&number).cloned().flatten();
        match &state.ending {
            Some(ending) if reached.as_ref().is_none_or(PrefetchState::is_pending) => Err(ending.error()),
            _ => Ok(reached),
        }
    }

    pub(crate) fn forget_prefetch(&self, number: u64) {
        self.lock().prefetches.states.remove(&number);
    }
}
