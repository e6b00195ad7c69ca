//! A caller's trace continues in the daemon, and contains its decisions.

use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::{common::v1::KeyValue, trace::v1::Span};
use tokio::runtime;
use vramd_client::{
    Access, AccessPattern, Advice, AllocationRequest, Bytes, Client, PrefetchRequest, PrefetchState,
    enter_trace,
};
use vramd_proto::v1::{RevokeMappingsRequest, revoke_mappings_request::Target};
use vramd_tests::{
    Config, Daemon,
    collector::{Collector, Received, attribute, line, number},
    config::Effect,
    wait::{PATIENCE, eventually, until},
};

use crate::moves::{
    clients::programs::{allocate_unpinned, send},
    pins::fetch::connect,
};

pub(super) const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
pub(super) const OPERATOR_S: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
pub(super) const OPERATOR_S_PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn sending(collector: &Collector) -> Config {
    let endpoint = format!("otlp_endpoint = \"{}\"", collector.endpoint());
    Config::default().telemetry(&endpoint).telemetry("export_interval_ms = 200")
}

/// The first received item that matches.
#[track_caller]
pub(super) fn received<T>(collector: &Collector, what: &str, look: impl Fn(&Received) -> Option<T>) -> T {
    eventually(what, || look(&collector.received()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn call<'a>(received: &'a Received, trace: &str, method: &str) -> Option<&'a Span> {
    received.spans.iter().find(|span| hex(&span.trace_id) == trace && span.name.ends_with(method))
}

fn below<'a>(received: &'a Received, parent: &Span) -> Option<&'a Span> {
    received.spans.iter().find(|span| span.parent_span_id == parent.span_id)
}

#[test]
fn a_clients_trace_continues_with_the_decision_and_the_log() {
    let collector = Collector::start();
    let daemon = Daemon::start(&sending(&collector).telemetry("traces_sample_ratio = 0"));
    let client = Client::builder().socket_dir(daemon.sockets()).connect().unwrap();
    {
        let _trace = enter_trace(&format!("00-{TRACE}-b7ad6b7169203331-01")).unwrap();
        client.allocate(AllocationRequest::new(Bytes::mib(2))).unwrap();
        client.allocate(AllocationRequest::new(Bytes::gib(64))).unwrap_err();
    }
    let (granted, refused) = received(&collector, "both calls' spans", |received| {
        let mut calls = received.spans.iter().filter(|span| span.name.ends_with("/AllocateBatch"));
        let both = (calls.next()?.clone(), calls.next()?.clone());
        Some(both)
    });
    for span in [&granted, &refused] {
        assert_eq!(hex(&span.trace_id), TRACE);
        assert_eq!(hex(&span.parent_span_id), "b7ad6b7169203331");
        assert_eq!(attribute(&span.attributes, "rpc.method"), "vramd.v1.MemoryService/AllocateBatch");
    }
    assert_eq!(attribute(&granted.attributes, "rpc.response.status_code"), "OK");
    assert_eq!(attribute(&refused.attributes, "rpc.response.status_code"), "RESOURCE_EXHAUSTED");
    assert_eq!(attribute(&refused.attributes, "vramd.refusal.reason"), "DEVICE_FULL");
    let decision =
        |call: &Span| received(&collector, "the decision", |received| below(received, call).cloned());
    let (yes, no) = (decision(&granted), decision(&refused));
    assert_eq!(
        (yes.name.as_str(), attribute(&yes.attributes, "vramd.decision.outcome")),
        ("decide", "granted")
    );
    assert_eq!(attribute(&no.attributes, "vramd.decision.outcome"), "refused");
    assert_eq!(attribute(&no.attributes, "vramd.refusal.reason"), "DEVICE_FULL");
    assert!(no.status.unwrap().message.contains("requested"));
    let logged = received(&collector, "a line of the call", |received| {
        received.logs.iter().find(|record| hex(&record.trace_id) == TRACE).cloned()
    });
    assert_eq!(line(&logged), "batch decoded");
    assert_eq!(logged.span_id, granted.span_id);
    let others = collector.received().spans.iter().filter(|span| hex(&span.trace_id) != TRACE).count();
    assert_eq!(others, 0, "of the calls whose callers say nothing, none is traced");
}

/// Spans of that name in a trace.
pub(super) fn named(received: &Received, trace: &str, name: &str) -> Vec<Span> {
    let all = received.spans.iter().filter(|span| hex(&span.trace_id) == trace && span.name == name);
    all.cloned().collect()
}

