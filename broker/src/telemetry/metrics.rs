//! The instruments, made of the registry, and what is read out of them: one set for Prometheus and OTLP alike.
//!
//! A collection begins with one look at the broker, which all instruments then read; a series that is zero is left out, but of a gauge.
//! Whoever collects does both on one thread with nothing in between.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use broker_core::Tier;
use broker_driver::Driver;
use opentelemetry::{
    KeyValue,
    metrics::{Histogram, Meter, MeterProvider as _},
};
use opentelemetry_prometheus::PrometheusExporter;
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    metrics::{
        InstrumentKind, Pipeline, SdkMeterProvider, Stream, Temporality, data::ResourceMetrics,
        reader::MetricReader,
    },
};
use prometheus::TextEncoder;

use super::{
    counters::Counters,
    durations::Durations,
    ended_move::Kind as Move,
    ends::Ends,
    figures::{Figures, Look, Roll, series_each},
    moves::Moves,
    pressures::Pressures,
    registry::{self, Definition, Kind},
    series,
};

/// All there can be.
const TIERS: [Tier; 3] = [Tier::Device, Tier::Host, Tier::Disk];

#[derive(Debug)]
pub(super) struct Metrics {
    provider: SdkMeterProvider,
    prometheus: prometheus::Registry,
    reader: Reader,
    shown: Arc<Shown>,
    roll: Mutex<Roll>,
    pub(super) calls: Durations,
    pub(super) revocations: Histogram<f64>,
    pub(super) ends: Ends,
}

/// What instruments read when they are collected.
#[derive(Debug)]
pub(super) struct Shown {
    figures: Mutex<Arc<Figures>>,
    pub(super) counters: Arc<Counters>,
    pub(super) moves: Moves,
    pub(super) pressures: Pressures,
    /// Telemetry lives for as long as the process, and must not keep the driver.
    driver: Weak<dyn Driver>,
}

