//! Memory that the daemon keeps ahead of its use, in an order that programs declare.

use std::time::{Duration, Instant};

use vramd_client::{
    Access, Allocation, AllocationId, AllocationRequest, Bytes, Client, Reason, SequenceRequest,
    SequenceState, aio,
};
use vramd_tests::{Config, Daemon, MIB, content, digest, wait::until};

use crate::{has_other_users, moves::clients::programs::send_by_id, pressure::metric};

const PART: u64 = 2 * MIB;
const PART_LEN: usize = 2 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

fn daemon(device: &str) -> Daemon {
    Daemon::start(&Config::devices(&[device]).memory("host_size = \"256MiB\"").memory("harvest_ms = 5"))
}

fn connect(daemon: &Daemon) -> Client {
    Client::builder().socket_dir(daemon.sockets()).name("test").request_timeout(PATIENCE).connect().unwrap()
}

fn layer(client: &Client, parts: u64, seed: u64) -> Allocation {
    let request = AllocationRequest::new(Bytes::new(parts * PART)).part_size(Bytes::mib(2)).unpinned();
    let mut layer = client.allocate(request).unwrap();
    layer.copy_from_host(0, &content(parts * PART, seed)).unwrap();
    layer
}

fn in_order(layers: &[Allocation]) -> SequenceRequest<'_> {
    layers.iter().fold(SequenceRequest::new(), |order, layer| order.step().all(layer))
}

/// Begins each step, pins its layer and checks the content, for so many passes.
fn run(order: &vramd_client::Sequence, layers: &[Allocation], seed: u64, passes: u32) {
    for _ in 0..passes {
        for (layer, seed) in layers.iter().zip(seed..) {
            order.begin_next().unwrap();
            let pinned = layer.pin(Access::Read).unwrap();
            assert_eq!(digest(pinned.as_slice().unwrap()), digest(&content(2 * PART, seed)));
        }
    }
}

/// The device holds a quarter of the model, and another program of the tenant pins its own memory meanwhile.
#[test]
fn a_model_four_times_the_device_streams_beside_another_programs_demand() {
    let daemon = daemon("24MiB");
    let (client, other) = (connect(&daemon), connect(&daemon));
    let layers: Vec<_> = (0..24).map(|seed| layer(&client, 2, seed)).collect();
    let own = [layer(&other, 1, 100), layer(&other, 1, 101)];
    let order = client.declare_sequence(in_order(&layers).passes(4)).unwrap();
    let SequenceState::Running(window) = order.state().unwrap() else { panic!() };
    assert!(
        window.steps >= 2 && window.bytes == Bytes::new(u64::from(window.steps) * 2 * PART),
        "{window:?}"
    );
    std::thread::scope(|scope| {
        let streaming = scope.spawn(|| run(&order, &layers, 0, 4));
        let mut pins = 0;
        while !streaming.is_finished() {
            for (memory, seed) in own.iter().zip(100..) {
                let pinned = memory.pin(Access::Read).unwrap();
                assert_eq!(digest(pinned.as_slice().unwrap()), digest(&content(PART, seed)));
                pins += 1;
            }
        }
        streaming.join().unwrap();
        assert!(pins >= 10, "{pins} pins were served while the model streamed");
    });
    order.end();
    until("its requests are gone", || {
        let listed = daemon.vramctl().args(["prefetch", "list", "--json"]).output().unwrap();
        let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
        listed["prefetches"] == serde_json::json!([])
    });
    drop((layers, own));
    client.flush().unwrap();
    other.flush().unwrap();
    daemon.drains();
}

const NIGHT: u32 = 20_001;

/// The parts of one layer of the model in [`a_model_four_times_the_device_streams_beside_another_tenants_demand`], and the
/// bytes that the link to the device carries in a second.
const LAYER_PARTS: u64 = 8;
const LINK: u64 = 16 * MIB;

