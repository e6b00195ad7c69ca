//! Memory that programs ask for ahead of its use.

use std::time::{Duration, Instant};

use vramd_client::{
    Access, Allocation, AllocationRequest, Bytes, Client, Error, PrefetchRequest, PrefetchState, Reason,
    SequenceRequest, SequenceState, aio,
};
use vramd_proto::v1::{Prefetch, SealRequest, client_frame, daemon_frame, prefetch_progress::Step};
use vramd_tests::{
    Config, Daemon, MIB, RawSession, channel::Packet, config::Effect, content, digest, session::spec,
    wait::until,
};

use crate::{
    has_other_users,
    moves::{clients::programs::send_by_id, fetch_by_pin, open_and_write, part},
};

const PART: u64 = 2 * MIB;
const PATIENCE: Duration = Duration::from_secs(60);

fn daemon(device: &str) -> Daemon {
    let config = Config::devices(&[device]).memory("host_size = \"256MiB\"").memory("harvest_ms = 5");
    Daemon::start(&config.telemetry("prometheus_listen = \"127.0.0.1:0\""))
}

fn connect(daemon: &Daemon) -> Client {
    Client::builder().socket_dir(daemon.sockets()).name("test").request_timeout(PATIENCE).connect().unwrap()
}

/// Memory that no session pins.
fn empty(client: &Client, parts: u64) -> Allocation {
    let request = AllocationRequest::new(Bytes::new(parts * PART)).part_size(Bytes::mib(2)).unpinned();
    client.allocate(request).unwrap()
}

fn layer(client: &Client, parts: u64, seed: u8) -> Allocation {
    let mut layer = empty(client, parts);
    layer.copy_from_host(0, &content(parts * PART, seed.into())).unwrap();
    layer
}

fn evict(daemon: &Daemon, layer: &Allocation) {
    let id = layer.id().to_string();
    until("it leaves", || {
        let evicting = daemon.vramctl().args(["alloc", "evict", &id, "--json"]).output().unwrap();
        let told: serde_json::Value = serde_json::from_slice(&evicting.stdout).unwrap();
        told["parts"].as_array().unwrap().iter().all(|part| part["outcome"] == "moved")
    });
}

