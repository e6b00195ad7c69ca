//! The one task that owns the [`Broker`].
//!
//! ```text
//!   gRPC ──request, read──▶ ┌───────┐  event   ┌────────┐  command  ┌──────────┐──▶ channels, driver,
//!   channels ──event──────▶ │ inbox │ ───────▶ │ Broker │ ────────▶ │ executor │    disk, log
//!   driver ──completion───▶ └───────┘          └────────┘           └──────────┘
//!                               ▲ replies go back to the callers through the executor's table of calls
//! ```
//!
//! Nobody else changes the broker's state, so there is no order to argue about; others look at it between two batches
//! (`shared_broker`). What is ready is handled as one batch at one reading of the clock, then its commands run in the order
//! in which the broker gave them. Nothing here blocks. The price is that every decision of the node goes through one
//! core; the broker does bookkeeping only, and what takes time (making memory, hashing, writing to disk) is done
//! elsewhere and comes back as an event.

mod calls;
mod clock;
mod copies;
mod digests;
mod executor;
mod extents;
mod files;
mod inbox;
mod notice_log;
mod scheduled_revocations;
mod shared_broker;

use std::ops::ControlFlow;

use broker_core::{Broker, Command, Event, Time};

use calls::Calls;
pub use clock::Clock;
pub use copies::Copies;
pub use executor::{DriverLost, Executor, QuotaWriter};
pub use files::{Files, RegisteredFile};
pub(crate) use inbox::Message;
pub use inbox::{Inbox, InboxLimits, Outcome, Queue, inbox};
use shared_broker::SharedBroker;

/// Most messages handled at one reading of the clock: commands must not wait for ever behind a full queue.
const BATCH_MAX: usize = 1024;

/// The broker with all it needs to run.
#[derive(Debug)]
pub struct Reactor {
    broker: SharedBroker,
    queue: Queue,
    executor: Executor,
    calls: Calls,
    clock: Clock,
}

impl Reactor {
    /// `clock` is the one that read the `now` which the broker was made with.
    pub fn new(broker: Broker, queue: Queue, executor: Executor, clock: Clock) -> Self {
        let broker = SharedBroker::new(broker);
        queue.share_broker(&broker);
        Self { broker, queue, executor, calls: Calls::default(), clock }
    }

    /// Runs until [`Inbox::stop`], or the driver's end. Must run inside a tokio runtime.
    pub async fn run(mut self) -> Result<(), DriverLost> {
        // A new broker has commands already: it asks who else holds memory.
        self.start_commands();
        loop {
            let deadline = self.broker.lock().next_deadline();
            let first = tokio::select! {
                message = self.queue.next() => match message {
                    Some(message) => Some(message),
                    None => return Ok(()),
                },
                () = self.clock.sleep_until(deadline) => None,
            };
            if let ControlFlow::Break(end) = self.turn(first) {
                return end;
            }
        }
    }

    /// Handles what is ready, then runs the commands that came of it.
    fn turn(&mut self, first: Option<Message>) -> ControlFlow<Result<(), DriverLost>> {
        let now = self.clock.now();
        let end = self.handle_ready(now, first);
        self.start_commands();
        end
    }

    /// One batch, during which nobody looks.
    fn handle_ready(&mut self, now: Time, first: Option<Message>) -> ControlFlow<Result<(), DriverLost>> {
        let Self { broker, queue, executor, calls, .. } = self;
        let mut turn = Turn { broker: &mut broker.lock(), executor, calls, now };
        let mut end = first.map_or(ControlFlow::Continue(()), |message| turn.handle(message));
        for _ in 1..BATCH_MAX {
            if end.is_break() {
                break;
            }
            let Some(message) = queue.ready() else { break };
            end = turn.handle(message);
        }
        if turn.broker.next_deadline().is_some_and(|deadline| deadline <= now) {
            turn.broker.handle(now, Event::Tick);
        }
        end
    }

    /// One by one, so that nobody who looks waits for what they do.
    fn start_commands(&mut self) {
        while let Some(command) = self.next_command() {
            if !matches!(command, Command::Notice(_)) {
                tracing::trace!(?command, "begins");
            }
            self.executor.start(command, &mut self.calls);
        }
    }

    fn next_command(&self) -> Option<Command> {
        self.broker.lock().poll_command()
    }
}

/// One batch at one reading of the clock.
struct Turn<'a> {
    broker: &'a mut Broker,
    executor: &'a mut Executor,
    calls: &'a mut Calls,
    now: Time,
}

impl Turn<'_> {
    fn handle(&mut self, message: Message) -> ControlFlow<Result<(), DriverLost>> {
        let now = self.now;
        match message {
            Message::Event(event) => {
                tracing::trace!(?event, "happened");
                self.executor.observe_event(&event);
                self.broker.handle(now, event);
            }
            Message::Driver(completion) => match self.executor.translate(completion) {
                Ok(Some(completion)) => {
                    tracing::trace!(?completion, "done");
                    self.broker.handle(now, Event::Completion(completion));
                }
                Ok(None) => {}
                Err(lost) => return ControlFlow::Break(Err(lost)),
            },
            Message::Request { call, event, caller } => {
                self.calls.open(call, caller);
                self.broker.handle(now, event);
            }
            Message::Read(read) => read(self.broker),
            Message::Stop => return ControlFlow::Break(Ok(())),
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
pub(crate) mod tests;