/// How long a pin of one part may take on the link. Demand goes first, so it waits for the chunks of prefetches in flight
/// alone, and for demand that came before: the layer with which the other program has begun.
fn demand_bound() -> Duration {
    const CHUNKS_IN_FLIGHT: u64 = 4;
    Duration::from_millis((CHUNKS_IN_FLIGHT + LAYER_PARTS + 1) * PART * 1000 / LINK)
}

/// Another tenant's part always lies below its device when it is pinned. Behind the copies of the window, which are two
/// layers, each pin would wait longer than its bound.
#[test]
fn a_model_four_times_the_device_streams_beside_another_tenants_demand() {
    const LAYERS: u64 = 16;
    if !has_other_users("a_model_four_times_the_device_streams_beside_another_tenants_demand") {
        return;
    }
    let mut config = Config::devices(&["64MiB"]).memory("host_size = \"512MiB\"").memory("harvest_ms = 5");
    config.sim.push(format!("link_to_device = \"{}MiB\"", LINK / MIB));
    let config = config.tenant(NIGHT, "night").telemetry("prometheus_listen = \"127.0.0.1:0\"");
    let daemon = Daemon::start(&config);
    let client = connect(&daemon);
    let mut other = daemon.probe_as(NIGHT);
    assert_eq!(other.ask("sdk open")["tenant"], "night");
    let id = other.ask(&format!("sdk allocate {} part={PART}", 2 * PART))["allocation"].as_u64().unwrap();
    other.ask("sdk write 9");
    other.ask("sdk unhold");
    send_by_id(&daemon, &AllocationId::from_raw(id).to_string(), "host");
    // It has room for one of its two parts, which it pins in turns.
    daemon.set_quota("night", "2MiB", "2MiB");
    let other_digests = [0, 1].map(|part| digest(&content(2 * PART, 9)[part * PART_LEN..][..PART_LEN]));

    let written = (0..LAYERS).map(|seed| {
        let bytes = content(PART, seed).repeat(usize::try_from(LAYER_PARTS).unwrap());
        let request = AllocationRequest::new(Bytes::new(LAYER_PARTS * PART)).part_size(Bytes::mib(2));
        let mut layer = client.allocate(request.unpinned()).unwrap();
        layer.copy_from_host(0, &bytes).unwrap();
        (layer, digest(&bytes))
    });
    let (layers, digests): (Vec<_>, Vec<_>) = written.unzip();
    let order = client.declare_sequence(in_order(&layers).passes(1)).unwrap();
    let mut waits = std::thread::scope(|scope| {
        let streaming = scope.spawn(|| {
            for (layer, digest_written) in layers.iter().zip(&digests) {
                order.begin_next().unwrap();
                let pinned = layer.pin(Access::Read).unwrap();
                assert_eq!(digest(pinned.as_slice().unwrap()), *digest_written);
            }
        });
        let mut waits = Vec::new();
        for part in [0, 1].into_iter().cycle() {
            if streaming.is_finished() {
                break;
            }
            let began = Instant::now();
            let pinned = other.ask(&format!("sdk pin-parts {part} {}", part + 1));
            waits.push(began.elapsed());
            assert_eq!(pinned["digest"], other_digests[part]);
            other.ask("sdk unpin");
        }
        streaming.join().unwrap();
        waits
    });
    let fetched = |tenant: &str, cause: &str| {
        let labels = [tenant, cause, "direction=\"in\""];
        metric(&daemon, "vramd_tenant_migration_io_bytes_total", &labels).unwrap_or(0) / PART_LEN
    };
    until("each pin is counted as demand", || fetched("\"night\"", "\"demand\"") >= waits.len());
    let ahead = fetched(client.tenant(), "\"prefetch\"");
    assert!(ahead as u64 >= LAYERS * LAYER_PARTS / 2, "only {ahead} parts came ahead");
    // The claim is a time: of copies in flight a pin waits for a few alone. The link is slow, so that the time is that of
    // copies. One of ten may be late, if the machine was busy with something else.
    waits.sort();
    let within = waits.iter().filter(|wait| **wait <= demand_bound()).count();
    assert!(waits.len() >= 10 && within * 10 >= waits.len() * 9, "{:?}: {waits:?}", demand_bound());
    order.end();
    drop(layers);
    client.flush().unwrap();
    other.leave();
    daemon.drains();
}

