//! Starts and stops telemetry: before the first log line, and after the last call.

use std::{
    fs,
    net::TcpListener,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::Duration,
};

use broker_driver::Driver;
use opentelemetry::KeyValue;
use opentelemetry_otlp::{LogExporter, MetricExporter, SpanExporter};
use opentelemetry_sdk::{
    Resource,
    logs::{LogBatch, LogExporter as _, SdkLoggerProvider},
    metrics::exporter::PushMetricExporter as _,
    trace::{SpanData, SpanExporter as _},
};
use tokio::{
    runtime::{self, Runtime},
    sync::watch,
    time::{MissedTickBehavior, interval, timeout},
};

use super::{
    Shared, Telemetry,
    calls::Methods,
    counters::Counters,
    export_queue::{Health, Queue, QueueReader, queue, stopped, within_timeout},
    figures::Snapshot,
    http::{self, HttpState, Scrapes},
    instruments::Instruments,
    logs::{self, Record},
    otlp::Collector,
    page::{Facts, WebPage},
    revocation_times::RevocationTimes,
    traces::Traces,
};
use crate::{
    config::{self, Signal},
    exit::Failure,
    moves::Moves,
    reactor::{Clock, Inbox},
    socket_keeper::Unreachable,
};

/// How long the stop of the daemon may wait for unsent items.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// The configured telemetry before it starts. Lines that are logged now are sent after the start.
#[derive(Debug)]
pub struct TelemetrySetup {
    config: config::Telemetry,
    collector: Option<Collector>,
    counters: Arc<Counters>,
    logs: Option<(SdkLoggerProvider, QueueReader<Record>)>,
    listener: Option<TcpListener>,
}

/// Facts about the daemon that all telemetry carries.
#[derive(Clone, Debug)]
pub struct DaemonFacts<'a> {
    /// `sim` or `cuda`.
    pub driver: &'a str,
    pub boot_epoch: u64,
    /// UUIDs.
    pub devices: &'a [String],
    pub links: &'a Arc<dyn Driver>,
    pub moves: &'a Moves,
    pub unreachable: Unreachable,
}

impl TelemetrySetup {
    pub fn new(config: &config::Telemetry) -> Result<Self, Failure> {
        let collector = Collector::of(config).map_err(Failure::Telemetry)?;
        let counters = Arc::new(Counters::default());
        let logs = collector.as_ref().filter(|collector| collector.is_sent(Signal::Logs)).map(|_| {
            let (queue, waiting) = queue(Signal::Logs, &counters);
            (logs::provider(queue), waiting)
        });
        Ok(Self { config: config.clone(), collector, counters, logs, listener: None })
    }

    pub(super) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    pub(super) fn log_provider(&self) -> Option<&SdkLoggerProvider> {
        self.logs.as_ref().map(|(provider, _)| provider)
    }

    /// Binds the address for metrics, so that a daemon which may not have it does not start.
    pub fn listen(&mut self) -> Result<(), Failure> {
        let Some(address) = self.config.prometheus_listen else { return Ok(()) };
        let listener = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = listener.map_err(|error| {
            Failure::Telemetry(format!("telemetry.prometheus_listen: cannot listen on {address}: {error}"))
        })?;
        // If the configuration leaves the port to the system, this is the port.
        let address = listener.local_addr().unwrap_or(address);
        tracing::info!(%address, "metrics served");
        self.listener = Some(listener);
        Ok(())
    }

