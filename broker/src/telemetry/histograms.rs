//! Records the durations and sizes of moves and waits that ended. The core reports them on the reactor's thread, which
//! pays for each record, so these histograms have no series of tenants.

use std::time::Duration;

use broker_core::{Notice, Time, WaitEnd, WaiterKind};
use opentelemetry::{
    KeyValue,
    metrics::{Histogram, Meter},
};

use super::{
    ended_move::{EndedMove, MoveKind},
    instruments::{histogram, size_histogram},
    metrics,
};

#[derive(Debug)]
pub(super) struct Histograms {
    move_seconds: Histogram<f64>,
    move_bytes: Histogram<u64>,
    wait_seconds: Histogram<f64>,
    pin_seconds: Histogram<f64>,
}

impl Histograms {
    pub(super) fn new(meter: &Meter) -> Self {
        Self {
            move_seconds: histogram(meter, &metrics::MIGRATION_DURATION),
            move_bytes: size_histogram(meter, &metrics::MIGRATION_SIZE),
            wait_seconds: histogram(meter, &metrics::QUEUE_WAIT),
            pin_seconds: histogram(meter, &metrics::PIN_WAIT),
        }
    }

    /// Records the duration and size of an ended move.
    pub(super) fn record_move(&self, ended: &EndedMove<'_>, took: Duration) {
        let MoveKind { direction, from, to, cause, outcome, .. } = ended.kind;
        let attributes = [
            KeyValue::new(metrics::MIGRATION_DIRECTION, direction),
            KeyValue::new(metrics::MIGRATION_FROM, from),
            KeyValue::new(metrics::MIGRATION_TO, to),
            KeyValue::new(metrics::MIGRATION_CAUSE, cause),
            KeyValue::new(metrics::MIGRATION_OUTCOME, outcome),
        ];
        self.move_seconds.record(took.as_secs_f64(), &attributes);
        self.move_bytes.record(ended.bytes.get(), &attributes);
    }

    /// Records a wait, if the notice ends one. `since` returns the time that has passed since a moment.
    pub(super) fn record_wait(&self, notice: &Notice, since: impl FnOnce(Time) -> Duration) {
        match notice {
            Notice::WaitEnded { waiter, since: began, end } => {
                let kind = match waiter {
                    WaiterKind::Part => PART,
                    WaiterKind::Batch => BATCH,
                };
                let attributes = [KeyValue::new(metrics::WAIT_KIND, kind), outcome(*end)];
                self.wait_seconds.record(since(*began).as_secs_f64(), &attributes);
            }
            Notice::PinWaited { since: began, end, .. } => {
                self.pin_seconds.record(since(*began).as_secs_f64(), &[outcome(*end)]);
            }
            _ => {}
        }
    }
}

/// Values of [`metrics::WAIT_KIND`].
pub(super) const PART: &str = "part";
pub(super) const BATCH: &str = "batch";

fn outcome(end: WaitEnd) -> KeyValue {
    KeyValue::new(metrics::WAIT_OUTCOME, outcome_name(end))
}

pub(super) const fn outcome_name(end: WaitEnd) -> &'static str {
    match end {
        WaitEnd::Served => "served",
        WaitEnd::Refused => "refused",
        WaitEnd::Cancelled => "cancelled",
        WaitEnd::Left => "left",
    }
}