#[test]
fn a_sequence_ends_with_its_memory_and_its_session() {
    let daemon = daemon("8MiB");
    let client = connect(&daemon);
    let mut layers: Vec<_> = (0..4).map(|seed| layer(&client, 2, seed)).collect();
    let order = client.declare_sequence(in_order(&layers)).unwrap();
    run(&order, &layers, 0, 1);
    layers.pop().unwrap().free().unwrap();
    let reason = |order: &vramd_client::Sequence| match order.state() {
        Ok(SequenceState::Refused(error)) | Err(error) => error.reason(),
        Ok(SequenceState::Running(_) | SequenceState::Ended { .. }) => None,
    };
    until("it ends", || reason(&order) == Some(Reason::AllocationNotFound));
    // The program goes on without it.
    order.begin_next().unwrap();
    run(&client.declare_sequence(in_order(&layers)).unwrap(), &layers, 0, 1);
    let last = client.declare_sequence(in_order(&layers)).unwrap();
    let session = client.session_id().to_string();
    assert!(daemon.vramctl().args(["session", "end", &session]).output().unwrap().status.success());
    until("its session is lost", || reason(&last) == Some(Reason::SessionLost));
    drop((order, last, layers, client));
    daemon.drains();
}

#[test]
fn bad_sequences_are_refused() {
    let daemon = daemon("8MiB");
    let (client, elsewhere) = (connect(&daemon), connect(&daemon));
    let (small, large, foreign) = (layer(&client, 1, 1), layer(&client, 1, 2), layer(&elsewhere, 1, 3));
    let huge = AllocationRequest::new(Bytes::mib(20)).part_size(Bytes::mib(2)).unpinned();
    let huge = client.allocate(huge).unwrap();
    let reason = |request: SequenceRequest<'_>| client.declare_sequence(request).unwrap_err().reason();
    let new = SequenceRequest::new;
    assert_eq!(reason(new()), Some(Reason::RequestInvalid));
    assert_eq!(reason(new().all(&small).step()), Some(Reason::RequestInvalid));
    assert_eq!(reason(new().all(&small).all(&small)), Some(Reason::RequestInvalid));
    assert_eq!(reason(new().parts(&small, 0..2)), Some(Reason::RequestInvalid));
    assert_eq!(reason(new().all(&foreign)), Some(Reason::RequestInvalid));
    assert_eq!(reason(new().all(&small).step().all(&huge)), Some(Reason::DeviceFull));
    let many = (0..2049).fold(new(), |order, _| order.step().all(&large));
    assert_eq!(reason(many), Some(Reason::RequestInvalid));
    let order = client.declare_sequence(new().all(&small).step().all(&large).passes(1)).unwrap();
    order.begin(1).unwrap();
    assert_eq!(order.begin(1).unwrap_err().reason(), Some(Reason::RequestInvalid));
}

#[test]
fn a_task_declares_a_sequence() {
    let daemon = daemon("8MiB");
    let client = connect(&daemon);
    let layers: Vec<_> = (0..6).map(|seed| layer(&client, 2, seed)).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client: aio::Client = client.into();
        let order = client.declare_sequence(in_order(&layers)).await.unwrap();
        for (layer, seed) in layers.iter().zip(0..) {
            order.begin_next().unwrap();
            let pinned = layer.pin_async(Access::Read).await.unwrap();
            assert_eq!(digest(pinned.as_slice().unwrap()), digest(&content(2 * PART, seed)));
        }
    });
}