    /// Starts all configured telemetry. `clock` is the broker's clock.
    pub fn start(
        self,
        inbox: Inbox,
        clock: Clock,
        facts: DaemonFacts<'_>,
    ) -> Result<(Telemetry, Running), Failure> {
        let Self { config, collector, counters, logs, listener } = self;
        if collector.is_none() && listener.is_none() {
            return Ok((Telemetry::default(), Running(None)));
        }
        let failed = |what: &str, problem: &dyn std::fmt::Display| {
            Failure::Telemetry(format!("cannot {what} for telemetry: {problem}"))
        };
        // By default the runtime looks for new connections after every 61 steps of its tasks. To draw a page or to export
        // metrics is a long step, and a probe would wait for all of them.
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .event_interval(1)
            .build()
            .map_err(|error| failed("start a runtime", &error))?;
        let resource = resource(&facts);
        let (series_max, driver) = (config.cardinality_max, facts.links);
        let metrics = Instruments::new(resource.clone(), Arc::clone(&counters), series_max, driver, clock)
            .map_err(|error| failed("make instruments", &error))?;
        let page = (config.web_page && listener.is_some()).then(|| {
            let (driver, boot_epoch) = (facts.driver.to_owned(), facts.boot_epoch);
            let page = Facts { host: host_name(), version: env!("CARGO_PKG_VERSION"), driver, boot_epoch };
            Arc::new(WebPage::new(page, clock, facts.moves.clone()))
        });
        let traced = collector.as_ref().is_some_and(|collector| collector.is_sent(Signal::Traces));
        let (traces, spans) = traced
            .then(|| queue(Signal::Traces, &counters))
            .map(|(queue, waiting): (Queue<SpanData>, _)| {
                (
                    Traces::new(resource.clone(), queue, config.traces_sample_ratio.get(), facts.devices),
                    waiting,
                )
            })
            .unzip();
        let revocations = Mutex::new(RevocationTimes::new(metrics.revocations.clone()));
        let shared: &'static Shared = Box::leak(Box::new(Shared {
            metrics,
            counters,
            methods: Methods::default(),
            clock,
            traces,
            revocations,
        }));
        let (stop, stopped) = watch::channel(false);
        let outlets = {
            // The exporters register their connections with this runtime; they connect when they first send.
            let _inside = runtime.enter();
            let listener = listener.map(tokio::net::TcpListener::from_std).transpose();
            let listener = listener.map_err(|error| failed("listen", &error))?;
            let exporters = collector
                .map(|collector| Exporters::open(&collector, &resource))
                .transpose()
                .map_err(|error| failed("prepare the way to the collector", &error))?;
            Outlets {
                listener,
                exporters,
                spans,
                logs: logs.map(|(_, waiting)| waiting),
                state: HttpState {
                    shared,
                    inbox,
                    stop: stopped,
                    scrapes: Scrapes::default(),
                    unreachable: facts.unreachable,
                    page,
                },
                interval: config.export_interval,
            }
        };
        let thread = thread::Builder::new().name("vramd-telemetry".to_owned());
        let thread =
            thread.spawn(move || run(&runtime, outlets)).map_err(|error| failed("start a thread", &error))?;
        Ok((Telemetry(Some(shared)), Running(Some((stop, thread)))))
    }
}

/// Telemetry that is sent and served while this lives.
#[derive(Debug)]
pub struct Running(Option<(watch::Sender<bool>, JoinHandle<()>)>);

impl Running {
    /// Sends what is left, within two seconds. The reactor must still run.
    pub async fn stop(self) {
        let Some((stop, thread)) = self.0 else { return };
        stop.send_replace(true);
        // The thread ends by itself in time. If it panicked, the panic was logged.
        let _ = tokio::task::spawn_blocking(move || thread.join()).await;
    }
}

/// The exporters of the signals that are sent.
#[derive(Debug)]
struct Exporters {
    metrics: Option<MetricExporter>,
    spans: Option<SpanExporter>,
    logs: Option<LogExporter>,
}

