//! What can never be on its device together is refused at once, and keeps nobody waiting.

use std::time::Duration;

use vramd_client::{Access, Allocation, AllocationRequest, Bytes, Client, Error};
use vramd_tests::{Config, Daemon, MIB, content, digest, wait::until};

fn daemon(device: &str) -> Daemon {
    Daemon::start(&Config::devices(&[device]).memory("host_size = \"32MiB\"").memory("harvest_ms = 5"))
}

fn connect(daemon: &Daemon) -> Client {
    let builder = Client::builder().socket_dir(daemon.sockets()).name("test");
    builder.request_timeout(Duration::from_secs(60)).connect().unwrap()
}

fn request(mib: u32) -> AllocationRequest {
    AllocationRequest::new(Bytes::mib(mib)).part_size(Bytes::mib(2))
}

/// Memory with content, all of it in the host.
fn elsewhere(daemon: &Daemon, client: &Client, mib: u32, seed: u64) -> Allocation {
    let mut memory = client.allocate(request(mib)).unwrap();
    memory.copy_from_host(0, &content(u64::from(mib) * MIB, seed)).unwrap();
    memory.unhold().unwrap();
    evict_all(daemon, &memory.id().to_string());
    memory
}

/// Where the parts of an allocation lie.
fn tiers_of(daemon: &Daemon, id: &str) -> Vec<String> {
    let shown = daemon.vramctl().args(["alloc", "show", id, "--json"]).output().unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    let parts = shown["allocation"]["parts"].as_array().unwrap_or_else(|| panic!("{shown:#}"));
    parts.iter().map(|part| part["tier"].as_str().unwrap().to_owned()).collect()
}

fn evict_all(daemon: &Daemon, id: &str) {
    until("it leaves", || {
        let evicted = daemon.vramctl().args(["alloc", "evict", id]).output().unwrap();
        evicted.status.success() && tiers_of(daemon, id).iter().all(|tier| tier == "host")
    });
}

fn nobody_waits(daemon: &Daemon) -> bool {
    let waits = daemon.vramctl().args(["wait", "list", "--json"]).output().unwrap();
    let waits: serde_json::Value = serde_json::from_slice(&waits.stdout).unwrap();
    waits["waits"].as_array().unwrap_or_else(|| panic!("{waits:#}")).is_empty()
}

#[test]
fn sealing_brings_nothing_back_that_was_elsewhere() {
    let daemon = daemon("16MiB");
    let client = connect(&daemon);
    let memory = elsewhere(&daemon, &client, 6, 4);
    let id = memory.id().to_string();
    let sealed = memory.seal().unwrap();
    assert_eq!((tiers_of(&daemon, &id), nobody_waits(&daemon)), (vec!["host".to_owned(); 3], true));
    let pinned = sealed.pin(Access::Read).unwrap();
    assert_eq!(digest(pinned.as_slice().unwrap()), digest(&content(6 * MIB, 4)));
    drop(pinned);
    sealed.free().unwrap();
    daemon.drains();
}

#[test]
fn an_attach_of_more_than_the_device_has_keeps_nobody_waiting() {
    let daemon = daemon("8MiB");
    let [writer, reader, other] = [(); 3].map(|()| connect(&daemon));
    let weights = writer.allocate(request(12).unheld().name("weights").persistent()).unwrap().seal().unwrap();
    let cache = elsewhere(&daemon, &other, 4, 5);

    let refused = reader.attach("weights").unwrap_err();
    assert!(matches!(refused, Error::DeviceFull { asked, .. } if asked == Bytes::mib(12)), "{refused:?}");
    assert!(nobody_waits(&daemon));
    let pinned = cache.pin(Access::Read).unwrap();
    assert_eq!(digest(pinned.as_slice().unwrap()), digest(&content(4 * MIB, 5)));
    drop(pinned);
    let attached = reader.attach_unheld("weights").unwrap();
    for at in 0..6 {
        drop(attached.pin_parts(at..at + 1, Access::Read).unwrap());
    }
    weights.free().unwrap();
    drop((attached, cache));
    daemon.drains();
}

#[test]
fn a_set_that_the_guarantees_of_others_leave_no_room_for() {
    let daemon = daemon("16MiB");
    let client = connect(&daemon);
    let memory = elsewhere(&daemon, &client, 8, 6);
    daemon.set_quota("another", "10MiB", "16MiB");
    let refused = memory.pin(Access::Read).unwrap_err();
    let Error::DeviceFull { asked, free, .. } = refused else { panic!("{refused:?}") };
    assert_eq!((asked, free), (Bytes::mib(8), Bytes::mib(6)));
    drop(memory.pin_parts(0..3, Access::Read).unwrap());

    // Who waits already is told when it comes to that.
    daemon.set_quota("another", "0", "16MiB");
    evict_all(&daemon, &memory.id().to_string());
    let filler = client.allocate(request(12)).unwrap();
    let tenant = client.tenant().to_owned();
    std::thread::scope(|scope| {
        let pinning = scope.spawn(|| memory.pin(Access::Read).map(drop));
        until("it waits", || !nobody_waits(&daemon));
        daemon.set_quota(&tenant, "0", "6MiB");
        let refused = pinning.join().unwrap().unwrap_err();
        assert!(matches!(refused, Error::QuotaLimit { .. }), "{refused:?}");
    });
    assert!(nobody_waits(&daemon));
    daemon.set_quota(&tenant, "0", "16MiB");
    filler.free().unwrap();
    assert_eq!(digest(memory.pin(Access::Read).unwrap().as_slice().unwrap()), digest(&content(8 * MIB, 6)));
    memory.free().unwrap();
    daemon.drains();
}
