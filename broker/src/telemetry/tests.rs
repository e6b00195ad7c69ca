//! The instruments with all their sources, as Prometheus and OTLP see them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, LazyLock, Mutex, OnceLock},
    time::Duration,
};

use broker_core::{Notice, PartRef, Pressure, Tier, Time, WaitEnd, WaiterKind};
use broker_driver::{
    DeviceInfo, Driver, ExtentKind, FreePinnedFacts, LaneId, LinkFacts, Submission, Traffic,
};
use opentelemetry::{
    Context,
    metrics::{Histogram, MeterProvider as _},
    trace::{Tracer as _, TracerProvider as _},
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    metrics::{
        SdkMeterProvider,
        data::{AggregatedMetrics, MetricData, ResourceMetrics},
    },
    trace::{SdkTracerProvider, Span, SpanData, SpanProcessor},
};
use tonic::Code;
use vramd_types::{AllocationId, Bytes, CopyId, DeviceIndex, HostNode, PartIndex, Reason, SessionId};

use super::{
    calls::Methods,
    counters::{Counters, Scope},
    ended_move::{EndedMove, MoveKind},
    figures::tests::{snapshot, wide_snapshot},
    instruments::Instruments,
    metrics::{self, MetricKind, OTHER_TENANTS},
    move_counters::tests::{arrived, moved},
};
use crate::{config::Signal, reactor::Clock};

/// A histogram and its recorded values.
#[derive(Debug)]
pub(super) struct Measured {
    provider: SdkMeterProvider,
    registry: prometheus::Registry,
}

impl Default for Measured {
    fn default() -> Self {
        let registry = prometheus::Registry::new();
        let exporter = opentelemetry_prometheus::exporter().with_registry(registry.clone()).build().unwrap();
        Self { provider: SdkMeterProvider::builder().with_reader(exporter).build(), registry }
    }
}

impl Measured {
    pub(super) fn histogram(&self) -> Histogram<f64> {
        self.provider.meter("test").f64_histogram("measured").build()
    }

    /// The count over all series.
    pub(super) fn count(&self) -> u64 {
        self.counts().iter().sum()
    }

    /// The count of each series.
    pub(super) fn counts(&self) -> Vec<u64> {
        let families = self.registry.gather();
        let found = families.iter().find(|family| family.name() == "measured");
        let series = found.map_or(&[][..], |family| family.get_metric());
        series.iter().map(|series| series.get_histogram().get_sample_count()).collect()
    }
}

/// Spans that have ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Ended(Arc<Mutex<Vec<SpanData>>>);

impl Ended {
    /// A span that ends here.
    pub(super) fn span(&self) -> Span {
        let provider = SdkTracerProvider::builder().with_span_processor(self.clone()).build();
        provider.tracer("test").start("span")
    }

    /// Takes the values of an attribute of the spans that have ended since the last call.
    pub(super) fn take(&self, attribute: &str) -> Vec<String> {
        let said = |span: SpanData| {
            let found = span.attributes.iter().find(|found| found.key.as_str() == attribute);
            found.map(|found| found.value.to_string()).unwrap_or_default()
        };
        self.spans().into_iter().map(said).collect()
    }

    /// Takes the spans that have ended since the last call.
    pub(super) fn spans(&self) -> Vec<SpanData> {
        self.0.lock().unwrap().drain(..).collect()
    }
}

