//! Real collectors, and collectors that are missing, slow or silent: no call ever waits for one.

use std::time::Duration;

use vramd_proto::v1::ListAllocationsRequest;
use vramd_tests::{
    Config, Daemon, MIB,
    collector::Collector,
    http::free_address,
    prometheus::Prometheus,
    session::spec,
    wait::{always, until},
};

use super::{measured, scrape, sum};

/// Many times as many as the queue of spans has room for.
const CALLS_MAX: usize = 100_000;

/// Traces every call, so that there is much to send.
fn sending(config: Config, endpoint: &str) -> Config {
    config
        .telemetry(&format!("otlp_endpoint = \"{endpoint}\""))
        .telemetry("traces_sample_ratio = 1")
        .telemetry("export_interval_ms = 200")
}

fn complaints(daemon: &Daemon, signal: &str) -> usize {
    let said = format!("signal=\"{signal}\"");
    daemon.log().lines().filter(|line| line.contains("the collector ") && line.contains(&said)).count()
}

#[test]
fn a_real_receiver_takes_metrics_over_http() {
    let prometheus = Prometheus::receiving();
    let config = sending(Config::default(), &prometheus.otlp_endpoint());
    let config = config.telemetry("otlp_protocol = \"http\"").telemetry("otlp_signals = [\"metrics\"]");
    let daemon = Daemon::start(&config);
    let mut session = daemon.open();
    session.allocate(spec(6 * MIB));
    let held = format!("sum(vramd_quota_usage_bytes{{vramd_tenant=\"{}\"}})", session.tenant());
    prometheus.until(&held, (6 * MIB) as f64);
    prometheus.until("count(vramd_sessions{service_name=\"vramd\"})", 1.0);
    session.refused(spec(4096 * MIB));
    prometheus.until("sum(vramd_refusals_total{vramd_refusal_reason=\"DEVICE_FULL\"})", 1.0);
    assert!(!daemon.log().contains("sending to the collector fails"), "{}", daemon.log());
}

#[test]
fn the_environment_names_a_collector() {
    let collector = Collector::start();
    let home = vramd_tests::Home::new();
    Config::default().telemetry("export_interval_ms = 100").write(home.path());
    let mut child = home.command().env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint()).spawn().unwrap();
    until("metrics come", || !collector.received().metrics.is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_missing_collector_is_logged_once_and_losses_are_counted() {
    let daemon = Daemon::start(&sending(measured(), &format!("http://{}", free_address())));
    let session = daemon.open();
    let count = |metric: &str, signal: &str| {
        sum(
            &scrape(&daemon),
            &format!("vramd_telemetry_{metric}_total{{vramd_telemetry_signal=\"{signal}\"}}"),
        )
    };
    for signal in ["traces", "logs", "metrics"] {
        until("each signal's exports fail", || {
            // A call has two spans, and a line in the log.
            session.refused(spec(4096 * MIB));
            count("export_failures", signal) >= 2.0
        });
    }
    assert!(count("dropped", "traces") >= 4.0 && count("dropped", "logs") >= 2.0);
    assert_eq!(count("dropped", "metrics"), 0.0, "the next export has their sums");
    let once = || ["traces", "logs", "metrics"].iter().all(|signal| complaints(&daemon, signal) == 1);
    always("there is one line a signal", Duration::from_secs(2), once);
}

#[test]
fn a_hanging_collector_delays_no_call() {
    let collector = Collector::silent();
    let daemon = Daemon::start(&sending(measured(), &collector.endpoint()));
    let session = daemon.open();
    until("something was sent", || collector.received().exports > 0);
    let list = ListAllocationsRequest { session_id: session.id(), ..Default::default() };
    // More spans than the queue has room for, two for each call. An export ends unanswered after five seconds. If calls
    // waited for exports, there would be about as many of one as of the other, and nothing would be dropped.
    let mut calls = 0;
    while sum(&scrape(&daemon), "vramd_telemetry_dropped_total{vramd_telemetry_signal=\"traces\"}") == 0.0 {
        for _ in 0..500 {
            daemon.memory.list_allocations(list.clone()).ok();
            calls += 1;
        }
        let exports = collector.received().exports;
        assert!(calls / exports >= 20, "{calls} calls and {exports} exports");
        assert!(calls < CALLS_MAX, "{calls} calls and nothing dropped");
    }
    until("the log says so", || complaints(&daemon, "traces") == 1);
    // And a stop that waited for the answer would not end.
    let (status, _) = daemon.stop();
    assert!(status.success());
}

#[test]
fn a_collector_that_comes_back_gets_data_again() {
    let address = free_address();
    let daemon = Daemon::start(&sending(measured(), &format!("http://{address}")));
    until("it is missed", || complaints(&daemon, "metrics") == 1);
    let collector = Collector::at(address);
    until("metrics come", || !collector.received().metrics.is_empty());
    until("the log says so", || daemon.log().contains("sending to the collector works again"));
}
