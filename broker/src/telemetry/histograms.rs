//! Records the durations and sizes of moves and waits that ended. The core reports them on the reactor's thread, which
//! pays for each record. So of these histograms only that of pin waits, which programs feel, has series of tenants.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use broker_core::{Notice, Time, WaitEnd, WaiterKind};
use opentelemetry::{
    KeyValue,
    metrics::{Histogram, Meter},
};
use vramd_types::SessionId;

use super::{
    ended_move::{EndedMove, MoveKind},
    instruments::{histogram, size_histogram},
    metrics,
    tenant_counters::WAIT_ENDS,
    turn_histograms::TurnHistograms,
};

/// The series of a tenant's pin waits of one outcome in Prometheus: the buckets, that without a boundary, the sum and the
/// count.
const PIN_SERIES: usize = metrics::PIN_WAIT.boundaries.len() + 3;

#[derive(Debug)]
pub(super) struct Histograms {
    move_seconds: Histogram<f64>,
    move_bytes: Histogram<u64>,
    wait_seconds: Histogram<f64>,
    pin_seconds: Histogram<f64>,
    lead_seconds: Histogram<f64>,
    turns: TurnHistograms,
    pin_tenants: NamedTenants,
}

/// The first tenants with pin waits of an outcome, as many as have series. Further ones are recorded as `_other` for good,
/// since the library forgets no series.
#[derive(Debug)]
struct NamedTenants {
    most: usize,
    names: Mutex<BTreeSet<(Arc<str>, &'static str)>>,
}

impl NamedTenants {
    /// The series of `_other` fit beside theirs.
    fn new(series_max: usize) -> Self {
        Self { most: (series_max / PIN_SERIES).saturating_sub(WAIT_ENDS.len()), names: Mutex::default() }
    }

    fn series_name(&self, tenant: &Arc<str>, outcome: &'static str) -> Arc<str> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (Arc::clone(tenant), outcome);
        let is_named = names.contains(&name) || names.len() < self.most && names.insert(name);
        if is_named { Arc::clone(tenant) } else { metrics::OTHER_TENANTS.into() }
    }
}

/// A recorded wait of a pin call, whose span may become an exemplar.
#[derive(Debug)]
pub(super) struct PinWait {
    pub(super) session: SessionId,
    pub(super) call: u64,
    /// The name of the tenant's series.
    pub(super) tenant: Arc<str>,
    pub(super) outcome: &'static str,
    pub(super) seconds: f64,
}

impl Histograms {
    /// `devices` are UUIDs, in the daemon's order.
    pub(super) fn new(meter: &Meter, series_max: usize, devices: Vec<String>) -> Self {
        Self {
            turns: TurnHistograms::new(meter, devices),
            move_seconds: histogram(meter, &metrics::MIGRATION_DURATION),
            move_bytes: size_histogram(meter, &metrics::MIGRATION_SIZE),
            wait_seconds: histogram(meter, &metrics::QUEUE_WAIT),
            pin_seconds: histogram(meter, &metrics::PIN_WAIT),
            lead_seconds: histogram(meter, &metrics::PREFETCH_LEAD),
            pin_tenants: NamedTenants::new(series_max),
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

    /// Records a wait, or the lead of a prefetch, if the notice ends one, and returns the wait of a pin call. `since`
    /// returns the time that has passed since a moment.
    pub(super) fn record_wait(&self, notice: &Notice, since: impl Fn(Time) -> Duration) -> Option<PinWait> {
        self.turns.record(notice, &since);
        match notice {
            Notice::WaitEnded { waiter, since: began, end } => {
                let kind = match waiter {
                    WaiterKind::Part => PART,
                    WaiterKind::Batch => BATCH,
                };
                let attributes = [KeyValue::new(metrics::WAIT_KIND, kind), outcome(*end)];
                self.wait_seconds.record(since(*began).as_secs_f64(), &attributes);
            }
            Notice::PinWaited { tenant, session, call, since: began, end } => {
                let tenant = self.pin_tenants.series_name(tenant, outcome_name(*end));
                let seconds = since(*began).as_secs_f64();
                let attributes = [KeyValue::new(metrics::TENANT, Arc::clone(&tenant)), outcome(*end)];
                self.pin_seconds.record(seconds, &attributes);
                let outcome = outcome_name(*end);
                return Some(PinWait { session: *session, call: *call, tenant, outcome, seconds });
            }
            Notice::PrefetchUsed { lead, .. } => self.lead_seconds.record(lead.as_secs_f64(), &[]),
            _ => {}
        }
        None
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_beyond_the_bound_are_other() {
        let tenants = NamedTenants::new((3 + WAIT_ENDS.len()) * PIN_SERIES);
        let waits = [("a", "served"), ("a", "refused"), ("b", "served"), ("c", "served"), ("b", "left")];
        let names = waits.map(|(tenant, outcome)| tenants.series_name(&tenant.into(), outcome));
        assert_eq!(
            names.each_ref().map(|name| &**name),
            ["a", "a", "b", metrics::OTHER_TENANTS, metrics::OTHER_TENANTS]
        );
        assert_eq!(&*tenants.series_name(&"a".into(), "served"), "a");
    }
}
