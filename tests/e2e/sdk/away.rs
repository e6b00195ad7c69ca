//! A whole session away and back, as a process that is to be frozen needs it.

use rustix::process::Signal;
use vramd_client::{Access, AllocationRequest, Bytes, Client, Error};
use vramd_tests::{Config, Daemon, MIB, Probe, content, digest, proc, wait::until};
use vramd_types::Reason;

const SHARED: u64 = 2 * MIB;

/// A device that has room for one traveller, and a host for two.
fn daemon() -> Daemon {
    Daemon::start(&Config::devices(&["64MiB"]).memory("host_size = \"256MiB\"").memory("harvest_ms = 5"))
}

fn connect(daemon: &Daemon) -> Client {
    Client::builder().socket_dir(daemon.sockets()).name("test").connect().unwrap()
}

fn share(client: &Client, name: &str) -> vramd_client::Sealed {
    let request = AllocationRequest::new(Bytes::new(SHARED)).name(name).persistent();
    let mut memory = client.allocate(request).unwrap();
    memory.copy_from_host(0, &content(SHARED, 9)).unwrap();
    memory.seal().unwrap()
}

/// A process that has memory of every kind.
fn travelling(daemon: &Daemon) -> Probe {
    let mut probe = daemon.probe();
    probe.ask("sdk open");
    probe.ask("sdk travel shared");
    assert!(proc::memory_mapping_count(probe.pid()) >= 4, "memory is mapped");
    probe
}

#[track_caller]
fn assert_has_nothing(probe: &Probe) {
    assert_eq!(proc::memory_mapping_count(probe.pid()), 0, "mappings of device memory");
    assert_eq!(proc::memory_fd_count(probe.pid()), 0, "descriptors of device memory");
}

#[test]
fn a_process_is_frozen_without_memory_while_others_use_the_device() {
    let daemon = daemon();
    let owner = connect(&daemon);
    let shared = share(&owner, "shared");
    let mut probe = travelling(&daemon);
    for round in 0..3 {
        probe.ask("sdk detach-all");
        assert_has_nothing(&probe);
        probe.freeze();
        // Nearly all of the device, beside what is shared.
        let mut other = owner.allocate(AllocationRequest::new(Bytes::mib(60))).unwrap();
        other.as_mut_slice().unwrap().fill(round);
        assert_eq!(digest(shared.as_slice().unwrap()), digest(&content(SHARED, 9)), "its owner goes on");
        other.free().unwrap();
        probe.signal(Signal::CONT);
        assert_has_nothing(&probe);
        probe.ask("sdk attach-all");
        assert_eq!(probe.ask("sdk compare")["held"], true);
    }
    probe.leave();
    drop(shared);
    drop(owner);
    daemon.stop();
}

#[test]
fn calls_fail_until_the_memory_is_back() {
    let daemon = daemon();
    let owner = connect(&daemon);
    let _shared = share(&owner, "shared");
    let mut probe = travelling(&daemon);
    probe.ask("sdk attach-all");
    assert_eq!(probe.ask("sdk is-away")["away"], false, "an attach without a detach changes nothing");
    probe.ask("sdk detach-all");
    let tried = probe.ask("sdk try-all");
    assert_eq!((&tried["others"], &tried["listed"]), (&serde_json::json!([]), &serde_json::json!(true)));
    assert_has_nothing(&probe);
    assert_eq!(probe.ask("sdk is-away")["away"], true);
    assert_eq!(probe.ask("sdk fork-away")["statuses"], serde_json::json!([0, 0]));
    // A handle pin that is given up meanwhile is not taken again.
    probe.ask("sdk unhold-all");
    probe.ask("sdk attach-all");
    assert_eq!(probe.ask("sdk compare")["held"], false);
    probe.ask("sdk attach-all");
}

#[test]
fn memory_in_use_is_named_and_everything_stays() {
    let daemon = daemon();
    let owner = connect(&daemon);
    let _shared = share(&owner, "shared");
    let mut probe = travelling(&daemon);
    probe.ask("sdk hold");
    let refused = probe.refused("sdk detach-all");
    refused.is(Reason::Pinned);
    assert!(refused.message.contains("/loose`) has 2 pins"), "{}", refused.message);
    assert_eq!(probe.ask("sdk compare")["held"], true);
    probe.ask("sdk release");
    probe.ask("sdk slice");
    let refused = probe.refused("sdk detach-all");
    assert!(refused.message.contains("a slice of"), "{}", refused.message);
    assert!(refused.message.contains("/held`)"), "{}", refused.message);
    probe.ask("sdk end-slice");
    probe.ask("sdk detach-all");
    assert_has_nothing(&probe);
    probe.ask("sdk attach-all");
    probe.ask("sdk compare");
}

