//! The thread that ends guards after CUDA streams.
//!
//! It polls events, since host functions would hold up their streams. While no guard waits it sleeps. It unpins only
//! memory that nothing can touch any more: the work is done, or its context is lost.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use vramd_types::Reason;

use super::{Pinned, UnpinFailed};
use crate::{cuda::Event, error::Error};

/// How often events are polled while a guard waits.
const ASK_INTERVAL: Duration = Duration::from_micros(100);

/// The sender to the thread, which starts at the first use and ends with the session.
#[derive(Debug, Default)]
pub(crate) struct Reaper(Mutex<Option<Sender<Waiting>>>);

// Dropped in this order: once the count is zero, its pins are gone too.
#[derive(Debug)]
struct Waiting {
    _pinned: Pinned,
    events: Vec<Event>,
    _counted: Counted,
}

/// Counts one guard of an allocation that ends after streams.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Reaper {
    pub(crate) fn take(&self, pinned: Pinned, events: Vec<Event>) -> Result<(), UnpinFailed> {
        let mut thread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match &mut *thread {
            Some(sender) => sender,
            none => match start() {
                Ok(sender) => none.insert(sender),
                Err(error) => {
                    let problem = format!("the thread that waits for streams could not be started: {error}");
                    let facts: [(&str, &dyn ToString); 2] = [("device", &""), ("problem", &problem)];
                    return Err(UnpinFailed {
                        pinned: Box::new(pinned),
                        error: Error::refused(Reason::DriverFailed, &facts),
                    });
                }
            },
        };
        let counted = Counted::new(pinned.anchor().stream_guards());
        // The thread outlives every sender.
        let _ = sender.send(Waiting { _pinned: pinned, events, _counted: counted });
        Ok(())
    }
}

fn start() -> io::Result<Sender<Waiting>> {
    let (sender, queue) = mpsc::channel();
    thread::Builder::new().name("vramd-reaper".to_owned()).spawn(move || run(&queue))?;
    Ok(sender)
}

fn run(queue: &Receiver<Waiting>) {
    let mut waiting: Vec<Waiting> = Vec::new();
    loop {
        let next = if waiting.is_empty() {
            queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            queue.recv_timeout(ASK_INTERVAL)
        };
        match next {
            Ok(next) => waiting.push(next),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if waiting.is_empty() => return,
            // Each waiting guard keeps the session, and so the sender, alive.
            Err(RecvTimeoutError::Disconnected) => thread::sleep(ASK_INTERVAL),
        }
        waiting.extend(queue.try_iter());
        waiting.retain_mut(|one| {
            one.events.retain(|event| !event.is_over());
            !one.events.is_empty()
        });
    }
}

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