impl Exporters {
    fn open(
        collector: &Collector,
        resource: &Resource,
    ) -> Result<Self, opentelemetry_otlp::ExporterBuildError> {
        let sent = |signal| collector.is_sent(signal).then_some(());
        let mut spans = sent(Signal::Traces).map(|()| collector.spans()).transpose()?;
        let mut logs = sent(Signal::Logs).map(|()| collector.logs()).transpose()?;
        spans.iter_mut().for_each(|exporter| exporter.set_resource(resource));
        logs.iter_mut().for_each(|exporter| exporter.set_resource(resource));
        let metrics = sent(Signal::Metrics).map(|()| collector.metrics()).transpose()?;
        tracing::info!(collector = collector.describe(), "telemetry sent");
        Ok(Self { metrics, spans, logs })
    }
}

#[derive(Debug)]
struct Outlets {
    listener: Option<tokio::net::TcpListener>,
    exporters: Option<Exporters>,
    spans: Option<QueueReader<SpanData>>,
    logs: Option<QueueReader<Record>>,
    state: HttpState,
    interval: Duration,
}

/// The body of the telemetry thread.
fn run(runtime: &Runtime, outlets: Outlets) {
    let Outlets { listener, exporters, spans, logs, state, interval } = outlets;
    let mut stop = state.stop.clone();
    runtime.block_on(async move {
        let all = async {
            let Exporters { metrics: by_metrics, spans: by_spans, logs: by_logs } =
                exporters.unwrap_or(Exporters { metrics: None, spans: None, logs: None });
            tokio::join!(
                async {
                    if let Some(listener) = listener {
                        http::serve(listener, state.clone()).await;
                    }
                },
                async {
                    if let Some(page) = &state.page {
                        page.sample(&state).await;
                    }
                },
                async {
                    if let Some(exporter) = by_metrics {
                        push(&exporter, &state, interval).await;
                    }
                },
                async {
                    if let (Some(waiting), Some(exporter)) = (spans, by_spans) {
                        waiting.send(state.stop.clone(), async |batch| exporter.export(batch).await).await;
                    }
                },
                async {
                    if let (Some(waiting), Some(exporter)) = (logs, by_logs) {
                        waiting
                            .send(state.stop.clone(), async |batch| send_logs(&exporter, batch).await)
                            .await;
                    }
                },
            );
        };
        let time_limit = async {
            stopped(&mut stop).await;
            tokio::time::sleep(STOP_TIMEOUT).await;
        };
        tokio::select! {
            () = all => {}
            () = time_limit => {}
        }
    });
}

async fn send_logs(exporter: &LogExporter, records: Vec<Record>) -> opentelemetry_sdk::error::OTelSdkResult {
    let batch: Vec<_> = records.iter().map(|(record, scope)| (record, scope)).collect();
    exporter.export(LogBatch::new(&batch)).await
}

/// Sends all metrics at every interval, and once more at the stop.
async fn push(exporter: &MetricExporter, state: &HttpState, every: Duration) {
    let mut health = Health::new(Signal::Metrics);
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stop = state.stop.clone();
    loop {
        let last = tokio::select! {
            _ = ticks.tick() => false,
            () = stopped(&mut stop) => true,
        };
        let Ok(Some(snapshot)) = timeout(STOP_TIMEOUT, state.inbox.read(Snapshot::of)).await else {
            if last || state.inbox.is_closed() {
                return;
            }
            continue;
        };
        let sent = match state.shared.metrics.otlp_data(snapshot) {
            Ok(data) => within_timeout(exporter.export(&data)).await,
            Err(error) => Err(error.to_string()),
        };
        if sent.is_err() {
            state.shared.counters.count_export_failure(Signal::Metrics);
        }
        health.report(&sent, 0);
        if last {
            return;
        }
    }
}

fn resource(facts: &DaemonFacts<'_>) -> Resource {
    let host = host_name();
    let resource = Resource::builder().with_attributes([
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", format!("{host}/{}", facts.boot_epoch)),
        KeyValue::new("host.name", host),
        KeyValue::new("vramd.driver", facts.driver.to_owned()),
    ]);
    match std::env::var_os("OTEL_SERVICE_NAME") {
        Some(_) => resource.build(),
        None => resource.with_service_name("vramd").build(),
    }
}

fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}