#[test]
fn pins_and_revocations_are_in_their_callers_traces() {
    let collector = Collector::start();
    let daemon = Daemon::start(&sending(&collector).telemetry("traces_sample_ratio = 0"));
    let client = Client::builder().socket_dir(daemon.sockets()).connect().unwrap();
    let request = AllocationRequest::new(Bytes::mib(6)).part_size(Bytes::mib(2));
    let mut weights = client.allocate(request).unwrap();
    weights.unpin().unwrap();
    let target = Some(Target::AllocationId(weights.id().get()));
    let revoke = |parent: Option<&'static str>| {
        // A mapping in flight counts as pinned.
        until("all maps are answered", || daemon.state().node.fds_in_flight == 0);
        let admin = parent.map_or_else(|| daemon.admin.clone(), |parent| daemon.admin.in_trace(parent));
        admin.revoke_mappings(RevokeMappingsRequest { target: target.clone(), ..Default::default() }).ok()
    };

    revoke(Some(OPERATOR_S_PARENT));
    let told = received(&collector, "the answer that the client got", |received| {
        let told = named(received, OPERATOR_S, "revoke");
        let parts = told.iter().filter_map(|span| number(&span.attributes, "vramd.revocation.unmapped"));
        (parts.sum::<f64>() == 3.0).then_some(told)
    });
    let decision = received(&collector, "the decision", |received| {
        below(received, call(received, OPERATOR_S, "/RevokeMappings")?).cloned()
    });
    assert_eq!(number(&decision.attributes, "vramd.revocation.parts.revoked"), Some(3.0));
    assert_eq!(number(&decision.attributes, "vramd.revocation.parts.pinned"), Some(0.0));
    for span in told {
        assert_eq!(span.parent_span_id, decision.span_id);
        assert_eq!(attribute(&span.attributes, "vramd.revocation.cause"), "evicted");
        assert_eq!(attribute(&span.attributes, "vramd.revocation.outcome"), "unmapped");
    }

    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for pins in 1..=2 {
        {
            let _trace = enter_trace(&parent).unwrap();
            match pins {
                1 => drop(weights.pin(Access::Write).unwrap()),
                _ => drop(runtime.block_on(weights.pin_async(Access::Write)).unwrap()),
            }
        }
        let pin = received(&collector, "the pin's span", |received| {
            let mut spans = named(received, TRACE, "pin");
            (spans.len() == pins).then(|| spans.remove(pins - 1))
        });
        assert_eq!(hex(&pin.parent_span_id), "b7ad6b7169203331");
        assert_eq!(number(&pin.attributes, "vramd.pin.parts"), Some(3.0));
        assert!(number(&pin.attributes, "vramd.pin.waited_seconds").unwrap() > 0.0);
        // The client may report that it has all parts before the daemon does.
        let outcome = attribute(&pin.attributes, "vramd.decision.outcome");
        assert!(matches!(outcome, "granted" | "ended"), "{outcome}");
        revoke(None);
    }

    daemon.set_quota(client.tenant(), "0", "2MiB");
    {
        let _trace = enter_trace(&parent).unwrap();
        weights.pin(Access::Write).unwrap_err();
    }
    let refused = received(&collector, "the refused pin's span", |received| {
        named(received, TRACE, "pin").into_iter().nth(2)
    });
    assert_eq!(attribute(&refused.attributes, "vramd.decision.outcome"), "refused");
    assert_eq!(attribute(&refused.attributes, "vramd.refusal.reason"), "QUOTA_LIMIT");
    assert!(refused.status.unwrap().message.contains("limit"));

    daemon.set_quota(client.tenant(), "0", "100%");
    drop(weights.pin(Access::Read).unwrap());
    client.list("").unwrap();
    let traces: Vec<_> = collector.received().spans.iter().map(|span| hex(&span.trace_id)).collect();
    assert!(traces.iter().all(|trace| trace == TRACE || trace == OPERATOR_S), "{traces:?}");
}

