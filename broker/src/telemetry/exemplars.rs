//! Keeps exemplars: for each bucket of a histogram the last traced measurement, by whose trace an operator finds a slow
//! request.
//!
//! The metrics of OpenTelemetry's SDK carry none, so they are served to Prometheus alone, in the format OpenMetrics.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use opentelemetry::trace::{SpanContext, SpanId, TraceId};

use super::metrics::Definition;

/// A measurement of a traced request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Exemplar {
    pub(super) trace: TraceId,
    pub(super) span: SpanId,
    pub(super) value: f64,
    pub(super) at: SystemTime,
}

/// The exemplars of one series: one for each boundary, and one beyond them.
pub(super) type Buckets = Vec<Option<Exemplar>>;

/// By the name of the metric and the values of its attributes, in the order of its declaration. Only series of the
/// histograms themselves have an entry, so their bounds hold here too.
#[derive(Debug, Default)]
pub(super) struct Exemplars(Mutex<BTreeMap<(&'static str, Vec<String>), Buckets>>);

impl Exemplars {
    /// Records a measurement if its span is sampled.
    pub(super) fn record(
        &self,
        metric: &'static Definition,
        attributes: &[&str],
        value: f64,
        span: &SpanContext,
    ) {
        if !span.is_sampled() {
            return;
        }
        let bucket = metric.boundaries.partition_point(|bound| *bound < value);
        let exemplar =
            Exemplar { trace: span.trace_id(), span: span.span_id(), value, at: SystemTime::now() };
        let values = attributes.iter().map(|&value| value.to_owned()).collect();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let buckets =
            all.entry((metric.name, values)).or_insert_with(|| vec![None; metric.boundaries.len() + 1]);
        if let Some(of_bucket) = buckets.get_mut(bucket) {
            *of_bucket = Some(exemplar);
        }
    }

    /// Returns the exemplars of one series.
    pub(super) fn of(&self, metric: &'static str, attributes: Vec<String>) -> Option<Buckets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&(metric, attributes)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{TraceFlags, TraceState};

    use super::*;
    use crate::telemetry::metrics;

    fn span(number: u8, flags: TraceFlags) -> SpanContext {
        let trace = TraceId::from(u128::from(number));
        SpanContext::new(trace, SpanId::from(u64::from(number)), flags, false, TraceState::NONE)
    }

    #[test]
    fn each_bucket_keeps_its_last_traced_measurement() {
        let exemplars = Exemplars::default();
        let record = |value, number, flags| {
            let attributes = ["grpc", "vramd.v1.MemoryService/Seal", "OK"];
            exemplars.record(&metrics::RPC_DURATION, &attributes, value, &span(number, flags));
        };
        // A boundary belongs to the bucket below it.
        record(0.001, 1, TraceFlags::SAMPLED);
        record(0.001_5, 2, TraceFlags::SAMPLED);
        record(0.002, 3, TraceFlags::SAMPLED);
        record(0.002, 4, TraceFlags::NOT_SAMPLED);
        record(60.0, 5, TraceFlags::SAMPLED);
        let attributes = ["grpc", "vramd.v1.MemoryService/Seal", "OK"].map(str::to_owned).to_vec();
        let buckets = exemplars.of(metrics::RPC_DURATION.name, attributes).unwrap();
        let kept: Vec<_> = buckets.iter().flatten().map(|it| (it.value, it.trace)).collect();
        assert_eq!(kept, [(0.001, 1), (0.002, 3), (60.0, 5)].map(|(value, id)| (value, TraceId::from(id))));
        assert_eq!(buckets.len(), metrics::RPC_DURATION.boundaries.len() + 1);
        assert!(exemplars.of(metrics::RPC_DURATION.name, vec!["grpc".to_owned()]).is_none());
    }
}
