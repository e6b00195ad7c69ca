//! The events that operators watch.
//!
//! ```text
//!   reactor ── notice ──▶ Events ── filter ──▶ WatchQueue of each watch ──▶ gRPC stream
//!                                              (bounded; further events are counted)
//! ```
//!
//! The reactor passes a notice on and never waits for a reader. It makes a message only if a watch wants it. Each watch
//! keeps a bounded number of unread events. Further events are only counted, until the reader has taken all events
//! before them; the reader then gets the count in their place, and later events again. So a watch that is never read
//! costs only its bound.

mod message;
mod settings;
#[cfg(test)]
mod tests;
mod turns;
mod watch_queue;

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use broker_core::Notice;
use tokio::sync::watch;
use tokio_stream::Stream;
use vramd_proto::v1::{self, EventKind, watch_response::Event};

use self::watch_queue::WatchQueue;
pub(crate) use self::{
    message::{advice_permission, deferral, level, move_cause, standing_source, tenant_class, tier},
    settings::settings,
};
use crate::reactor::Clock;

/// Bounds of the cost of watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLimits {
    /// Maximum watches at once.
    pub watches_max: usize,
    /// Maximum unread events of one watch.
    pub events_max: usize,
}

/// Clones are the same.
#[derive(Clone, Debug)]
pub struct Events(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Clock,
    boot_epoch: u64,
    /// UUIDs, in the daemon's order.
    devices: Vec<String>,
    limits: EventLimits,
    table: Mutex<WatchTable>,
    draining: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct WatchTable {
    /// The sequence number of the last event.
    sequence: u64,
    watches: Vec<(Filter, Arc<WatchQueue>)>,
    ended: bool,
}

/// The events that one watch wants.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// `None` means every tenant.
    pub tenant: Option<String>,
    /// An empty list means every kind.
    pub kinds: Vec<EventKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchError {
    TooMany {
        limit: usize,
    },
    /// The daemon is ending.
    Ended,
}

/// One reader's events. It counts as a watch until it is dropped.
#[derive(Debug)]
pub struct Watch {
    events: Events,
    queue: Arc<WatchQueue>,
}

impl Events {
    pub fn new(clock: Clock, boot_epoch: u64, devices: Vec<String>, limits: EventLimits) -> Self {
        let (table, draining) = (Mutex::default(), watch::Sender::new(false));
        Self(Arc::new(Shared { clock, boot_epoch, devices, limits, table, draining }))
    }

    /// Queues the event for every watch that wants it. Never waits.
    pub fn publish(&self, notice: &Notice) {
        if let Notice::Draining { draining } = notice {
            self.0.draining.send_replace(*draining);
        }
        let Some(kind) = message::kind(notice) else { return };
        let mut table = self.table();
        let sequence = table.advance_sequence();
        let tenant = message::tenant(notice);
        let mut matching = table.watches.iter().filter(|(filter, _)| filter.matches(kind, tenant)).peekable();
        if matching.peek().is_none() {
            return;
        }
        let Some(event) = message::event(notice, &self.0.devices, self.0.clock.now()) else { return };
        let event = Arc::new(self.message(sequence, tenant, event));
        for (_, queue) in matching {
            queue.push(&event);
        }
    }

    /// Follows whether the node drains.
    pub fn draining(&self) -> watch::Receiver<bool> {
        self.0.draining.subscribe()
    }

    /// Begins a watch of all events from here on.
    pub fn watch(&self, filter: Filter) -> Result<Watch, WatchError> {
        let limit = self.0.limits.watches_max;
        let mut table = self.table();
        if table.ended {
            return Err(WatchError::Ended);
        }
        if table.watches.len() >= limit {
            return Err(WatchError::TooMany { limit });
        }
        let begun = Event::Begun(v1::WatchBegun { boot_epoch: self.0.boot_epoch });
        let queue =
            Arc::new(WatchQueue::new(self.0.limits.events_max, self.message(table.sequence, None, begun)));
        table.watches.push((filter, Arc::clone(&queue)));
        Ok(Watch { events: self.clone(), queue })
    }

    /// Ends every watch with the daemon's last event, whatever the watch's filter. A second call changes nothing.
    pub fn end(&self, why: &str) {
        let mut table = self.table();
        if std::mem::replace(&mut table.ended, true) {
            return;
        }
        let sequence = table.advance_sequence();
        let last = Arc::new(self.message(sequence, None, message::ending(why)));
        for (_, queue) in &table.watches {
            queue.end(&last);
        }
    }

    fn message(&self, sequence: u64, tenant: Option<&str>, event: Event) -> v1::WatchResponse {
        v1::WatchResponse {
            sequence,
            happened_at: self.0.clock.time_of_day().map(Into::into),
            tenant: tenant.unwrap_or_default().to_owned(),
            event: Some(event),
        }
    }

    fn table(&self) -> MutexGuard<'_, WatchTable> {
        // No code that can panic leaves the table half changed.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchTable {
    fn advance_sequence(&mut self) -> u64 {
        self.sequence = self.sequence.saturating_add(1);
        self.sequence
    }
}

impl Filter {
    fn matches(&self, kind: EventKind, tenant: Option<&str>) -> bool {
        let of_tenant = match (&self.tenant, tenant) {
            (Some(wanted), Some(tenant)) => wanted == tenant,
            _ => true,
        };
        of_tenant && (self.kinds.is_empty() || self.kinds.contains(&kind))
    }
}

impl Stream for Watch {
    type Item = v1::WatchResponse;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<v1::WatchResponse>> {
        self.queue.poll_take(context)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.events.table().watches.retain(|(_, queue)| !Arc::ptr_eq(queue, &self.queue));
    }
}
