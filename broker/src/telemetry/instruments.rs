//! Creates the instruments from the declared metrics. Prometheus and OTLP share one set.
//!
//! A collection first takes one snapshot of the broker, and all instruments read that snapshot. Series with the value
//! zero are left out of present amounts. Counters and gauges show them. The snapshot and the reading happen on one
//! thread with nothing in between.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
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
    call_durations::CallDurations,
    counters::Counters,
    exemplars::Exemplars,
    figures::{self, Figures, NamedTenants, Snapshot, series_per_tenant},
    histograms::Histograms,
    metrics::{self, Definition, MetricKind},
    move_counters::MoveCounters,
    openmetrics,
    pressure_counters::PressureCounters,
    series,
    tenant_counters::TenantCounters,
};

use crate::reactor::Clock;

/// All tiers.
const TIERS: [Tier; 3] = [Tier::Device, Tier::Host, Tier::Disk];

#[derive(Debug)]
pub(super) struct Instruments {
    provider: SdkMeterProvider,
    prometheus: prometheus::Registry,
    reader: Reader,
    sources: Arc<Sources>,
    named_tenants: Mutex<NamedTenants>,
    /// The broker's clock.
    clock: Clock,
    pub(super) calls: CallDurations,
    pub(super) revocations: Histogram<f64>,
    pub(super) histograms: Histograms,
    pub(super) exemplars: Exemplars,
}

/// The sources that instruments read at a collection.
#[derive(Debug)]
pub(super) struct Sources {
    figures: Mutex<Arc<Figures>>,
    pub(super) counters: Arc<Counters>,
    pub(super) moves: MoveCounters,
    pub(super) pressures: PressureCounters,
    pub(super) tenants: TenantCounters,
    /// A weak reference: telemetry lives as long as the process and must not keep the driver alive.
    driver: Weak<dyn Driver>,
}