fn json(daemon: &Daemon, args: &[&str]) -> serde_json::Value {
    let output = daemon.vramctl().args(args).arg("--json").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn ready() -> PrefetchState {
    PrefetchState::Ready { parts_left_out: 0, is_late: false }
}

#[test]
fn a_group_is_there_when_it_is_pinned() {
    let daemon = daemon("16MiB");
    let client = connect(&daemon);
    let layers = [1, 2].map(|seed| layer(&client, 3, seed));
    layers.iter().for_each(|layer| evict(&daemon, layer));
    let request = PrefetchRequest::new().all(&layers[0]).parts(&layers[1], 1..3).within(PATIENCE).priority(7);
    let prefetch = client.prefetch(request).unwrap();
    assert_eq!(prefetch.wait().unwrap(), ready());
    assert_eq!(prefetch.state().unwrap(), ready(), "it is known without a call");
    let listed = json(&daemon, &["prefetch", "list"]);
    let entry = &listed["prefetches"][0];
    assert_eq!(entry["prefetch_id"], prefetch.number());
    assert_eq!((&entry["phase"], &entry["parts_unused"]), (&"arrived".into(), &5.into()));
    assert_eq!((&entry["priority"], &entry["bytes"]), (&7.into(), &(5 * PART).into()));
    let tiers = json(&daemon, &["alloc", "show", &layers[1].id().to_string()]);
    let tier = |at: usize| tiers["allocation"]["parts"][at]["tier"].clone();
    assert_eq!([tier(0), tier(1), tier(2)], ["host", "device", "device"]);
    for (layer, seed) in layers.iter().zip([1, 2]) {
        let pinned = layer.pin(Access::Read).unwrap();
        assert_eq!(digest(pinned.as_slice().unwrap()), digest(&content(3 * PART, seed)));
    }
    until("all of it was used", || {
        json(&daemon, &["prefetch", "list"])["prefetches"] == serde_json::json!([])
    });
    let said = |line: &str| daemon.metrics().lines().any(|it| it == line);
    until("one request is counted", || said("vramd_prefetches_total{vramd_prefetch_outcome=\"ready\"} 1"));
    until("all its parts are", || said("vramd_prefetch_lead_seconds_count 5"));
    drop((prefetch, layers));
    client.flush().unwrap();
    daemon.drains();
}

/// The device holds a quarter of the model. Each layer is asked for while the one before is in use.
#[test]
fn a_model_four_times_the_device_streams_ahead_of_its_use() {
    let daemon = daemon("16MiB");
    let client = connect(&daemon);
    let layers: Vec<_> = (0..16).map(|seed| layer(&client, 2, seed)).collect();
    let mut asked = 0;
    for round in 0..3_usize {
        for (at, layer) in layers.iter().enumerate() {
            let next = &layers[(at + 1) % layers.len()];
            let prefetch = client.prefetch(PrefetchRequest::new().all(next)).unwrap();
            let pinned = layer.pin(Access::Read).unwrap();
            let seed = u64::try_from(at).unwrap();
            assert_eq!(digest(pinned.as_slice().unwrap()), digest(&content(2 * PART, seed)), "{round} {at}");
            let state = prefetch.wait().unwrap();
            asked += usize::from(state == ready());
        }
    }
    assert!(asked >= 40, "{asked} of 48 were ready");
    drop(layers);
    client.flush().unwrap();
    daemon.drains();
}

#[test]
fn a_request_waits_for_room_and_can_be_cancelled() {
    let daemon = daemon("8MiB");
    let (client, other) = (connect(&daemon), connect(&daemon));
    let wanted = layer(&client, 2, 1);
    evict(&daemon, &wanted);
    let held = other.allocate(AllocationRequest::new(Bytes::mib(8)).part_size(Bytes::mib(2))).unwrap();
    let prefetch = client.prefetch(PrefetchRequest::new().all(&wanted)).unwrap();
    assert!(matches!(prefetch.state().unwrap(), PrefetchState::Deferred(_)));
    let began = Instant::now();
    assert!(matches!(prefetch.wait_timeout(Duration::from_millis(50)), Err(Error::Deadline { .. })));
    assert!(began.elapsed() >= Duration::from_millis(50));
    prefetch.cancel().unwrap();
    assert_eq!(prefetch.wait().unwrap(), PrefetchState::Cancelled { by_operator: false });
    // An operator finds it by the session and its number.
    let prefetch = client.prefetch(PrefetchRequest::new().all(&wanted).partial()).unwrap();
    let session = client.session_id().to_string();
    let number = prefetch.number().to_string();
    json(&daemon, &["prefetch", "cancel", &session, &number]);
    assert_eq!(prefetch.wait().unwrap(), PrefetchState::Cancelled { by_operator: true });
    let again = daemon.vramctl().args(["prefetch", "cancel", &session, &number]).output().unwrap();
    assert!(!again.status.success());
    assert!(String::from_utf8_lossy(&again.stderr).contains("PREFETCH_NOT_FOUND"));
    // It begins once the room is there.
    let prefetch = client.prefetch(PrefetchRequest::new().all(&wanted)).unwrap();
    held.free().unwrap();
    assert_eq!(prefetch.wait().unwrap(), ready());
    drop((prefetch, wanted));
    client.flush().unwrap();
    daemon.drains();
}

#[test]
fn a_pending_request_fails_when_its_session_ends() {
    let daemon = daemon("8MiB");
    let (client, other) = (connect(&daemon), connect(&daemon));
    let wanted = layer(&client, 2, 1);
    evict(&daemon, &wanted);
    let held = other.allocate(AllocationRequest::new(Bytes::mib(8)).part_size(Bytes::mib(2))).unwrap();
    let prefetch = client.prefetch(PrefetchRequest::new().all(&wanted)).unwrap();
    let session = client.session_id().to_string();
    assert!(daemon.vramctl().args(["session", "end", &session]).output().unwrap().status.success());
    assert_eq!(prefetch.wait().unwrap_err().reason(), Some(Reason::SessionLost));
    assert_eq!(prefetch.state().unwrap_err().reason(), Some(Reason::SessionLost));
    drop((prefetch, wanted, client, held, other));
    daemon.drains();
}

#[test]
fn bad_requests_are_refused_and_an_ended_session_leaves_none() {
    let daemon = daemon("8MiB");
    let client = connect(&daemon);
    let small = layer(&client, 1, 1);
    let large = empty(&client, 5);
    let reason = |request: PrefetchRequest<'_>| client.prefetch(request).unwrap_err().reason();
    assert_eq!(reason(PrefetchRequest::new()), Some(Reason::RequestInvalid));
    assert_eq!(reason(PrefetchRequest::new().all(&small).all(&small)), Some(Reason::RequestInvalid));
    assert_eq!(reason(PrefetchRequest::new().parts(&small, 0..2)), Some(Reason::RequestInvalid));
    let at_once = PrefetchRequest::new().all(&small).within(Duration::ZERO);
    assert_eq!(reason(at_once), Some(Reason::RequestInvalid));
    assert_eq!(reason(PrefetchRequest::new().all(&large)), Some(Reason::DeviceFull));
    let elsewhere = connect(&daemon);
    let foreign = layer(&elsewhere, 1, 3);
    assert_eq!(reason(PrefetchRequest::new().all(&foreign)), Some(Reason::RequestInvalid));
    // As much of it as fits.
    evict(&daemon, &large);
    let prefetch = client.prefetch(PrefetchRequest::new().all(&large).partial()).unwrap();
    let PrefetchState::Ready { parts_left_out, .. } = prefetch.wait().unwrap() else { panic!() };
    assert!((1..=4).contains(&parts_left_out), "{parts_left_out}");
    assert!(json(&daemon, &["prefetch", "list"])["prefetches"].as_array().unwrap().len() == 1);
    drop((prefetch, small, large, client));
    until("its session is gone", || {
        json(&daemon, &["prefetch", "list"])["prefetches"] == serde_json::json!([])
    });
    drop((foreign, elsewhere));
    daemon.drains();
}

#[test]
fn a_task_waits_without_a_thread() {
    let daemon = daemon("16MiB");
    let client = connect(&daemon);
    let wanted = layer(&client, 3, 1);
    evict(&daemon, &wanted);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client: aio::Client = client.into();
        let prefetch = client.prefetch(PrefetchRequest::new().all(&wanted)).await.unwrap();
        assert_eq!(prefetch.wait_async().await.unwrap(), ready());
        let pinned = wanted.pin_async(Access::Read).await.unwrap();
        assert_eq!(digest(pinned.as_slice().unwrap()), digest(&content(3 * PART, 1)));
    });
}

