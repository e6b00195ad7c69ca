//! Events on the program's own streams: when what was launched there so far is done.

use std::sync::Arc;

use super::{api, calls::Opaque, context::Context, fault::Fault};

/// The streams that are no handles: the default one, and it and the thread's own by their special numbers.
const DEFAULT_STREAMS: u64 = 2;

/// Recorded on a stream of the program's; destroyed when it is dropped.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    raw: Opaque,
}

/// Why a stream can't be waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotRecorded {
    /// What is launched on it becomes part of a graph.
    Capturing,
    Failed(String),
}

impl Context {
    /// One event on each stream, after what was launched there so far.
    pub(crate) fn record_all(self: &Arc<Self>, streams: &[u64]) -> Result<Vec<Event>, NotRecorded> {
        streams.iter().map(|stream| self.record_one(*stream)).collect()
    }

    fn record_one(self: &Arc<Self>, number: u64) -> Result<Event, NotRecorded> {
        let stream = Opaque::from_number(number);
        let capturing = || self.enter()?.api().is_capturing(stream);
        if capturing()? {
            return Err(NotRecorded::Capturing);
        }
        let context = match number {
            0..=DEFAULT_STREAMS => self.raw(),
            _ => self.enter()?.api().context_of(stream)?,
        };
        // An event and its stream are of one context.
        let current = self.enter_other(context)?;
        let event = Event { context: Arc::clone(self), raw: current.api().create_event()? };
        current.api().record(event.raw, stream)?;
        Ok(event)
    }
}

impl Event {
    /// Whether it has happened, or never will since its context is lost. Any other answer is asked again.
    pub(crate) fn is_over(&self) -> bool {
        let asked = || -> Result<bool, Fault> { self.context.enter()?.api().has_happened(self.raw) };
        asked().unwrap_or_else(|fault| api::is_lost(fault.code))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let destroy = || -> Result<(), Fault> { self.context.enter()?.api().destroy_event(self.raw) };
        // It fails only in a context that is lost, which takes it along.
        let _ = destroy();
    }
}

impl From<Fault> for NotRecorded {
    fn from(fault: Fault) -> Self {
        Self::Failed(fault.to_string())
    }
}