#[test]
fn a_pin_links_to_the_prefetch_of_its_parts_and_that_to_their_moves() {
    let collector = Collector::start();
    let config = sending(&collector).telemetry("traces_sample_ratio = 0").memory("host_size = \"64MiB\"");
    let daemon = Daemon::start(&config);
    let client = Client::builder().socket_dir(daemon.sockets()).connect().unwrap();
    let request = AllocationRequest::new(Bytes::mib(6)).part_size(Bytes::mib(2)).unpinned();
    let mut layer = client.allocate(request).unwrap();
    layer.copy_from_host(0, &[7; 6 << 20]).unwrap();
    let id = layer.id().to_string();
    until("it leaves", || {
        let evicting = daemon.vramctl().args(["alloc", "evict", &id, "--json"]).output().unwrap();
        let told: serde_json::Value = serde_json::from_slice(&evicting.stdout).unwrap();
        told["parts"].as_array().unwrap().iter().all(|part| part["outcome"] == "moved")
    });
    {
        let _trace = enter_trace(&format!("00-{TRACE}-b7ad6b7169203331-01")).unwrap();
        let asked = client.prefetch(PrefetchRequest::new().all(&layer)).unwrap();
        assert!(matches!(asked.wait().unwrap(), PrefetchState::Ready { parts_left_out: 0, is_late: false }));
        drop(layer.pin(Access::Read).unwrap());
    }
    let one = |name: &'static str| {
        received(&collector, name, |received| named(received, TRACE, name).into_iter().next())
    };
    let (prefetch, pin) = (one("prefetch"), one("pin"));
    assert_eq!(hex(&prefetch.parent_span_id), "b7ad6b7169203331");
    assert_eq!(number(&prefetch.attributes, "vramd.prefetch.parts"), Some(3.0));
    assert_eq!(attribute(&prefetch.attributes, "vramd.prefetch.outcome"), "ready");
    let moves = received(&collector, "the moves", |received| {
        let linked = |span: &&Span| prefetch.links.iter().any(|link| link.span_id == span.span_id);
        let moves: Vec<_> = received.spans.iter().filter(linked).cloned().collect();
        (moves.len() == prefetch.links.len()).then_some(moves)
    });
    assert_eq!(moves.len(), 3, "{moves:?}");
    assert!(moves.iter().all(|it| attribute(&it.attributes, "vramd.migration.cause") == "prefetch"));
    let link = pin.links.iter().find(|link| link.span_id == prefetch.span_id).expect("a link");
    assert_eq!(attribute(&link.attributes, "vramd.prefetch.step"), "ready");
}

/// A request that was late, and one whose parts left again before the pin.
#[test]
fn a_pin_links_to_the_prefetch_that_failed_it() {
    let collector = Collector::start();
    let config = sending(&collector).telemetry("traces_sample_ratio = 0").memory("host_size = \"64MiB\"");
    let config = Config { devices: vec!["8MiB".to_owned()], ..config }.memory("harvest_ms = 5");
    // The first two copies take the parts to the host.
    let daemon = Daemon::start(&config.fault("copy", 3, Effect::Hold));
    let client = connect(&daemon);
    let layer = allocate_unpinned(&daemon, &client, 2);
    let is_in_time = |is_late| PrefetchState::Ready { parts_left_out: 0, is_late };
    for (step, outcome) in [("late", "late"), ("dropped", "ready")] {
        send(&daemon, &layer, "host");
        let trace = if step == "late" { TRACE } else { OPERATOR_S };
        let _trace = enter_trace(&format!("00-{trace}-b7ad6b7169203331-01")).unwrap();
        let began = Instant::now();
        let asked = client.prefetch(match step {
            "late" => PrefetchRequest::new().all(&layer).within(Duration::from_millis(1)),
            _ => PrefetchRequest::new().all(&layer),
        });
        let asked = asked.unwrap();
        match step {
            "late" => {
                until("its deadline is over", || began.elapsed() > Duration::from_millis(2));
                daemon.end_holds();
                assert_eq!(asked.wait().unwrap(), is_in_time(true));
            }
            _ => {
                assert_eq!(asked.wait().unwrap(), is_in_time(false));
                let request = AllocationRequest::new(Bytes::mib(8)).part_size(Bytes::mib(2));
                let other = client.allocate(request.wait(PATIENCE)).unwrap();
                until("it is dropped", || matches!(asked.state().unwrap(), PrefetchState::Dropped { .. }));
                other.free().unwrap();
            }
        }
        drop(layer.pin(Access::Read).unwrap());
        let one = |name: &'static str| {
            received(&collector, name, |received| named(received, trace, name).into_iter().next())
        };
        let (prefetch, pin) = (one("prefetch"), one("pin"));
        assert_eq!(attribute(&prefetch.attributes, "vramd.prefetch.outcome"), outcome);
        let link = pin.links.iter().find(|link| link.span_id == prefetch.span_id).expect("a link");
        assert_eq!(attribute(&link.attributes, "vramd.prefetch.step"), step);
    }
}

/// The four figures of the sum, and whether the move pays by them.
fn placement(attributes: &[KeyValue]) -> Option<([f64; 4], bool)> {
    let names = ["benefit_us", "cost_us", "factor_percent", "expected_uses_percent"];
    let figures = names.map(|name| number(attributes, &format!("vramd.placement.{name}")));
    let [Some(benefit), Some(cost), Some(factor), Some(uses)] = figures else { return None };
    Some(([benefit, cost, factor, uses], benefit * 100.0 > cost * factor))
}