impl Shown {
    pub(super) fn figures(&self) -> Arc<Figures> {
        Arc::clone(&self.figures.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// `None` once the daemon has given it back.
    pub(super) fn driver(&self) -> Option<Arc<dyn Driver>> {
        self.driver.upgrade()
    }
}

impl Metrics {
    pub(super) fn new(
        resource: Resource,
        counters: Arc<Counters>,
        series_max: usize,
        driver: &Arc<dyn Driver>,
    ) -> Result<Self, OTelSdkError> {
        let devices = driver.devices().len();
        let prometheus = prometheus::Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(prometheus.clone())
            .scope_info_enabled(false)
            .build()?;
        let reader = Reader(Arc::new(exporter));
        // The roll keeps to the limit, but for one tenant on very many devices.
        let each = series_each(TIERS).max(Move::ON_DEVICE);
        let limit = series_max.max(each.saturating_mul(devices));
        let by_tenant = registry::ALL.iter().filter(|metric| metric.is_by_tenant()).map(|metric| metric.name);
        let by_tenant: Vec<_> = by_tenant.collect();
        let provider = SdkMeterProvider::builder()
            .with_resource(resource)
            .with_reader(reader.clone())
            .with_view(move |instrument| {
                let wide = by_tenant.contains(&instrument.name());
                wide.then(|| Stream::builder().with_cardinality_limit(limit).build().ok()).flatten()
            })
            .build();
        let moves = Moves::new(series_max, devices);
        let pressures = Pressures::new(devices);
        let (figures, driver) = (Mutex::default(), Arc::downgrade(driver));
        let shown = Arc::new(Shown { figures, counters, moves, pressures, driver });
        let meter = provider.meter("vramd");
        for (definition, series) in series::OBSERVED {
            observe(&meter, definition, *series, Arc::clone(&shown));
        }
        for (definition, series) in series::RATIOS {
            observe_ratio(&meter, definition, *series, Arc::clone(&shown));
        }
        let calls = Durations::new(histogram(&meter, &registry::RPC_DURATION));
        let revocations = histogram(&meter, &registry::REVOCATION_DURATION);
        let ends = Ends::new(&meter);
        let roll = Mutex::new(Roll::new(series_max));
        Ok(Self { provider, prometheus, reader, shown, roll, calls, revocations, ends })
    }

    /// Where moves are counted.
    pub(super) fn moves(&self) -> &Moves {
        &self.shown.moves
    }

    /// Where steps of pressure are counted.
    pub(super) fn pressures(&self) -> &Pressures {
        &self.shown.pressures
    }

    /// As Prometheus reads it.
    pub(super) fn text(&self, look: Look) -> Result<String, prometheus::Error> {
        self.show(look);
        TextEncoder::new().encode_to_string(&self.prometheus.gather())
    }

    /// As it is sent to a collector.
    pub(super) fn data(&self, look: Look) -> Result<ResourceMetrics, OTelSdkError> {
        self.show(look);
        let mut data = ResourceMetrics::default();
        self.reader.collect(&mut data)?;
        Ok(data)
    }

    fn show(&self, look: Look) {
        self.calls.settle();
        let figures = self.roll.lock().unwrap_or_else(PoisonError::into_inner).figures(look);
        *self.shown.figures.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(figures);
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        // Nothing is kept in it that has to go anywhere, so an error changes nothing.
        let _ = self.provider.shutdown();
    }
}

fn observe(meter: &Meter, definition: &'static Definition, series: series::Series, shown: Arc<Shown>) {
    match definition.kind {
        Kind::Counter => {
            let counter = meter.u64_observable_counter(definition.name);
            let counter = counter.with_unit(definition.unit).with_description(definition.meaning);
            let each = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<u64>| {
                series(&shown, &mut non_zero(|value, attributes| observer.observe(value, attributes)));
            };
            let _ = counter.with_callback(each).build();
        }
        Kind::UpDownCounter => {
            let counter = meter.i64_observable_up_down_counter(definition.name);
            let counter = counter.with_unit(definition.unit).with_description(definition.meaning);
            let each = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<i64>| {
                series(
                    &shown,
                    &mut non_zero(|value, attributes| {
                        observer.observe(i64::try_from(value).unwrap_or(i64::MAX), attributes);
                    }),
                );
            };
            let _ = counter.with_callback(each).build();
        }
        Kind::Gauge => {
            let gauge = meter.u64_observable_gauge(definition.name);
            let gauge = gauge.with_unit(definition.unit).with_description(definition.meaning);
            let each = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<u64>| {
                series(&shown, &mut |value, attributes| observer.observe(value, attributes));
            };
            let _ = gauge.with_callback(each).build();
        }
        Kind::Histogram => unreachable!("{} is no count", definition.name),
    }
}

fn observe_ratio(meter: &Meter, definition: &'static Definition, series: series::Ratios, shown: Arc<Shown>) {
    let gauge = meter.f64_observable_gauge(definition.name);
    let gauge = gauge.with_unit(definition.unit).with_description(definition.meaning);
    let each = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<f64>| {
        series(&shown, &mut |value, attributes| observer.observe(value, attributes));
    };
    let _ = gauge.with_callback(each).build();
}

fn non_zero(mut observe: impl FnMut(u64, &[KeyValue])) -> impl FnMut(u64, &[KeyValue]) {
    move |value, attributes| {
        if value > 0 {
            observe(value, attributes);
        }
    }
}

pub(super) fn histogram(meter: &Meter, definition: &'static Definition) -> Histogram<f64> {
    meter
        .f64_histogram(definition.name)
        .with_unit(definition.unit)
        .with_description(definition.meaning)
        .with_boundaries(definition.boundaries.to_vec())
        .build()
}

pub(super) fn size_histogram(meter: &Meter, definition: &'static Definition) -> Histogram<u64> {
    meter
        .u64_histogram(definition.name)
        .with_unit(definition.unit)
        .with_description(definition.meaning)
        .with_boundaries(definition.boundaries.to_vec())
        .build()
}

/// The one reader, for Prometheus and for what is pushed. With two of them each would see what was observed for the other,
/// series that are no more among it.
#[derive(Clone, Debug)]
struct Reader(Arc<PrometheusExporter>);

impl MetricReader for Reader {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, data: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(data)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}
