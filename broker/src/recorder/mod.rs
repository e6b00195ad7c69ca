//! Records what happens to parts, for replays with other eviction policies.
//!
//! ```text
//!   reactor ── events, commands ──▶ Recorder ──▶ records, up to a bound ──▶ SaveTrace
//! ```
//!
//! The reactor passes on what it sees anyway, and looks at one flag while nothing is recorded. A recording that has its
//! maximum of records ends, so that a trace is complete from its beginning: without the parts that were there at first,
//! later records mean nothing. It has no content of memory and no name of an allocation.
//!
//! The memory of a recording is bounded by its records, and by the parts that the core has.

mod recording;
#[cfg(test)]
mod tests;

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use broker_core::{AllocationState, AllocationView, Broker, Command, Event, Target, Time};
use broker_replay::End;
use vramd_types::AllocationId;

use self::recording::Recording;
pub use self::recording::{FinishedTrace, Pieces};
use crate::reactor::{Clock, Inbox};

/// Parts of one look at the broker: the whole node waits for it.
const PARTS_PER_READ: usize = 1000;

/// Clones are the same.
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Clock,
    records_max: usize,
    /// Whether the state is `Recording`, to be read without the lock.
    is_recording: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Nothing,
    Recording(Box<Recording>),
    Finished(Arc<FinishedTrace>),
}

/// Why a trace cannot be started, stopped or saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceRefusal {
    Running,
    NotFound,
    /// The bound of records is not 1 to this limit.
    Bound {
        limit: usize,
    },
    /// The daemon is ending.
    Ended,
}

/// A recording that does not have all parts yet. Without them it is of no use, so it goes if its caller does.
struct Starting<'a> {
    recorder: &'a Recorder,
    is_complete: bool,
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        let mut state = self.recorder.state();
        if !self.is_complete && matches!(*state, State::Recording(_)) {
            *state = State::Nothing;
            self.recorder.0.is_recording.store(false, Ordering::Relaxed);
        }
    }
}

impl Recorder {
    /// `clock` is the broker's clock. A trace has up to `records_max` records.
    pub fn new(clock: Clock, records_max: usize) -> Self {
        let (is_recording, state) = (AtomicBool::new(false), Mutex::default());
        Self(Arc::new(Shared { clock, records_max, is_recording, state }))
    }

    /// Begins to record, with the parts that are there now. Returns the bound of records.
    pub async fn start(&self, inbox: &Inbox, records_max: Option<u64>) -> Result<usize, TraceRefusal> {
        let limit = self.0.records_max;
        let records_max = match records_max.map(usize::try_from) {
            None => limit,
            Some(Ok(given)) if (1..=limit).contains(&given) => given,
            Some(_) => return Err(TraceRefusal::Bound { limit }),
        };
        {
            let mut state = self.state();
            if matches!(*state, State::Recording(_)) {
                return Err(TraceRefusal::Running);
            }
            *state = State::Recording(Box::new(Recording::new(self.0.clock.now(), records_max)));
            self.0.is_recording.store(true, Ordering::Relaxed);
        }
        let mut starting = Starting { recorder: self, is_complete: false };
        let recorder = self.clone();
        let devices = inbox.read(move |broker| {
            recorder.with(|recording, now| {
                broker.devices().iter().for_each(|device| recording.add_device(now, device));
            });
        });
        devices.await.ok_or(TraceRefusal::Ended)?;
        let mut after = None;
        loop {
            let recorder = self.clone();
            let read = inbox.read(move |broker| recorder.add_existing(broker, after)).await;
            match read.ok_or(TraceRefusal::Ended)? {
                Some(last) => after = Some(last),
                None => {
                    starting.is_complete = true;
                    return Ok(records_max);
                }
            }
        }
    }

    /// Ends the recording. One that has ended by itself is ended again.
    pub fn stop(&self) -> Result<Arc<FinishedTrace>, TraceRefusal> {
        let mut state = self.state();
        self.finish(&mut state, End::Stopped);
        match &*state {
            State::Finished(trace) => Ok(Arc::clone(trace)),
            State::Nothing | State::Recording(_) => Err(TraceRefusal::NotFound),
        }
    }

    /// Returns the trace that was recorded last.
    pub fn finished(&self) -> Result<Arc<FinishedTrace>, TraceRefusal> {
        match &*self.state() {
            State::Finished(trace) => Ok(Arc::clone(trace)),
            State::Recording(_) => Err(TraceRefusal::Running),
            State::Nothing => Err(TraceRefusal::NotFound),
        }
    }

    /// Notes an event that the core is about to get.
    pub(crate) fn note_event(&self, event: &Event) {
        if self.is_recording() {
            self.with(|recording, now| recording.note_event(now, event));
        }
    }

    /// Notes a command of the core. `broker` tells of an allocation that was made.
    pub(crate) fn note_command(
        &self,
        command: &Command,
        look_up: impl FnOnce(&Target) -> Option<AllocationView>,
    ) {
        if self.is_recording() {
            let made = recording::made_by(command).and_then(|id| look_up(&Target::Id(id)));
            self.with(|recording, now| {
                if let Some(view) = made {
                    recording.add_allocation(now, &view);
                }
                recording.note_command(now, command);
            });
        }
    }

    /// Adds allocations behind that one. Returns the last of them, if there are more.
    fn add_existing(&self, broker: &Broker, after: Option<AllocationId>) -> Option<AllocationId> {
        let (views, has_more) = broker.list_allocations(None, after, PARTS_PER_READ);
        let (mut parts, count) = (0, views.len());
        for (at, listed) in views.into_iter().enumerate() {
            let is_there = !matches!(listed.state, AllocationState::Creating | AllocationState::Freeing);
            if is_there && let Ok(view) = broker.show(&Target::Id(listed.id)) {
                parts += view.parts.len();
                self.with(|recording, now| recording.add_allocation(now, &view));
            }
            if parts >= PARTS_PER_READ || (has_more && at + 1 == count) {
                return Some(listed.id);
            }
        }
        None
    }

    fn is_recording(&self) -> bool {
        self.0.is_recording.load(Ordering::Relaxed)
    }

    /// Does this while a trace is recorded, and ends a recording that is full by then.
    fn with(&self, note: impl FnOnce(&mut Recording, Time)) {
        let mut state = self.state();
        // The clock is read under the lock, so time does not go back.
        let now = self.0.clock.now();
        let State::Recording(recording) = &mut *state else { return };
        note(recording, now);
        if recording.is_full() {
            tracing::warn!(records = recording.count(), "the trace is full, and its recording has ended");
            self.finish(&mut state, End::Full);
        }
    }

    fn finish(&self, state: &mut State, end: End) {
        if let State::Recording(recording) = state {
            *state = State::Finished(Arc::new(std::mem::take(&mut **recording).finish(end)));
            self.0.is_recording.store(false, Ordering::Relaxed);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that can panic leaves the state half changed.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
