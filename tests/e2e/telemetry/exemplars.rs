//! A slow request is found from a histogram by its trace: exemplars, as a real Prometheus stores them.

use serde_json::Value;
use vramd_client::{Access, AllocationRequest, Bytes, Client, enter_trace};
use vramd_tests::{
    Daemon,
    collector::Collector,
    http,
    prometheus::{Prometheus, lint},
    wait::{eventually, until},
};

use super::{
    address, measured, scrape,
    traces::{TRACE, named, received},
};
use crate::moves::tiers;

/// The exemplars of a metric with this trace.
fn with_trace(prometheus: &Prometheus, metric: &str) -> Vec<Value> {
    let found = prometheus.exemplars(metric).unwrap();
    let all = found.iter().flat_map(|series| {
        series["exemplars"].as_array().unwrap().iter().map(|exemplar| (&series["seriesLabels"], exemplar))
    });
    let ours = all.filter(|(_, exemplar)| exemplar["labels"]["trace_id"] == TRACE);
    ours.map(|(labels, exemplar)| serde_json::json!({ "series": labels, "exemplar": exemplar })).collect()
}

#[test]
fn a_slow_request_is_found_from_a_histogram_by_its_trace() {
    let collector = Collector::start();
    let config = tiers("16MiB", "64MiB")
        .telemetry("prometheus_listen = \"127.0.0.1:0\"")
        .telemetry(&format!("otlp_endpoint = \"{}\"", collector.endpoint()))
        .telemetry("export_interval_ms = 200")
        .telemetry("traces_sample_ratio = 0");
    let daemon = Daemon::start(&config);
    let prometheus = Prometheus::ruled(&[address(&daemon)], &[]);
    let client = Client::builder().socket_dir(daemon.sockets()).connect().unwrap();
    let request = || AllocationRequest::new(Bytes::mib(12)).part_size(Bytes::mib(2)).unpinned();
    let first = client.allocate(request()).unwrap();
    drop(first.pin(Access::Write).unwrap());
    // Not all of both fits on the device, so the pin of the second waits for the first to leave.
    let second = {
        let _trace = enter_trace(&format!("00-{TRACE}-b7ad6b7169203331-01")).unwrap();
        let second = client.allocate(request()).unwrap();
        drop(second.pin(Access::Write).unwrap());
        second
    };
    let call = eventually("the exemplar of the call", || {
        with_trace(&prometheus, "rpc_server_call_duration_seconds_bucket").into_iter().next()
    });
    assert_eq!(call["series"]["rpc_method"], "vramd.v1.MemoryService/AllocateBatch");
    let pin = eventually("the exemplar of the pin", || {
        with_trace(&prometheus, "vramd_pin_wait_seconds_bucket").into_iter().next()
    });
    assert_eq!(pin["series"]["vramd_tenant"], client.tenant());
    // The value lies in the bucket that it marks, and the span is the one that the collector has.
    let seconds: f64 = pin["exemplar"]["value"].as_str().unwrap().parse().unwrap();
    let bound = pin["series"]["le"].as_str().unwrap();
    assert!(bound == "+Inf" || seconds <= bound.parse().unwrap(), "{pin}");
    let spans = received(&collector, "the pin's span", |received| {
        let pins = named(received, TRACE, "pin");
        (!pins.is_empty()).then_some(pins)
    });
    let ids: Vec<String> =
        spans.iter().map(|span| span.span_id.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    let id = pin["exemplar"]["labels"]["span_id"].as_str().unwrap();
    assert!(ids.iter().any(|known| known == id), "{ids:?} {pin}");
    drop((first, second));
    client.flush().unwrap();
}

#[test]
fn both_formats_have_the_same_series_and_the_older_is_the_default() {
    let daemon = Daemon::start(&measured());
    let session = daemon.open();
    session.refused(vramd_tests::spec(4 << 40));
    let older = scrape(&daemon);
    assert!(!older.contains("# EOF") && lint(&older).trim().is_empty(), "{older}");
    let accepted = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    let answer = http::get_accepting(address(&daemon), "/metrics", accepted);
    assert!(
        answer.head.contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{}",
        answer.head
    );
    assert!(answer.body.ends_with("\n# EOF\n"), "{}", answer.body);
    let names = |text: &str| -> std::collections::BTreeSet<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        // Bounds of buckets differ in form: 1 and 1.0.
        let series = lines.filter(|line| !line.contains("le=")).filter_map(|line| line.rsplit_once(' '));
        series.map(|(name, _)| name.to_owned()).collect()
    };
    assert_eq!(names(&older), names(&answer.body));
    // A counter's family is without the suffix of its samples.
    assert!(answer.body.contains("\n# TYPE vramd_refusals counter\n"), "{}", answer.body);
    assert!(answer.body.contains("_bucket{") && answer.body.contains("le=\"1.0\"} "), "{}", answer.body);
    for attribute in ["service_name", "service_version", "service_instance_id", "host_name", "vramd_driver"] {
        let target = answer.body.lines().find(|line| line.starts_with("target_info{")).unwrap();
        assert!(target.contains(&format!("{attribute}=\"")), "{target}");
    }
    until("the session's calls have ended", || daemon.state().node.fds_in_flight == 0);
}