impl Sources {
    pub(super) fn figures(&self) -> Arc<Figures> {
        Arc::clone(&self.figures.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the driver, or `None` once the daemon has dropped it.
    pub(super) fn driver(&self) -> Option<Arc<dyn Driver>> {
        self.driver.upgrade()
    }
}

impl Instruments {
    pub(super) fn new(
        resource: Resource,
        counters: Arc<Counters>,
        series_max: usize,
        driver: &Arc<dyn Driver>,
        clock: Clock,
    ) -> Result<Self, OTelSdkError> {
        let uuids: Vec<_> = driver.devices().iter().map(|device| device.uuid.clone()).collect();
        let devices = uuids.len();
        let prometheus = prometheus::Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(prometheus.clone())
            .scope_info_enabled(false)
            .build()?;
        let reader = Reader(Arc::new(exporter));
        // `NamedTenants` keeps to the limit, except if one tenant is on very many devices.
        let series_each = series_per_tenant(TIERS);
        let limit = series_max.max(series_each.saturating_mul(devices));
        let by_tenant = metrics::ALL.iter().filter(|metric| metric.is_by_tenant()).map(|metric| metric.name);
        let by_tenant: Vec<_> = by_tenant.collect();
        let provider = SdkMeterProvider::builder()
            .with_resource(resource)
            .with_reader(reader.clone())
            .with_view(move |instrument| {
                let wide = by_tenant.contains(&instrument.name());
                wide.then(|| Stream::builder().with_cardinality_limit(limit).build().ok()).flatten()
            })
            .build();
        let moves = MoveCounters::default();
        let pressures = PressureCounters::new(devices);
        let (figures, driver) = (Mutex::default(), Arc::downgrade(driver));
        let tenants = TenantCounters::new(series_max);
        let sources = Arc::new(Sources { figures, counters, moves, pressures, tenants, driver });
        let meter = provider.meter("vramd");
        for (definition, series) in series::OBSERVED {
            observe(&meter, definition, *series, Arc::clone(&sources));
        }
        for (definition, series) in series::RATIOS {
            observe_ratio(&meter, definition, *series, Arc::clone(&sources));
        }
        let calls = CallDurations::new(histogram(&meter, &metrics::RPC_DURATION));
        let revocations = histogram(&meter, &metrics::REVOCATION_DURATION);
        let histograms = Histograms::new(&meter, series_max, uuids);
        let named_tenants = Mutex::new(NamedTenants::new(series_max));
        let exemplars = Exemplars::default();
        Ok(Self {
            provider,
            prometheus,
            reader,
            sources,
            named_tenants,
            clock,
            calls,
            revocations,
            histograms,
            exemplars,
        })
    }

    /// The counters of moves.
    pub(super) fn moves(&self) -> &MoveCounters {
        &self.sources.moves
    }

    /// The counters of refusals and waits by tenant.
    pub(super) fn tenants(&self) -> &TenantCounters {
        &self.sources.tenants
    }

    /// The counters of pressure levels.
    pub(super) fn pressures(&self) -> &PressureCounters {
        &self.sources.pressures
    }

    /// Collects all metrics in Prometheus's text format.
    pub(super) fn prometheus_text(&self, snapshot: Snapshot) -> Result<String, prometheus::Error> {
        let _collection = self.refresh(snapshot);
        TextEncoder::new().encode_to_string(&self.prometheus.gather())
    }

    /// Collects all metrics in the format OpenMetrics, with exemplars.
    pub(super) fn openmetrics_text(&self, snapshot: Snapshot) -> Result<String, std::fmt::Error> {
        let _collection = self.refresh(snapshot);
        openmetrics::text(&self.prometheus.gather(), &self.exemplars)
    }

    /// Collects all metrics as OTLP data.
    pub(super) fn otlp_data(&self, snapshot: Snapshot) -> Result<ResourceMetrics, OTelSdkError> {
        let _collection = self.refresh(snapshot);
        let mut data = ResourceMetrics::default();
        self.reader.collect(&mut data)?;
        Ok(data)
    }

    /// Until the guard is dropped no other collection begins, so all tables of one are of the same moment.
    fn refresh(&self, snapshot: Snapshot) -> MutexGuard<'_, NamedTenants> {
        self.calls.flush();
        let mut named_tenants = self.named_tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        let refused = self.sources.tenants.refused_within(figures::HOLD, now);
        let figures = named_tenants.compute_figures(snapshot, &refused, now);
        *self.sources.figures.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(figures);
        named_tenants
    }
}

impl Drop for Instruments {
    fn drop(&mut self) {
        // The provider holds no data to flush, so an error changes nothing.
        let _ = self.provider.shutdown();
    }
}

fn observe(meter: &Meter, definition: &'static Definition, series: series::Series, sources: Arc<Sources>) {
    match definition.kind {
        MetricKind::Counter => {
            let counter = meter.u64_observable_counter(definition.name);
            let counter = counter.with_unit(definition.unit).with_description(definition.meaning);
            let each = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<u64>| {
                series(&sources, &mut |value, attributes| observer.observe(value, attributes));
            };
            let _ = counter.with_callback(each).build();
        }
        MetricKind::UpDownCounter => {
            let counter = meter.i64_observable_up_down_counter(definition.name);
            let counter = counter.with_unit(definition.unit).with_description(definition.meaning);
            let each = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<i64>| {
                series(
                    &sources,
                    &mut non_zero(|value, attributes| {
                        observer.observe(i64::try_from(value).unwrap_or(i64::MAX), attributes);
                    }),
                );
            };
            let _ = counter.with_callback(each).build();
        }
        MetricKind::Gauge => {
            let gauge = meter.u64_observable_gauge(definition.name);
            let gauge = gauge.with_unit(definition.unit).with_description(definition.meaning);
            let each = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<u64>| {
                series(&sources, &mut |value, attributes| observer.observe(value, attributes));
            };
            let _ = gauge.with_callback(each).build();
        }
        MetricKind::Histogram => unreachable!("{} is no count", definition.name),
    }
}

fn observe_ratio(
    meter: &Meter,
    definition: &'static Definition,
    series: series::Ratios,
    sources: Arc<Sources>,
) {
    let gauge = meter.f64_observable_gauge(definition.name);
    let gauge = gauge.with_unit(definition.unit).with_description(definition.meaning);
    let each = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<f64>| {
        series(&sources, &mut |value, attributes| observer.observe(value, attributes));
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

/// The one reader, for Prometheus and for OTLP. With two readers, each would see values that were observed for the
/// other, including series that no longer exist.
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
