//! `/livez` and `/readyz`, and the daemon's reports about a `[telemetry]` that it cannot have.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use vramd_proto::v1::DrainRequest;
use vramd_tests::{Config, Daemon, Home, http, rpc::Health, wait::until};

use super::{address, measured, scrape};

#[test]
fn a_draining_node_is_live_and_not_ready() {
    let daemon = Daemon::start(&measured());
    let at = address(&daemon);
    let status = |path: &str| http::get(at, path).status;
    assert_eq!((status("/livez"), status("/readyz")), (200, 200));
    daemon.admin.drain(DrainRequest::default()).ok();
    let ready = http::get(at, "/readyz");
    assert_eq!((ready.status, ready.body.as_str()), (503, "the node is draining\n"));
    assert_eq!(status("/livez"), 200);
    // The gRPC health service says the same; operators are served.
    let health = Health::new(&daemon.sockets().join("vramd.sock"));
    until("the node is not serving", || !health.is_serving(""));
    assert!(!health.is_serving("vramd.v1.MemoryService") && health.is_serving("vramd.v1.AdminService"));
    daemon.admin.drain(DrainRequest { cancel: true, ..Default::default() }).ok();
    assert_eq!(status("/readyz"), 200);
    until("the node is serving", || health.is_serving(""));
    assert_eq!(status("/nothing"), 404);
}

/// Many more connections than are served at once, none of which ever sends a request.
#[test]
fn connections_without_a_request_keep_no_probe_from_its_answer() {
    let daemon = Daemon::start(&measured());
    let at = address(&daemon);
    let mut mute: Vec<_> = (0..500).map(|_| TcpStream::connect(at).unwrap()).collect();
    mute[499].write_all(b"GET /metr").unwrap();
    assert_eq!(http::get(at, "/livez").status, 200);
    assert!(scrape(&daemon).contains("vramd_memory_limit_bytes"));
    // The oldest connection made room.
    assert!(matches!(mute[0].read(&mut [0]), Ok(0) | Err(_)), "it was closed");
}

/// Four clients load `/metrics` and the page without a pause: twice as many as are served at once. The benchmark of
/// telemetry has more of them, on a node with many series. A probe must answer within a second, and takes milliseconds.
/// Of the probes the middle one counts, since a busy machine may hold up any one of them.
#[test]
fn probes_answer_within_a_second_during_a_storm_of_scrapes() {
    let daemon = Daemon::start(&measured());
    for tenant in 0..10 {
        daemon.set_quota(&format!("team-{tenant:02}"), "1MiB", "10MiB");
    }
    let at = address(&daemon);
    let end = AtomicBool::new(false);
    let (served, mut times) = thread::scope(|scope| {
        let load = |path: &'static str| {
            let end = &end;
            scope.spawn(move || {
                let mut served = 0;
                while !end.load(Ordering::Relaxed) {
                    // A connection may be closed for a newer one.
                    served += usize::from(http::try_get(at, path).is_ok_and(|answer| answer.status == 200));
                }
                served
            })
        };
        let storm: Vec<_> = (0..4).map(|client| load(["/metrics", "/"][client % 2])).collect();
        let mut times = Vec::new();
        for probe in 0..20 {
            let started = Instant::now();
            let path = ["/livez", "/readyz"][probe % 2];
            assert_eq!(http::get(at, path).status, 200, "{path}");
            times.push(started.elapsed());
            thread::sleep(Duration::from_millis(25));
        }
        end.store(true, Ordering::Relaxed);
        (storm.into_iter().map(|client| client.join().unwrap()).sum::<usize>(), times)
    });
    assert!(served > 20, "{served} scrapes and pages");
    times.sort_unstable();
    assert!(times[times.len() / 2] < Duration::from_secs(1), "{times:?}");
}

#[test]
fn an_address_in_use_is_reported() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let home = Home::new();
    Config::default().telemetry(&format!("prometheus_listen = \"{address}\"")).write(home.path());
    let output = home.command().output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&address.to_string()) && said.contains("telemetry.prometheus_listen"), "{said}");
}

#[test]
fn an_invalid_environment_variable_is_reported() {
    let home = Home::new();
    Config::default().write(home.path());
    let mut command: Command = home.command();
    let output = command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "https://far:4317").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("OTEL_EXPORTER_OTLP_ENDPOINT") && said.contains("TLS"), "{said}");
}

#[test]
fn a_daemon_that_stops_stops_serving() {
    let daemon = Daemon::start(&measured());
    assert!(scrape(&daemon).contains("vramd_memory_limit_bytes"));
    let at = address(&daemon);
    let (status, _) = daemon.stop();
    assert!(status.success());
    assert!(http::try_get(at, "/livez").is_err());
}