#[test]
fn without_room_nothing_comes_back_by_half() {
    let daemon = daemon();
    let owner = connect(&daemon);
    let shared = share(&owner, "shared");
    let client = connect(&daemon);
    let mut first = client.allocate(AllocationRequest::new(Bytes::mib(20))).unwrap();
    let mut second = client.allocate(AllocationRequest::new(Bytes::mib(20))).unwrap();
    first.copy_from_host(0, &content(20 * MIB, 1)).unwrap();
    second.copy_from_host(0, &content(20 * MIB, 2)).unwrap();
    client.detach_all().unwrap();
    let other = owner.allocate(AllocationRequest::new(Bytes::mib(36))).unwrap();
    client.attach_all_timeout(std::time::Duration::from_millis(300)).unwrap_err();
    assert!(client.is_away() && !first.is_mapped() && !second.is_mapped());
    assert_eq!(first.pin(Access::Read).map(drop), Err(Error::Away));
    other.free().unwrap();
    client.attach_all().unwrap();
    for (memory, seed) in [(&first, 1), (&second, 2)] {
        assert_eq!(digest(memory.as_slice().unwrap()), digest(&content(20 * MIB, seed)));
    }
    drop(shared);
}

#[test]
fn a_daemon_that_ends_meanwhile_is_told_by_every_call() {
    let daemon = daemon();
    let owner = connect(&daemon);
    let _shared = share(&owner, "shared");
    let mut probe = travelling(&daemon);
    probe.ask("sdk detach-all");
    daemon.kill();
    for call in ["sdk attach-all", "sdk attach-all", "sdk detach-all"] {
        until(call, || probe.refused(call).reason == Reason::BrokerGone.name());
    }
    assert_has_nothing(&probe);
}

#[test]
fn memory_that_was_freed_meanwhile_is_left_behind_by_dropping_it() {
    let daemon = daemon();
    let owner = connect(&daemon);
    let shared = share(&owner, "shared");
    let client = connect(&daemon);
    let mut own = client.allocate(AllocationRequest::new(Bytes::mib(4))).unwrap();
    own.copy_from_host(0, &content(4 * MIB, 4)).unwrap();
    let attached = client.attach("shared").unwrap();
    client.detach_all().unwrap();
    shared.free().unwrap();
    client.attach_all().unwrap_err();
    assert!(client.is_away());
    drop(attached);
    client.flush().unwrap();
    client.attach_all().unwrap();
    assert_eq!(digest(own.as_slice().unwrap()), digest(&content(4 * MIB, 4)));
}

#[test]
fn a_working_set_survives_and_a_turn_or_a_sequence_is_in_the_way() {
    let daemon = daemon();
    let client = connect(&daemon);
    let request = || AllocationRequest::new(Bytes::mib(4)).unpinned();
    let (mut one, mut two) = (client.allocate(request()).unwrap(), client.allocate(request()).unwrap());
    one.copy_from_host(0, &content(4 * MIB, 1)).unwrap();
    two.copy_from_host(0, &content(4 * MIB, 2)).unwrap();
    let set = client.working_set("both", &[&one, &two]).unwrap();
    let turn = set.acquire().unwrap();
    let refused = client.detach_all().unwrap_err();
    assert!(refused.to_string().contains("has a turn"), "{refused}");
    turn.yield_now();
    let order = vramd_client::SequenceRequest::new().step().all(&one).step().all(&two);
    let sequence = client.declare_sequence(order).unwrap();
    let refused = client.detach_all().unwrap_err();
    assert!(refused.to_string().contains("declared sequence"), "{refused}");
    sequence.end();
    client.detach_all().unwrap();
    assert_eq!(set.acquire().map(drop), Err(Error::Away));
    client.attach_all().unwrap();
    let turn = set.acquire().unwrap();
    let pinned = client.pin_set(&[(&one, Access::Read), (&two, Access::Read)]).unwrap();
    assert_eq!(digest(pinned.guards()[1].as_slice().unwrap()), digest(&content(4 * MIB, 2)));
    drop((pinned, turn));
}
