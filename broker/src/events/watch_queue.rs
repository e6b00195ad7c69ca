//! The queue of events that one reader has not taken yet.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use vramd_proto::v1::{self, watch_response::Event};

#[derive(Debug)]
pub(super) struct WatchQueue {
    /// Maximum events in the queue.
    events_max: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<Arc<v1::WatchResponse>>,
    /// The count that follows the waiting events. While there is one, no event is queued behind it.
    missed: Option<v1::WatchResponse>,
    end: Option<End>,
    reader: Option<Waker>,
}

#[derive(Debug)]
enum End {
    Pending(Arc<v1::WatchResponse>),
    Sent,
}

impl WatchQueue {
    /// Creates a queue. The first message does not count against the bound.
    pub(super) fn new(events_max: usize, first: v1::WatchResponse) -> Self {
        let waiting = VecDeque::from([Arc::new(first)]);
        Self { events_max, state: Mutex::new(State { waiting, missed: None, end: None, reader: None }) }
    }

    pub(super) fn push(&self, event: &Arc<v1::WatchResponse>) {
        let mut state = self.state();
        if state.end.is_some() {
            return;
        }
        if state.missed.is_some() || state.waiting.len() >= self.events_max {
            state.count_missed(event);
        } else {
            state.waiting.push_back(Arc::clone(event));
        }
        state.wake();
    }

    /// Ends the queue with this message.
    pub(super) fn end(&self, last: &Arc<v1::WatchResponse>) {
        let mut state = self.state();
        state.end = Some(End::Pending(Arc::clone(last)));
        state.wake();
    }

    /// Takes the next message, once there is one. There is one reader at a time.
    pub(super) fn poll_take(&self, context: &mut Context<'_>) -> Poll<Option<v1::WatchResponse>> {
        let mut state = self.state();
        if let Some(event) = state.waiting.pop_front() {
            return Poll::Ready(Some(Arc::unwrap_or_clone(event)));
        }
        if let Some(missed) = state.missed.take() {
            return Poll::Ready(Some(missed));
        }
        match state.end.replace(End::Sent) {
            Some(End::Pending(last)) => Poll::Ready(Some(Arc::unwrap_or_clone(last))),
            Some(End::Sent) => Poll::Ready(None),
            None => {
                state.end = None;
                state.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that can panic leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn count_missed(&mut self, event: &v1::WatchResponse) {
        let before = match &self.missed {
            Some(v1::WatchResponse { event: Some(Event::Missed(missed)), .. }) => missed.count,
            _ => 0,
        };
        self.missed = Some(v1::WatchResponse {
            sequence: event.sequence,
            happened_at: event.happened_at,
            tenant: String::new(),
            event: Some(Event::Missed(v1::Missed { count: before.saturating_add(1) })),
        });
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}
