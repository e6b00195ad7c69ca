//! How long things took that the core says are over. It says so on the reactor's thread, which pays for each; so nothing in
//! here has series of tenants.

use std::time::Duration;

use broker_core::{Notice, Time, WaitEnd, Waited};
use opentelemetry::{
    KeyValue,
    metrics::{Histogram, Meter},
};

use super::{
    ended_move::{EndedMove, Kind},
    metrics::{histogram, size_histogram},
    registry as of,
};

#[derive(Debug)]
pub(super) struct Ends {
    moves: Histogram<f64>,
    moved: Histogram<u64>,
    waits: Histogram<f64>,
    pins: Histogram<f64>,
}

impl Ends {
    pub(super) fn new(meter: &Meter) -> Self {
        Self {
            moves: histogram(meter, &of::MIGRATION_DURATION),
            moved: size_histogram(meter, &of::MIGRATION_SIZE),
            waits: histogram(meter, &of::QUEUE_WAIT),
            pins: histogram(meter, &of::PIN_WAIT),
        }
    }

    /// A part's move took so long.
    pub(super) fn moved(&self, ended: &EndedMove<'_>, took: Duration) {
        let Kind { direction, cause, outcome, .. } = ended.kind;
        let attributes = [
            KeyValue::new(of::MIGRATION_DIRECTION, direction),
            KeyValue::new(of::MIGRATION_CAUSE, cause),
            KeyValue::new(of::MIGRATION_OUTCOME, outcome),
        ];
        self.moves.record(took.as_secs_f64(), &attributes);
        self.moved.record(ended.bytes.get(), &attributes);
    }

    /// If a wait is over; `since` says how long ago something was.
    pub(super) fn told(&self, notice: &Notice, since: impl FnOnce(Time) -> Duration) {
        match notice {
            Notice::WaitEnded { what, since: began, end } => {
                let kind = match what {
                    Waited::Part => PART,
                    Waited::Batch => BATCH,
                };
                let attributes = [KeyValue::new(of::WAIT_KIND, kind), outcome(*end)];
                self.waits.record(since(*began).as_secs_f64(), &attributes);
            }
            Notice::PinWaited { since: began, end, .. } => {
                self.pins.record(since(*began).as_secs_f64(), &[outcome(*end)]);
            }
            _ => {}
        }
    }
}

/// Kinds of waits.
pub(super) const PART: &str = "part";
pub(super) const BATCH: &str = "batch";

fn outcome(end: WaitEnd) -> KeyValue {
    let name = match end {
        WaitEnd::Served => "served",
        WaitEnd::Refused => "refused",
        WaitEnd::Cancelled => "cancelled",
        WaitEnd::Left => "left",
    };
    KeyValue::new(of::WAIT_OUTCOME, name)
}