impl SpanProcessor for Ended {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        self.0.lock().unwrap().push(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Two devices on a shared uplink, of which one has a prefetch.
#[derive(Debug)]
struct Linked;

impl Driver for Linked {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn devices(&self) -> &[DeviceInfo] {
        static DEVICES: OnceLock<Vec<DeviceInfo>> = OnceLock::new();
        DEVICES.get_or_init(|| {
            ["GPU-0", "GPU-1"]
                .map(|uuid| DeviceInfo {
                    uuid: uuid.to_owned(),
                    name: "Simulated".to_owned(),
                    total: Bytes::gib(1),
                    context: Bytes::ZERO,
                })
                .to_vec()
        })
    }

    fn supports(&self, _: ExtentKind) -> bool {
        true
    }

    fn host_node(&self, _: DeviceIndex) -> HostNode {
        HostNode(0)
    }

    fn links(&self) -> &[LinkFacts] {
        static LINKS: OnceLock<Vec<LinkFacts>> = OnceLock::new();
        LINKS.get_or_init(|| {
            let lanes = [0, 1].map(|device| (LaneId::ToDevice(DeviceIndex(device)), 55_000_000_000)).to_vec();
            vec![LinkFacts { name: "uplink".to_owned(), lanes }]
        })
    }

    fn traffic(&self) -> Vec<Traffic> {
        let begun = [Bytes::ZERO, Bytes::mib(8), Bytes::ZERO];
        vec![Traffic { lane: LaneId::ToDevice(DeviceIndex(1)), begun }]
    }

    fn hashed_bytes(&self) -> Bytes {
        Bytes::mib(12)
    }

    fn free_pinned(&self) -> Vec<FreePinnedFacts> {
        let [ordinary, smaller, larger] = [64, 8, 16].map(Bytes::mib);
        vec![FreePinnedFacts { node: HostNode(1), ordinary, smaller, larger, rebuilds: 3 }]
    }

    fn copied_bytes(&self, _: CopyId) -> Option<Bytes> {
        None
    }

    fn submit(&self, _: Submission) {}
}

#[test]
fn links_show_their_speed_and_the_bytes_begun_on_them() {
    let (metrics, _) = metrics(100);
    let series = series(&metrics.prometheus_text(snapshot(1)).unwrap());
    let of = |name: &str, label: &str| {
        let found = series.iter().find(|(it, _)| it.starts_with(name) && it.contains(label));
        found.map(|(_, value)| *value)
    };
    assert_eq!(of("vramd_link_limit", "hw_id=\"GPU-1\""), Some(55e9));
    assert_eq!(of("vramd_link_io_bytes_total{", "vramd_copy_class=\"prefetch\""), Some(8_388_608.0));
    assert_eq!(of("vramd_link_io_bytes_total{", "vramd_copy_class=\"demand\""), Some(0.0));
    assert_eq!(of("vramd_digest_io_bytes_total", ""), Some(12.0 * 1_048_576.0));
}

#[test]
fn pools_of_devices_and_host_show_their_bytes_of_other_sizes() {
    let (metrics, _) = metrics(4000);
    let all = series(&metrics.prometheus_text(super::figures::tests::full_snapshot()).unwrap());
    let of = |metric: &str, labels: &[&str]| {
        let is = |name: &str| name.starts_with(metric) && labels.iter().all(|label| name.contains(label));
        let found = all.iter().filter(|(name, _)| is(name));
        found.map(|(_, bytes)| *bytes).sum::<f64>() / f64::from(1 << 20)
    };
    let (usage, other) = ("vramd_pool_usage_bytes{", "vramd_fragmentation_external_bytes{");
    let device = "hw_id=\"GPU-a\",vramd_host_node=\"\",vramd_tier=\"device\"";
    let host = "hw_id=\"\",vramd_host_node=\"1\",vramd_tier=\"host\"";
    assert_eq!((of(usage, &[device]), of(usage, &[host]), of(usage, &[])), (8.0, 88.0, 96.0));
    for (labels, [smaller, larger]) in
        [(["\"GPU-a\"", "\"device\""], [2.0, 4.0]), (["\"1\"", "\"host\""], [8.0, 16.0])]
    {
        let [place, tier] = labels;
        assert_eq!(of(other, &[place, tier, "vramd_extent_size=\"smaller\""]), smaller);
        assert_eq!(of(other, &[place, tier, "vramd_extent_size=\"larger\""]), larger);
    }
    assert_eq!(all["vramd_pool_rebuilds_total{vramd_host_node=\"1\"}"], 3.0);
    assert_eq!(of("vramd_fragmentation_internal_bytes{", &["team-000", "GPU-a"]), 1.0);
    assert_eq!(of("vramd_in_file_bytes{", &["team-000", "GPU-a"]), 4.0);
}

/// Metrics do not keep it alive.
fn linked() -> &'static Arc<dyn Driver> {
    static LINKED: LazyLock<Arc<dyn Driver>> = LazyLock::new(|| Arc::new(Linked));
    &LINKED
}

fn metrics(series_max: usize) -> (Instruments, Arc<Counters>) {
    let counters = Arc::new(Counters::default());
    let resource = Resource::builder_empty().build();
    (
        Instruments::new(resource, Arc::clone(&counters), series_max, linked(), Clock::start()).unwrap(),
        counters,
    )
}

/// The value of each series, by name and labels in Prometheus's format.
fn series(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}

#[test]
fn every_metric_has_its_declared_name_and_help() {
    let (metrics, counters) = metrics(4000);
    counters.count_refusal(Scope::Call, Reason::QuotaLimit);
    counters.count_dropped(Signal::Traces, 3);
    counters.count_export_failure(Signal::Logs);
    let methods: &'static Methods = Box::leak(Box::default());
    metrics.calls.record(methods.find("guess"), Code::NotFound, Duration::from_millis(1));
    metrics.revocations.record(0.001, &[]);
    let part = PartRef { allocation: AllocationId::from_shown(1), part: PartIndex(0) };
    for notice in [moved("team-000"), arrived(part, "team-000")] {
        let ended = EndedMove::of(&notice).unwrap();
        metrics.moves().count(&ended);
        metrics.tenants().count_copied(&ended, Time::START);
        metrics.histograms.record_move(&ended, Duration::from_millis(1));
    }
    metrics
        .moves()
        .count_used([part], |tenant, bytes| metrics.tenants().count_used(tenant, bytes, Time::START));
    let (what, since, end) = (WaiterKind::Batch, Time::START, WaitEnd::Refused);
    let (session, call) = (SessionId::from_shown(1), 1);
    for notice in [
        Notice::WaitEnded { waiter: what, since, end },
        Notice::PinWaited { tenant: "team-000".into(), session, call, since, end },
        Notice::PrefetchUsed {
            tenant: "team-000".into(),
            bytes: Bytes::mib(2),
            lead: Duration::from_millis(1),
        },
        Notice::TurnGranted {
            session,
            turn: 1,
            tenant: "team-000".into(),
            device: DeviceIndex(0),
            set: "llama".into(),
            bytes: Bytes::mib(2),
            since: Time::START,
            admitted: Time::START,
        },
        Notice::TurnEnded {
            session,
            turn: 1,
            tenant: "team-000".into(),
            device: DeviceIndex(0),
            set: "llama".into(),
            granted: Time::START,
            end: broker_core::TurnEnd::Yielded,
        },
    ] {
        metrics.histograms.record_wait(&notice, |_| Duration::from_millis(1));
        metrics.tenants().count(&notice, || Time::START);
    }
    counters.count_pin_stall();
    counters.count_create_retry();
    counters.count_lost_line();
    metrics.pressures().count(&entered(Pressure::High));
    let text = metrics.prometheus_text(super::figures::tests::full_snapshot()).unwrap();
    for metric in metrics::ALL {
        let name = metric.prometheus_name();
        let kind = match metric.kind {
            MetricKind::Counter => "counter",
            MetricKind::UpDownCounter | MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "{name} {kind}\n{text}");
        assert!(text.contains(&format!("# HELP {name} {}\n", metric.meaning)), "{name}");
    }
    let families = text.lines().filter(|line| line.starts_with("# TYPE ")).count();
    assert!(text.contains("process_cpu_seconds_total ") && text.contains("process_open_fds "), "{text}");
    assert_eq!(families, metrics::ALL.len(), "and there is no other\n{text}");
    assert!(text.contains("vramd_telemetry_dropped_total{vramd_telemetry_signal=\"traces\"} 3\n"), "{text}");
    let usage = |tier: &str, state: &str| {
        let labels = format!("vramd_memory_state=\"{state}\",vramd_tier=\"{tier}\"");
        let all = series(&text);
        let of = |name: &&String| name.starts_with("vramd_memory_usage_bytes{") && name.contains(&labels);
        all.iter().find(|(name, _)| of(name)).map_or(0.0, |(_, bytes)| bytes / f64::from(1 << 20))
    };
    // The states of each tier add up to its charge.
    assert_eq!((usage("device", "resident"), usage("device", "reserved")), (12.0, 2.0));
    assert_eq!((usage("host", "resident"), usage("host", "reserved")), (21.0, 2.0));
}

/// A change of level below the device of a full snapshot.
fn entered(to: Pressure) -> Notice {
    let (device, tier, from) = (DeviceIndex(0), Tier::Host, Pressure::Normal);
    Notice::PressureChanged { device, tier, from, to, charged: Bytes::ZERO, capacity: Bytes::ZERO }
}

#[test]
fn the_level_of_pressure_is_shown_where_it_is_normal_too() {
    let (metrics, _) = metrics(4000);
    for to in [Pressure::High, Pressure::Normal, Pressure::High] {
        metrics.pressures().count(&entered(to));
    }
    let all = series(&metrics.prometheus_text(super::figures::tests::full_snapshot()).unwrap());
    let of = |name: &str, labels: &str| {
        let found = all.iter().find(|(series, _)| series.starts_with(name) && series.contains(labels));
        found.map(|(_, value)| *value)
    };
    assert_eq!(of("vramd_pressure_level{", "vramd_tier=\"device\""), Some(0.0));
    assert_eq!(of("vramd_pressure_level{", "vramd_tier=\"host\""), Some(2.0));
    assert_eq!(of("vramd_pressure_level{", "vramd_tier=\"disk\""), None, "there is no such tier");
    for (name, value) in
        [("vramd_pressure_batch_factor_ratio{", 0.8), ("vramd_pressure_full_in_seconds{", 2.0)]
    {
        let sources = ["device", "host", "disk"].map(|tier| of(name, &format!("vramd_tier=\"{tier}\"")));
        assert_eq!(sources, [Some(value), Some(value), None], "{name}");
    }
    let threshold = |level: &str| of("vramd_pressure_threshold_ratio{", &format!("level=\"{level}\""));
    assert_eq!((threshold("elevated"), threshold("critical")), (Some(0.8), Some(0.95)));
    let setting = |name: &str| of(&format!("vramd_pressure_{name}"), "");
    assert_eq!((setting("fall_ratio"), setting("evict_to_ratio")), (Some(0.03), Some(0.85)));
    assert_eq!(setting("cold_after_seconds"), Some(30.0));
    let share = |class: &str| of("vramd_link_share_ratio{", &format!("class=\"{class}\""));
    assert_eq!(["demand", "prefetch", "write_back"].map(share), [Some(0.3), Some(0.5), Some(0.2)]);
    let changes =
        |level: &str| of("vramd_pressure_changes_total{", &format!("level=\"{level}\",vramd_tier=\"host\""));
    assert_eq!((changes("high"), changes("normal"), changes("critical")), (Some(2.0), Some(1.0), Some(0.0)));
}

#[test]
fn every_attribute_is_one_that_the_table_names() {
    let (metrics, counters) = metrics(4000);
    counters.count_refusal(Scope::Item, Reason::NotOwner);
    let data = metrics.otlp_data(super::figures::tests::full_snapshot()).unwrap();
    let mut seen = 0;
    for metric in data.scope_metrics().flat_map(|scope| scope.metrics()) {
        let definition = metrics::ALL.iter().find(|known| known.name == metric.name()).unwrap();
        let AggregatedMetrics::I64(MetricData::Sum(sum)) = metric.data() else { continue };
        for point in sum.data_points() {
            let keys: Vec<_> = point.attributes().map(|attribute| attribute.key.as_str()).collect();
            assert_eq!(keys.len(), definition.attributes.len(), "{}", metric.name());
            assert!(
                keys.iter().all(|key| definition.attributes.contains(key)),
                "{}: {keys:?}",
                metric.name()
            );
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen} series");
}

#[test]
fn both_readers_see_the_same_and_only_counters_show_zeros() {
    let (metrics, _) = metrics(4000);
    let text = metrics.prometheus_text(snapshot(2)).unwrap();
    let of_prometheus = series(&text);
    let zeros = of_prometheus.iter().filter(|(_, value)| **value == 0.0);
    assert!(zeros.clone().all(|(name, _)| name.contains("_total")), "{text}");
    let refusals = zeros.filter(|(name, _)| name.starts_with("vramd_refusals_total{")).count();
    assert_eq!(refusals, 4 * Reason::ALL.len(), "the first refusal is an increase");
    let data = metrics.otlp_data(snapshot(2)).unwrap();
    let usage = points(&data, metrics::QUOTA_USAGE.name);
    let read = of_prometheus.keys().filter(|name| name.starts_with("vramd_quota_usage_bytes{")).count();
    assert_eq!((usage, read), (2 * 2 * (6 + 4), 2 * 2 * (6 + 4)));
    let gone = series(&metrics.prometheus_text(snapshot(0)).unwrap());
    assert!(!gone.keys().any(|name| name.contains("vramd_quota")), "{gone:?}");
}

#[test]
fn nothing_overflows_and_nothing_is_lost_however_many_tenants_there_are() {
    for series_max in [512, 4000] {
        let (metrics, _) = metrics(series_max);
        let data = metrics.otlp_data(snapshot(900)).unwrap();
        for metric in metrics::ALL.iter().filter(|metric| metric.is_by_tenant()) {
            assert!(points(&data, metric.name) <= series_max, "{}", metric.name);
        }
        let text = metrics.prometheus_text(snapshot(900)).unwrap();
        assert!(!text.contains("overflow"), "{text}");
        assert!(text.contains(OTHER_TENANTS));
        let all = series(&text);
        let sum: f64 =
            all.iter().filter(|(name, _)| name.starts_with("vramd_quota_usage_bytes")).map(|(_, v)| v).sum();
        assert_eq!(sum, f64::from(16 << 20) * 4.0 * 900.0);
    }
}

/// 200 tenants on two devices in two tiers, in one scrape.
#[test]
fn two_hundred_tenants_have_series_of_their_own() {
    let (metrics, _) = metrics(5_000);
    let text = metrics.prometheus_text(snapshot(200)).unwrap();
    assert!(!text.contains(OTHER_TENANTS), "there is room for them");
    // In each place: a guarantee, a limit and the states. For each tenant: allocations, internal fragmentation, bytes in
    // place and bytes in files. Then the thresholds of three levels, the other pressure settings, three links, the shares of
    // three classes, the digest count, four series of pools, the build and whether memory is simulated.
    let is_counted =
        |name: &str, value: f64| !name.starts_with("process_") && (value != 0.0 || !name.contains("_total"));
    let shown = series(&text).into_iter().filter(|(name, value)| is_counted(name, *value));
    assert_eq!(
        shown.count(),
        200 * (2 * (1 + 1 + 6) + 2 * (1 + 1 + 4) + 4) + 4 + 3 + 3 + 3 + 3 + 1 + 4 + 1 + 1
    );
}

/// More than a real node has at once: all of its 200 tenants are charged in three tiers of eight devices, and have moved
/// memory between all of them.
#[test]
fn a_scrape_of_200_tenants_in_3_tiers_of_8_devices_is_below_2_mb() {
    let (metrics, _) = metrics(crate::config::Telemetry::default().cardinality_max);
    let (session, call, since, bytes) = (SessionId::from_shown(1), 1, Time::START, Bytes::mib(2));
    let kinds = (0..8).flat_map(|device| MoveKind::all(DeviceIndex(device), (true, true)));
    let happens = |kind: &MoveKind| {
        matches!(kind.cause, "demand" | "pressure" | "prefetch" | "write_back")
            && matches!(kind.outcome, "moved" | "clean")
    };
    let kinds: Vec<_> = kinds.filter(happens).collect();
    for tenant in 0..200 {
        let tenant: Arc<str> = format!("team-{tenant:03}").into();
        let opened = Notice::SessionOpened { session, tenant: Arc::clone(&tenant), pid: 1 };
        let end = WaitEnd::Served;
        let waited = Notice::PinWaited { tenant: Arc::clone(&tenant), session, call, since, end };
        for notice in [opened, waited] {
            metrics.histograms.record_wait(&notice, |_| Duration::from_millis(1));
            metrics.tenants().count(&notice, || Time::START);
        }
        for kind in kinds.iter().copied() {
            let part = PartRef { allocation: AllocationId::from_shown(1), part: PartIndex(0) };
            let (tenant, problem, for_parts) = (&*tenant, None, &[][..]);
            let ended = EndedMove { part, tenant, kind, bytes, began: since, problem, for_parts, sum: None };
            metrics.moves().count(&ended);
            metrics.tenants().count_copied(&ended, Time::START);
            metrics.histograms.record_move(&ended, Duration::from_millis(1));
        }
    }
    let text = metrics.prometheus_text(wide_snapshot(200, 8)).unwrap();
    assert!(text.len() < 2_000_000, "{} bytes", text.len());
    assert!(text.len() > 1_000_000, "{} bytes are too few for what this test is about", text.len());
    let named = |metric: &str| {
        let all = series(&text);
        let of_metric = all.keys().filter(|name| name.starts_with(metric) && !name.contains(OTHER_TENANTS));
        of_metric
            .filter_map(|name| Some(name.split_once("vramd_tenant=\"")?.1[..8].to_owned()))
            .collect::<BTreeSet<_>>()
            .len()
    };
    assert_eq!(named("vramd_tenant_refusals_total{"), 200);
    assert_eq!(named("vramd_tenant_migration_io_bytes_total{"), 200);
    assert_eq!(named("vramd_quota_limit_bytes{"), (2000 - 8 * (6 + 4 + 4)) / (8 * 5));
}

fn points(data: &ResourceMetrics, name: &str) -> usize {
    let mut metrics = data.scope_metrics().flat_map(|scope| scope.metrics());
    match metrics.find(|metric| metric.name() == name).map(|metric| metric.data()) {
        Some(AggregatedMetrics::I64(MetricData::Sum(sum))) => sum.data_points().count(),
        _ => 0,
    }
}
