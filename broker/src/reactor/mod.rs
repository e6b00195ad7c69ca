//! The task that owns the [`Broker`] and runs its commands.
//!
//! ```text
//!   gRPC ──request, read──▶ ┌───────┐  event   ┌────────┐  command  ┌──────────┐──▶ channels, driver,
//!   channels ──event──────▶ │ inbox │ ───────▶ │ Broker │ ────────▶ │ executor │    disk, log
//!   driver ──completion───▶ └───────┘          └────────┘           └──────────┘
//!                               ▲ replies return to the callers through the table of calls
//! ```
//!
//! Only the reactor changes the broker's state, so all events have one order; other tasks read it between two batches
//! (`shared_broker`). The reactor exports all queued messages as one batch at one reading of the clock, then runs the
//! commands in the broker's order. Nothing here blocks. The price is that every decision of the node goes through one
//! core. The core only does bookkeeping: creating memory, hashing and writing to disk happen elsewhere and return as
//! events.

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
pub use inbox::{Inbox, InboxLimits, Outcome, Queue, inbox};
pub(crate) use inbox::{Message, SUBMITTED};
use shared_broker::SharedBroker;

/// Maximum messages of one batch, so that commands do not wait for ever behind a full queue.
const BATCH_MAX: usize = 1024;

/// The broker with everything that it needs to run.
#[derive(Debug)]
pub struct Reactor {
    broker: SharedBroker,
    queue: Queue,
    executor: Executor,
    calls: Calls,
    clock: Clock,
}

impl Reactor {
    /// `clock` must be the clock that gave the broker its first time.
    pub fn new(broker: Broker, queue: Queue, executor: Executor, clock: Clock) -> Self {
        let broker = SharedBroker::new(broker);
        queue.share_broker(&broker);
        Self { broker, queue, executor, calls: Calls::default(), clock }
    }

    /// Runs until [`Inbox::stop`] or the end of the driver. Must run inside a tokio runtime.
    pub async fn run(mut self) -> Result<(), DriverLost> {
        // A new broker already has commands: it surveys the devices.
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

    /// Handles the queued messages, then runs the commands that follow from them.
    fn turn(&mut self, first: Option<Message>) -> ControlFlow<Result<(), DriverLost>> {
        let now = self.clock.now();
        let end = self.handle_ready(now, first);
        self.start_commands();
        end
    }

    /// Handles one batch. No reader runs meanwhile.
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

    /// Runs the commands one by one, so that no reader waits for their effects.
    fn start_commands(&mut self) {
        while let Some(command) = self.next_command() {
            if !matches!(command, Command::Notice(_)) {
                tracing::trace!(?command, "begins");
            }
            self.executor.record_command(&command, |target| self.broker.lock().show(target).ok());
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