const NIGHT: u32 = 20_001;

/// The owner is charged for it. When the owner frees it, requests of readers end.
#[test]
fn a_reader_prefetches_memory_that_another_tenant_has_sealed() {
    if !has_other_users("a_reader_prefetches_memory_that_another_tenant_has_sealed") {
        return;
    }
    let config = Config::devices(&["8MiB"]).memory("host_size = \"64MiB\"").memory("harvest_ms = 5");
    let daemon = Daemon::start(&config.tenant(NIGHT, "night"));
    let client = connect(&daemon);
    let mut owner = daemon.probe_as(NIGHT);
    owner.ask("sdk open");
    let reader = client.tenant();
    owner.ask(&format!("sdk allocate {} part={PART} name=weights persistent reader={reader}", 3 * PART));
    owner.ask("sdk write 9");
    owner.ask("sdk seal");
    owner.ask("sdk keep");
    let weights = client.attach_unpinned("night/weights").unwrap();
    let id = weights.id().to_string();
    let bytes = content(3 * PART, 9);
    send_by_id(&daemon, &id, "host");
    let charged = || json(&daemon, &["tenant", "list", "night"])["tenants"][0]["device_bytes"].clone();
    let prefetch = client.prefetch(PrefetchRequest::new().all(&weights).within(PATIENCE)).unwrap();
    assert_eq!(prefetch.wait().unwrap(), ready());
    assert_eq!(charged(), 3 * PART);
    assert_eq!(digest(weights.pin(Access::Read).unwrap().as_slice().unwrap()), digest(&bytes));

    send_by_id(&daemon, &id, "host");
    let steps =
        (0..3).fold(SequenceRequest::new(), |order, part| order.step().parts(&weights, part..part + 1));
    let order = client.declare_sequence(steps.passes(2)).unwrap();
    for (step, expected) in bytes.chunks(2 << 20).cycle().take(6).enumerate() {
        order.begin_next().unwrap();
        let part = u32::try_from(step % 3).unwrap();
        let pinned = weights.pin_parts(part..part + 1, Access::Read).unwrap();
        assert!(pinned.as_slice().unwrap() == expected, "step {step}");
    }
    order.end();

    send_by_id(&daemon, &id, "host");
    let held = client.allocate(AllocationRequest::new(Bytes::mib(8)).part_size(Bytes::mib(2))).unwrap();
    let prefetch = client.prefetch(PrefetchRequest::new().all(&weights)).unwrap();
    let order = client.declare_sequence(SequenceRequest::new().all(&weights)).unwrap();
    owner.ask("sdk free");
    let PrefetchState::Refused(error) = prefetch.wait().unwrap() else { panic!("it is freed") };
    assert_eq!(error.reason(), Some(Reason::AllocationNotFound));
    until("the sequence ends", || {
        let SequenceState::Refused(error) = order.state().unwrap() else { return false };
        error.reason() == Some(Reason::AllocationNotFound)
    });
    assert_eq!(json(&daemon, &["prefetch", "list"])["prefetches"], serde_json::json!([]));
    drop((held, order, weights));
    client.flush().unwrap();
    owner.leave();
    daemon.drains();
}

