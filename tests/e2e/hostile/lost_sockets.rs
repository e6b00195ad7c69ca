//! The daemon's sockets are removed or replaced under it.

use std::{fs, path::Path, process::Stdio};

use rustix::process::Signal;
use vramd_proto::v1::GetNodeRequest;
use vramd_tests::{
    Config, Daemon, Home, MIB_2, RawSession, http,
    rpc::{Health, is_serving},
    session::spec,
    wait::until,
};

use crate::telemetry::{address, measured};

const ADMIN_SERVICE: &str = "vramd.v1.AdminService";
const MEMORY_SERVICE: &str = "vramd.v1.MemoryService";

fn serves(sockets: &Path) -> bool {
    is_serving(&sockets.join("admin.sock"), "")
}

#[test]
fn sockets_that_were_removed_are_bound_again() {
    let daemon = Daemon::start(&measured());
    let mut before = daemon.open();
    fs::remove_file(daemon.sockets().join("vramd.sock")).unwrap();
    fs::remove_file(daemon.sockets().join("channel.sock")).unwrap();
    until("both are back", || {
        daemon.sockets().join("channel.sock").exists() && daemon.sockets().join("vramd.sock").exists()
    });
    daemon.open().allocate(spec(MIB_2));
    fs::remove_dir_all(daemon.sockets()).unwrap();
    until("the daemon serves", || serves(&daemon.sockets()));
    let mut after = RawSession::open(&daemon.sockets());
    after.allocate(spec(MIB_2));
    before.allocate(spec(MIB_2));
    assert_eq!(http::get(address(&daemon), "/readyz").status, 200);
    let log = daemon.log();
    assert!(log.contains("sockets were removed or replaced: bound again"), "{log}");
    let (status, home) = daemon.stop();
    assert!(status.success());
    assert!(!home.sockets().join("vramd.sock").exists());
}

#[test]
fn a_daemon_whose_sockets_another_one_took_is_not_ready_and_deletes_none() {
    let first = Daemon::start(&measured());
    let at = address(&first);
    assert_eq!(http::get(at, "/readyz").status, 200);
    let sockets = first.sockets();
    // On connections that stand.
    let health = ["vramd.sock", "admin.sock"].map(|socket| Health::new(&sockets.join(socket)));
    let is_serving = |service: &str| health.iter().all(|health| health.is_serving(service));
    assert!(is_serving("") && is_serving(ADMIN_SERVICE) && is_serving(MEMORY_SERVICE));
    let home = Home::new();
    Config::default().write(home.path());
    // So that it does not bind them again before the second is there.
    first.freeze();
    fs::remove_dir_all(&sockets).unwrap();
    let mut command = home.command();
    command.env("VRAMD_SOCKET_DIR", &sockets).stdin(Stdio::null()).stderr(Stdio::null());
    let mut second = command.spawn().unwrap();
    until("the second serves", || serves(&sockets));
    first.signal(Signal::CONT);
    until("the first is not ready", || {
        let ready = http::get(at, "/readyz");
        ready.status == 503 && ready.body.contains("in use by a live daemon")
    });
    assert_eq!(http::get(at, "/livez").status, 200);
    let is_reported = || {
        let mut of =
            health.iter().flat_map(|it| ["", ADMIN_SERVICE, MEMORY_SERVICE].map(|name| it.is_serving(name)));
        !of.any(|is_serving| is_serving)
    };
    until("health says the same", is_reported);
    let admin = vramd_tests::Admin::new(&sockets);
    let (status, kept) = first.stop();
    assert!(status.success());
    assert!(serves(&sockets), "the second's sockets stand");
    assert_eq!(admin.get_node(GetNodeRequest {}).ok().driver, "sim");
    second.kill().unwrap();
    second.wait().unwrap();
    drop(kept);
}
