//! Events on the program's own streams, which say when the work launched so far is done.

use std::sync::Arc;

use super::{api, calls::Opaque, context::Context, fault::Fault};

/// Stream numbers up to this are no pointers: 0 is the default stream; 1 and 2 name it and the thread's own.
const DEFAULT_STREAMS: u64 = 2;

/// An event recorded on a stream of the program; destroyed when it is dropped.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    raw: Opaque,
}

/// Why an event could not be recorded on a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotRecorded {
    /// The stream is being captured: work launched on it becomes part of a graph.
    Capturing,
    Failed(String),
}

impl Context {
    /// Records an event on each stream, after the work launched there so far.
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
        // An event and its stream must belong to one context.
        let current = self.enter_other(context)?;
        let event = Event { context: Arc::clone(self), raw: current.api().create_event()? };
        current.api().record(event.raw, stream)?;
        Ok(event)
    }
}

impl Event {
    /// Whether it has happened, or never will since its context is lost. After any other error it is polled again.
    pub(crate) fn is_over(&self) -> bool {
        let asked = || -> Result<bool, Fault> { self.context.enter()?.api().has_happened(self.raw) };
        asked().unwrap_or_else(|fault| api::is_lost(fault.code))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let destroy = || -> Result<(), Fault> { self.context.enter()?.api().destroy_event(self.raw) };
        // This fails only in a lost context, which takes the event along.
        let _ = destroy();
    }
}

impl From<Fault> for NotRecorded {
    fn from(fault: Fault) -> Self {
        Self::Failed(fault.to_string())
    }
}