/// The answer to a request, in which nothing is left out.
#[track_caller]
fn step(session: &RawSession, number: u64) -> Step {
    let packet = session.channel.receive(PATIENCE);
    let Packet::Frame(daemon_frame::Frame::PrefetchProgress(progress), _) = packet else {
        panic!("no progress of {number}: {packet:?}")
    };
    assert_eq!(progress.prefetch_id, number);
    progress.step.expect("a step")
}

/// A request that is queued then ends, and a further one is refused. The seal goes on, and requests for sealed memory are
/// served.
#[test]
fn memory_is_not_prefetched_while_its_owner_seals_it() {
    let config = Config::devices(&["8MiB"]).memory("host_size = \"64MiB\"").memory("harvest_ms = 5");
    let daemon = Daemon::start(&config.fault("digest", 1, Effect::Hold));
    let (mut session, id) = open_and_write(&daemon, 2);
    crate::moves::evict(&daemon, &mut session, id);
    let mut other = daemon.open();
    let held = other.allocate(spec(8 * MIB)).allocation_id;
    let ask = |session: &RawSession, prefetch_id| {
        let parts = vec![part(id, 0), part(id, 1)];
        session.send(client_frame::Frame::Prefetch(Prefetch { prefetch_id, parts, ..Default::default() }));
        step(session, prefetch_id)
    };
    assert!(matches!(ask(&session, 1), Step::Deferred(_)));
    let seal = SealRequest { session_id: session.id(), allocation_id: id, ..Default::default() };
    let sealing = session.memory.seal(seal);
    let refusal = |step: Step| match step {
        Step::Refused(refused) => refused.reason,
        other => panic!("not refused: {other:?}"),
    };
    assert_eq!(refusal(step(&session, 1)), "ALLOCATION_NOT_FOUND");
    assert_eq!(refusal(ask(&session, 2)), "ALLOCATION_NOT_FOUND");
    assert!(!sealing.is_answered());
    daemon.end_holds();
    let bytes = content(4 * MIB, id);
    assert_eq!(sealing.ok().allocation.expect("it is sealed").digest, digest(&bytes));
    assert!(matches!(ask(&session, 3), Step::Deferred(_)));
    other.free(held);
    assert!(matches!(step(&session, 3), Step::Accepted(_)));
    assert!(matches!(step(&session, 3), Step::Ready(_)));
    fetch_by_pin(&mut session, id, 2);
    assert_eq!(session.digest(id, 4 * MIB), digest(&bytes));
    session.free(id);
    drop((session, other));
    daemon.drains();
}