/// A part that is used once is read in place. Once it is used again and again its move pays.
#[test]
fn spans_have_both_sides_of_the_sum_that_places_a_part() {
    let collector = Collector::start();
    let config = sending(&collector).telemetry("traces_sample_ratio = 0").memory("host_size = \"64MiB\"");
    let config = config.memory("harvest_ms = 5").link("100MiB").limit("speculation_bytes_max = 0");
    let daemon = Daemon::start(&config);
    let client = connect(&daemon);
    let stream = allocate_unpinned(&daemon, &client, 2);
    stream.advise(Advice::SetPattern(AccessPattern::Sequential)).unwrap();
    // The first pass shows how often parts are used, and how fast they come. Its moves have no sum.
    for _ in 0..2 {
        send(&daemon, &stream, "host");
        let _trace = enter_trace(&format!("00-{TRACE}-b7ad6b7169203331-01")).unwrap();
        for part in 0..2 {
            drop(stream.pin_parts(part..part + 1, Access::Read).unwrap());
        }
    }
    let decisions = |pin: &Span| -> Vec<_> {
        let events = pin.events.iter().filter(|event| event.name == "placement");
        let told = events.map(|it| (placement(&it.attributes), it.attributes.clone()));
        told.map(|(sum, all)| (sum, attribute(&all, "vramd.placement.outcome").to_owned())).collect()
    };
    let (sum, _) = received(&collector, "the span of a pin whose part stays", |received| {
        let decided = named(received, TRACE, "pin").iter().flat_map(decisions).collect::<Vec<_>>();
        decided.into_iter().find(|(_, outcome)| outcome == "in_place")
    });
    let ([_, cost, factor, uses], pays) = sum.expect("all four figures");
    assert!(!pays && cost > 10_000.0 && factor >= 100.0 && uses >= 100.0, "{sum:?}");

    let moved = eventually("a move pays", || {
        let _trace = enter_trace(OPERATOR_S_PARENT).unwrap();
        for _ in 0..20 {
            drop(stream.pin_parts(1..2, Access::Read).unwrap());
        }
        let moves = collector.received().spans.into_iter().filter(|span| span.name == "move");
        let placed = moves.filter_map(|span| Some((placement(&span.attributes)?, span)));
        placed.into_iter().find(|(_, span)| {
            attribute(&span.attributes, "vramd.migration.cause") == "demand"
                && attribute(&span.attributes, "vramd.migration.outcome") == "moved"
        })
    });
    let (([benefit, ..], pays), span) = moved;
    assert!(pays && benefit > 0.0, "{span:?}");
    let pin = received(&collector, "its pin", |received| {
        let pins = named(received, OPERATOR_S, "pin");
        pins.into_iter().find(|pin| pin.links.iter().any(|link| link.span_id == span.span_id))
    });
    let decided = decisions(&pin);
    assert!(decided.iter().any(|(sum, outcome)| *sum == Some(moved.0) && outcome == "moved"), "{decided:?}");
}

#[test]
fn an_untraced_caller_stays_untraced_at_any_sampling_share() {
    let collector = Collector::start();
    let daemon = Daemon::start(&sending(&collector).telemetry("traces_sample_ratio = 1"));
    let client = Client::builder().socket_dir(daemon.sockets()).connect().unwrap();
    {
        let _trace = enter_trace(&format!("00-{TRACE}-b7ad6b7169203331-00")).unwrap();
        client.list("").unwrap();
    }
    drop(client.describe("nothing").unwrap_err());
    let described = received(&collector, "the other call", |received| {
        received.spans.iter().find(|span| span.name.ends_with("/DescribeAllocation")).cloned()
    });
    assert_eq!(described.parent_span_id, [0; 0]);
    assert!(call(&collector.received(), TRACE, "/ListAllocations").is_none());
    let look = received(&collector, "the look", |received| below(received, &described).cloned());
    assert_eq!(attribute(&look.attributes, "vramd.refusal.reason"), "ALLOCATION_NOT_FOUND");
}

#[test]
fn metrics_and_logs_name_their_service() {
    let collector = Collector::start();
    let daemon = Daemon::start(&sending(&collector));
    let metrics = received(&collector, "metrics", |received| {
        (!received.metrics.is_empty()).then(|| received.metrics.clone())
    });
    assert!(metrics.iter().any(|metric| metric.name == "vramd.memory.capacity" && metric.unit == "By"));
    received(&collector, "the first line of all", |received| {
        received.logs.iter().find(|record| line(record) == "node found").cloned()
    });
    // Exports themselves are not traced.
    let own =
        collector.received().logs.iter().filter(|record| line(record).contains("telemetry sent")).count();
    assert_eq!(own, 0);
    assert!(daemon.log().contains("telemetry sent"));
    let client = Client::builder().socket_dir(daemon.sockets()).connect().unwrap();
    let _trace = enter_trace(&format!("00-{TRACE}-b7ad6b7169203331-01")).unwrap();
    client.list("").unwrap();
    let resource = received(&collector, "a span", |received| received.resource.clone());
    assert_eq!(attribute(&resource.attributes, "service.name"), "vramd");
    assert_eq!(attribute(&resource.attributes, "vramd.driver"), "sim");
}
