//! Telemetry of moving parts and of waiters: the same for Prometheus and for a collector.

use opentelemetry_proto::tonic::{
    metrics::v1::{Metric, metric::Data, number_data_point::Value},
    trace::v1::{Span, span::Link},
};
use vramd_client::{Access, AllocationRequest, Bytes};
use vramd_proto::v1::{
    AllocateBatchRequest, CancelWaitRequest, ListWaitsRequest, MoveOutcome, MovePartsRequest, Tier,
    WriteBackPartsRequest, move_parts_request::Target, wait::What, write_back_parts_request,
};
use vramd_tests::{
    Daemon, MIB, MIB_2,
    collector::{Collector, attribute, number},
    wait::{PATIENCE, until, within},
};
use vramd_types::Reason;

use super::{
    scrape,
    traces::{OPERATOR_S, OPERATOR_S_PARENT, TRACE, named, received},
};
use crate::moves::{
    assert_nothing_left, evict, fetch_by_pin, open_and_write, part, parts, pin_words, pins::fetch::connect,
    tiers, unpin_words,
};

/// The sum of all series of a metric that have these values.
pub(super) fn value(scrape: &str, metric: &str, values: &[&str]) -> f64 {
    let is = |line: &&str| {
        let name = line.split(['{', ' ']).next();
        name == Some(metric) && values.iter().all(|value| line.contains(&format!("=\"{value}\"")))
    };
    scrape.lines().filter(is).filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

/// The figures of an event are updated with it, and not always before its answer.
#[track_caller]
pub(super) fn until_said(daemon: &Daemon, metric: &str, values: &[&str], expected: f64) {
    let mut last = String::new();
    let found = within(PATIENCE, || {
        last = scrape(daemon);
        (value(&last, metric, values) == expected).then_some(())
    });
    assert!(found.is_some(), "{metric} {values:?} is not {expected}:\n{last}");
}

/// Cancels the first wait of that kind.
fn cancel(daemon: &Daemon, is: impl Fn(&What) -> bool) {
    let waits = daemon.admin.list_waits(ListWaitsRequest::default()).ok().waits;
    let wait = waits.iter().find(|wait| wait.what.as_ref().is_some_and(&is)).expect("it waits");
    daemon.admin.cancel_wait(CancelWaitRequest { wait_id: wait.wait_id, ..Default::default() }).ok();
}

pub(super) fn mib(count: u64) -> f64 {
    (count * MIB) as f64
}

#[test]
fn written_back_bytes_are_clean_and_counted_by_cause() {
    let config = tiers("8MiB", "8MiB").telemetry("prometheus_listen = \"127.0.0.1:0\"");
    let daemon = Daemon::start(&config);
    let (mut session, id) = open_and_write(&daemon, 2);
    let tenant = session.tenant().to_owned();
    until("all maps are answered", || daemon.state().node.fds_in_flight == 0);
    let target = Some(write_back_parts_request::Target::AllocationId(id));
    let request = WriteBackPartsRequest { target, part_indexes: vec![1], ..Default::default() };
    daemon.admin.write_back_parts(request).ok();
    until_said(&daemon, "vramd_quota_usage_bytes", &[&tenant, "device", "clean"], mib(2));
    until_said(&daemon, "vramd_quota_usage_bytes", &[&tenant, "device", "dirty"], mib(2));
    let counted = ["out", "write_back", "moved"];
    until_said(&daemon, "vramd_migrations_total", &counted, 1.0);
    until_said(&daemon, "vramd_migration_io_bytes_total", &counted, mib(2));
    let of_tenant = [tenant.as_str(), "out", "write_back"];
    until_said(&daemon, "vramd_tenant_migration_io_bytes_total", &of_tenant, mib(2));
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn moves_and_waits_are_measured_by_kind_and_cause() {
    let collector = Collector::start();
    let config = tiers("8MiB", "32MiB").memory("harvest_ms = 10").limit("pin_stall_ms = 200");
    let config = config
        .telemetry("prometheus_listen = \"127.0.0.1:0\"")
        .telemetry(&format!("otlp_endpoint = \"{}\"", collector.endpoint()))
        .telemetry("export_interval_ms = 100");
    let daemon = Daemon::start(&config);
    let (mut session, id) = open_and_write(&daemon, 4);
    let tenant = session.tenant().to_owned();
    let lies = |tier, clean: u64, dirty: u64| {
        until_said(&daemon, "vramd_quota_usage_bytes", &[&tenant, tier, "clean"], mib(clean));
        until_said(&daemon, "vramd_quota_usage_bytes", &[&tenant, tier, "dirty"], mib(dirty));
    };
    lies("device", 0, 8);
    lies("host", 0, 0);

    // Out, and back for a pin. The part that came back is clean, and leaves without a copy.
    evict(&daemon, &mut session, id);
    lies("device", 0, 0);
    lies("host", 0, 8);
    fetch_by_pin(&mut session, id, 4);
    lies("device", 8, 0);
    lies("host", 0, 0);
    evict(&daemon, &mut session, id);
    for (direction, cause, outcome) in
        [("out", "operator", "moved"), ("in", "demand", "moved"), ("out", "operator", "clean")]
    {
        let labels = [direction, cause, outcome];
        until_said(&daemon, "vramd_migrations_total", &labels, 4.0);
        until_said(&daemon, "vramd_migration_io_bytes_total", &labels, mib(8));
        until_said(&daemon, "vramd_migration_duration_seconds_count", &labels, 4.0);
        until_said(&daemon, "vramd_migration_size_bytes_sum", &labels, mib(8));
    }
    until_said(&daemon, "vramd_migration_used_bytes_total", &["demand"], mib(8));
    for (direction, cause) in [("out", "operator"), ("in", "demand")] {
        let of_tenant = [tenant.as_str(), direction, cause];
        until_said(&daemon, "vramd_tenant_migration_io_bytes_total", &of_tenant, mib(8));
    }
    until_said(&daemon, "vramd_tenant_migration_used_bytes_total", &[&tenant], mib(8));
    until_said(&daemon, "vramd_migration_queue_wait_seconds_count", &["part", "served"], 4.0);
    until_said(&daemon, "vramd_pin_wait_seconds_count", &[&tenant, "served"], 1.0);
    assert!(value(&scrape(&daemon), "vramd_pin_wait_seconds_sum", &[&tenant, "served"]) > 0.0);

    // The session can make room only by its own pinned parts.
    let own = session.allocate(parts(4)).allocation_id;
    pin_words(&session, own, 4);
    let stalled = session.pin(vec![part(id, 0)]);
    session.pin_answer(stalled).unwrap_err().is(Reason::PinStalled);
    until_said(&daemon, "vramd_pin_stalls_total", &[], 1.0);
    until_said(&daemon, "vramd_pin_wait_seconds_count", &[&tenant, "refused"], 1.0);
    unpin_words(&session, own, 4);
    session.free(own);

    // Another session has the device except for one part, and has no pins.
    until("it is gone", || daemon.state().charged() == 0);
    let mut other = daemon.open();
    let theirs = other.allocate(parts(3)).allocation_id;
    let pin = session.pin((0..4).map(|index| part(id, index)).collect());
    let batch = AllocateBatchRequest { wait_ms: 15_000, ..other.request(vec![parts(1)]) };
    until_said(&daemon, "vramd_migration_queue_size", &["part"], 3.0);
    let batch = other.memory.allocate_batch(batch);
    until_said(&daemon, "vramd_migration_queue_size", &["batch"], 1.0);
    let capacity = daemon.state().devices[0].capacity_bytes as f64;
    until_said(&daemon, "vramd_memory_oversubscription_ratio", &[], mib(6 + 8) / capacity);
    cancel(&daemon, |what| matches!(what, What::Batch(_)));
    batch.refused().is(Reason::WaitCancelled);
    cancel(&daemon, |what| matches!(what, What::Part(_)));
    session.pin_answer(pin).unwrap_err().is(Reason::WaitCancelled);
    until_said(&daemon, "vramd_migration_queue_wait_seconds_count", &["batch", "cancelled"], 1.0);
    until_said(&daemon, "vramd_migration_queue_wait_seconds_count", &["part", "cancelled"], 1.0);
    until_said(&daemon, "vramd_migration_queue_size", &[], 0.0);
    until_said(&daemon, "vramd_pin_wait_seconds_count", &[&tenant, "refused"], 2.0);

    let state = daemon.settled_state();
    until("the collector has the same", || {
        let told = collector.received().metrics;
        sum(&told, "vramd.migration.used") == Some(10 * MIB)
            && sum(&told, "vramd.quota.usage") == Some(state.charged() + state.charged_in_host())
            && count(&told, "vramd.migration.duration") == count(&told, "vramd.migration.size")
            && count(&told, "vramd.migration.queue.wait") >= Some(4)
            && count(&told, "vramd.pin.wait") == Some(3)
            && gauge(&told, "vramd.memory.oversubscription") == Some(mib(6 + 8) / capacity)
    });
    other.free(theirs);
    session.free(id);
    assert_nothing_left(&daemon);
}

fn data(metrics: &[Metric], name: &str) -> Option<Data> {
    metrics.iter().find(|metric| metric.name == name)?.data.clone()
}

fn sum(metrics: &[Metric], name: &str) -> Option<u64> {
    let Data::Sum(sum) = data(metrics, name)? else { return None };
    let values = sum.data_points.iter().map(|point| match point.value {
        Some(Value::AsInt(value)) => u64::try_from(value).ok(),
        _ => None,
    });
    values.sum()
}

fn count(metrics: &[Metric], name: &str) -> Option<u64> {
    let Data::Histogram(histogram) = data(metrics, name)? else { return None };
    Some(histogram.data_points.iter().map(|point| point.count).sum())
}

fn gauge(metrics: &[Metric], name: &str) -> Option<f64> {
    let Data::Gauge(gauge) = data(metrics, name)? else { return None };
    match gauge.data_points[..] {
        [ref one] => match one.value {
            Some(Value::AsDouble(value)) => Some(value),
            _ => None,
        },
        _ => None,
    }
}

#[test]
fn a_pins_span_links_to_the_moves_that_it_waited_for() {
    let collector = Collector::start();
    let config = tiers("8MiB", "16MiB").telemetry("export_interval_ms = 100");
    let config = config
        .telemetry(&format!("otlp_endpoint = \"{}\"", collector.endpoint()))
        .telemetry("traces_sample_ratio = 0");
    let daemon = Daemon::start(&config);
    let client = connect(&daemon);
    let request = AllocationRequest::new(Bytes::mib(4)).part_size(Bytes::mib(2));
    let mut weights = client.allocate(request).unwrap();
    weights.unpin().unwrap();
    let id = weights.id().get();
    let evict = MovePartsRequest {
        target: Some(Target::AllocationId(id)),
        tier: Tier::Host.into(),
        ..Default::default()
    };
    until("it leaves", || {
        let moved = daemon.admin.in_trace(OPERATOR_S_PARENT).move_parts(evict.clone()).ok();
        moved.parts.iter().all(|part| part.outcome() == MoveOutcome::Moved)
    });
    // A child of the span of the operator's request.
    let out = received(&collector, "both parts' way out", |received| {
        let moves = named(received, OPERATOR_S, "move");
        let moved: Vec<_> = moves
            .into_iter()
            .filter(|span| attribute(&span.attributes, "vramd.migration.outcome") == "moved")
            .collect();
        (moved.len() == 2).then_some(moved)
    });
    for span in &out {
        assert_eq!(attribute(&span.attributes, "vramd.migration.direction"), "out");
        assert_eq!(attribute(&span.attributes, "vramd.migration.cause"), "operator");
    }
    received(&collector, "the decision", |received| {
        let decisions = named(received, OPERATOR_S, "decide");
        let is_below = |span: &Span| decisions.iter().any(|decision| decision.span_id == span.parent_span_id);
        out.iter().all(is_below).then_some(())
    });

    {
        let _trace = vramd_client::enter_trace(&format!("00-{TRACE}-b7ad6b7169203331-01")).unwrap();
        drop(weights.pin(Access::Read).unwrap());
    }
    let (pin, moves) = linked(&collector, 1);
    assert_eq!(moves.len(), 2, "one for each part");
    let uuid = daemon.state().devices[0].device.clone().unwrap().uuid;
    for span in &moves {
        assert_eq!(attribute(&span.attributes, "vramd.migration.direction"), "in");
        assert_eq!(attribute(&span.attributes, "vramd.migration.cause"), "demand");
        assert_eq!(attribute(&span.attributes, "vramd.migration.outcome"), "moved");
        assert_eq!(attribute(&span.attributes, "vramd.tenant"), client.tenant());
        assert_eq!(attribute(&span.attributes, "hw.id"), uuid);
        assert_eq!(number(&span.attributes, "vramd.migration.bytes"), Some(MIB_2 as f64));
        assert!(span.start_time_unix_nano >= pin.start_time_unix_nano - 1_000_000, "{span:?}");
        assert!(span.end_time_unix_nano <= pin.end_time_unix_nano, "it waited for its end");
    }

    // Now another session has the room.
    let mut others = client.allocate(AllocationRequest::new(Bytes::mib(8)).part_size(Bytes::mib(2))).unwrap();
    others.unpin().unwrap();
    until_away(&daemon, id);
    {
        let _trace = vramd_client::enter_trace(&format!("00-{TRACE}-b7ad6b7169203331-01")).unwrap();
        drop(weights.pin(Access::Read).unwrap());
    }
    let (_, moves) = linked(&collector, 2);
    let ways = moves.iter().map(|span| attribute(&span.attributes, "vramd.migration.direction"));
    let mut ways: Vec<_> = ways.collect();
    ways.sort_unstable();
    assert_eq!(ways, ["in", "in", "out", "out"], "{moves:?}");
    drop((weights, others));
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}

/// The span of the pin with this number, and the moves that it links to.
#[track_caller]
fn linked(collector: &Collector, number: usize) -> (Span, Vec<Span>) {
    received(collector, "the pin and what it waited for", |received| {
        let pin = named(received, TRACE, "pin").into_iter().nth(number - 1)?;
        let linked = |link: &Link| {
            let mut moves = received.spans.iter().filter(|span| span.name == "move");
            moves.find(|span| span.span_id == link.span_id).cloned()
        };
        let moves: Option<Vec<_>> = pin.links.iter().map(linked).collect();
        Some((pin, moves?))
    })
}

fn until_away(daemon: &Daemon, allocation: u64) {
    until("nothing of it is on the device", || {
        daemon.state().allocation(allocation).is_some_and(|row| row.resident_bytes == 0)
    });
}
