//! The one task that owns the [`Broker`].
//!
//! ```text
//!   gRPC ──request, read──▶ ┌───────┐  event   ┌────────┐  command  ┌──────────┐──▶ channels, driver,
//!   channels ──event──────▶ │ inbox │ ───────▶ │ Broker │ ────────▶ │ executor │    disk, log
//!   driver ──completion───▶ └───────┘          └────────┘           └──────────┘
//!                               ▲ replies go back to the callers through the executor's table of calls
//! ```
//!
//! Nobody else touches the broker's state, so there is nothing to lock and no order to argue about: what is ready
//! is handled as one batch at one reading of the clock, then its commands run in the order in which the broker gave
//! them. Nothing here blocks. The price is that every decision of the node goes through one core; the broker does
//! bookkeeping only, and what takes time (making memory, hashing, writing to disk) is done elsewhere and comes back
//! as an event.

mod calls;
mod clock;
mod executor;
mod extents;
mod inbox;
mod notice;

use std::ops::ControlFlow;

use broker_core::{Broker, Event, Time};

use calls::Calls;
pub use clock::Clock;
pub use executor::{DriverLost, Executor, QuotaWriter};
pub(crate) use inbox::Message;
pub use inbox::{Inbox, InboxLimits, Outcome, Queue, inbox};

/// Most messages handled at one reading of the clock: commands must not wait for ever behind a full queue.
const BATCH_MAX: usize = 1024;

/// The broker with all it needs to run.
#[derive(Debug)]
pub struct Reactor {
    broker: Broker,
    queue: Queue,
    executor: Executor,
    calls: Calls,
    clock: Clock,
}

impl Reactor {
    /// `clock` is the one that read the `now` which the broker was made with.
    pub fn new(broker: Broker, queue: Queue, executor: Executor, clock: Clock) -> Self {
        Self { broker, queue, executor, calls: Calls::default(), clock }
    }

    /// Runs until [`Inbox::stop`], or the driver's end. Must run inside a tokio runtime.
    pub async fn run(mut self) -> Result<(), DriverLost> {
        // A new broker has commands already: it asks who else holds memory.
        self.start_commands();
        loop {
            let first = tokio::select! {
                message = self.queue.next() => match message {
                    Some(message) => Some(message),
                    None => return Ok(()),
                },
                () = self.clock.sleep_until(self.broker.next_deadline()) => None,
            };
            if let ControlFlow::Break(end) = self.turn(first) {
                return end;
            }
        }
    }

    /// Handles what is ready, then runs the commands that came of it.
    fn turn(&mut self, first: Option<Message>) -> ControlFlow<Result<(), DriverLost>> {
        let now = self.clock.now();
        let mut end = first.map_or(ControlFlow::Continue(()), |message| self.handle(now, message));
        for _ in 1..BATCH_MAX {
            if end.is_break() {
                break;
            }
            let Some(message) = self.queue.ready() else { break };
            end = self.handle(now, message);
        }
        if self.broker.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.broker.handle(now, Event::Tick);
        }
        self.start_commands();
        end
    }

    fn start_commands(&mut self) {
        while let Some(command) = self.broker.poll_command() {
            self.executor.start(command, &mut self.calls);
        }
    }

    fn handle(&mut self, now: Time, message: Message) -> ControlFlow<Result<(), DriverLost>> {
        match message {
            Message::Event(event) => self.broker.handle(now, event),
            Message::Driver(completion) => match self.executor.completed(completion) {
                Ok(completion) => self.broker.handle(now, Event::Completion(completion)),
                Err(lost) => return ControlFlow::Break(Err(lost)),
            },
            Message::Request { call, event, caller } => {
                self.calls.open(call, caller);
                self.broker.handle(now, event);
            }
            Message::Read(read) => read(&self.broker),
            Message::Stop => return ControlFlow::Break(Ok(())),
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests;
