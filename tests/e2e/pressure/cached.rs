//! Cached extents: their tenant gets them again, no other tenant does, and they make room for every waiter.

use std::{
    collections::BTreeSet,
    fs::File,
    os::unix::fs::MetadataExt as _,
    time::{Duration, Instant},
};

use vramd_proto::v1::{AllocationSpec, PressureLevel};
use vramd_tests::{
    Config, Daemon, MIB, MIB_2, RawSession, content,
    proc::memory_of,
    session::{Parcel, spec},
    wait::{always, until},
};

use crate::has_other_users;

const TEAM_A: u32 = 20_001;
const TEAM_B: u32 = 20_002;

fn keeping(devices: &[&str]) -> Config {
    Config::devices(devices).limit("cached_bytes_per_tenant_max = \"48MiB\"").memory("part_size = \"16MiB\"")
}

fn old(size_bytes: u64) -> AllocationSpec {
    AllocationSpec { uninitialized: true, ..spec(size_bytes) }
}

fn cached(daemon: &Daemon) -> (u64, u64) {
    let state = daemon.state();
    let of_tenants = state.quotas.iter().map(|quota| quota.cached_bytes).sum();
    (of_tenants, state.devices.iter().map(|device| device.cached_bytes).sum())
}

/// Allocates and maps, and returns the name of the memory.
fn take(session: &mut RawSession, spec: AllocationSpec) -> (u64, BTreeSet<u64>) {
    let id = session.reserve(spec).allocation_id;
    let mut inodes = BTreeSet::new();
    while !session.is_mapped(id) {
        let parcel: Parcel = session.receive_map();
        for (_, fd) in &parcel {
            let file = File::from(fd.try_clone().expect("a descriptor can be copied"));
            inodes.insert(file.metadata().expect("it is a file").ino());
        }
        session.accept(parcel);
    }
    (id, inodes)
}

#[test]
fn a_tenant_gets_its_cached_extent_again() {
    const SIZE: u64 = 32 * MIB;
    let daemon = Daemon::start(&keeping(&["1GiB"]));
    let mut session = daemon.open();
    let (first, memory) = take(&mut session, spec(SIZE));
    session.write(first, &content(SIZE, 7));
    let digest = session.digest(first, SIZE);
    assert_eq!(session.free(first).still_charged_bytes, 0, "the allocation is gone");
    assert_eq!((cached(&daemon), daemon.state().charged()), ((SIZE, SIZE), SIZE));

    let mut other = daemon.open();
    let (fresh, others) = take(&mut other, spec(SIZE));
    assert!(others.is_disjoint(&memory), "a request for zeros gets new memory");
    assert!(other.parts(fresh).all(|part| part.bytes().iter().all(|byte| *byte == 0)));
    let (again, same) = take(&mut other, old(SIZE));
    assert_eq!((same, other.digest(again, SIZE)), (memory, digest));
    assert_eq!((cached(&daemon), daemon.state().charged()), ((0, 0), 2 * SIZE));

    other.free(again);
    assert_eq!((cached(&daemon), daemon.state().charged()), ((SIZE, SIZE), 2 * SIZE));
    let shown = daemon.vramctl().args(["quota", "list", "--json"]).output().expect("vramctl runs");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("\"cached_bytes\""), "{shown:?}");
}

#[test]
fn a_cached_extent_makes_room_for_others_and_is_never_theirs() {
    if !has_other_users("a_cached_extent_makes_room_for_others_and_is_never_theirs") {
        return;
    }
    let daemon = Daemon::start(&keeping(&["64MiB"]).tenant(TEAM_A, "team-a").tenant(TEAM_B, "team-b"));
    let (mut a, mut b) = (daemon.probe_as(TEAM_A), daemon.probe_as(TEAM_B));
    assert_eq!((&a.ask("open")["tenant"], &b.ask("open")["tenant"]), (&"team-a".into(), &"team-b".into()));
    let id = a.ask("allocate 50331648")["allocation"].clone();
    a.ask(&format!("write {id} 7"));
    a.ask(&format!("free {id}"));
    assert_eq!(daemon.state().charged_to("team-a"), 48 * MIB);

    // The device must not become full, since pressure would release the rest.
    let id = b.ask("allocate 41943040 uninitialized")["allocation"].clone();
    let zeros = format!("blake3:{}", blake3::hash(&vec![0; 41_943_040]));
    assert_eq!(b.ask(&format!("digest {id} 41943040"))["digest"], zeros);
    let state = daemon.state();
    assert_eq!((state.charged_to("team-a"), state.charged_to("team-b")), (16 * MIB, 40 * MIB));
}

/// Long after the end of these tests.
const NEVER: &str = "600000";

/// Releases cached extents after one time if their tenant has a session, and after the other if it has none.
fn keeping_for(idle_ms: &str, without_session_ms: &str) -> Config {
    let config = keeping(&["1GiB"]).limit(&format!("cached_idle_for_ms = {idle_ms}"));
    config.limit(&format!("cached_for_ms = {without_session_ms}"))
}

/// Checks that nothing is charged, and that no process has memory of the device.
#[track_caller]
fn is_given_up(daemon: &Daemon) {
    until("it is given up", || (cached(daemon), daemon.state().charged()) == ((0, 0), 0));
    let uuid = daemon.state().devices[0].device.clone().unwrap_or_default().uuid;
    until("the driver has it back", || memory_of(&uuid).is_empty());
}

#[test]
fn an_unused_cached_extent_is_released_after_its_time() {
    let daemon = Daemon::start(&keeping_for("1500", NEVER));
    let mut session = daemon.open();
    let id = session.allocate(spec(32 * MIB)).allocation_id;
    let freed = Instant::now();
    session.free(id);
    is_given_up(&daemon);
    assert!(freed.elapsed() >= Duration::from_millis(1500), "it had its time: {:?}", freed.elapsed());
}

#[test]
fn cached_extents_of_absent_tenants_are_released_first() {
    let daemon = Daemon::start(&keeping_for(NEVER, "300"));
    let mut client = daemon.probe();
    client.ask("open");
    let id = client.ask("allocate 33554432")["allocation"].clone();
    client.ask(&format!("free {id}"));
    let kept = ((32 * MIB, 32 * MIB), 32 * MIB);
    always("its tenant is there", Duration::from_millis(1000), || {
        (cached(&daemon), daemon.state().charged()) == kept
    });
    client.leave();
    is_given_up(&daemon);
}

/// A device of 100 parts. The session uses some and has others cached.
fn used_and_cached(used: u64, idle: u64) -> (Daemon, RawSession) {
    let config = Config::devices(&["200MiB"]).limit("cached_bytes_per_tenant_max = \"200MiB\"");
    let daemon = Daemon::start(&config.limit(&format!("cached_idle_for_ms = {NEVER}")));
    let mut session = daemon.open();
    session.allocate(percent(used));
    let id = session.allocate(percent(idle)).allocation_id;
    session.free(id);
    assert_eq!(in_percent(&daemon), (used + idle, idle));
    (daemon, session)
}

/// New parts of 2 MiB, this many percent of the device.
fn percent(count: u64) -> AllocationSpec {
    AllocationSpec { part_size_bytes: Some(MIB_2), ..spec(count * MIB_2) }
}

/// The charged and the cached percent of the device.
fn in_percent(daemon: &Daemon) -> (u64, u64) {
    (daemon.state().charged() / MIB_2, cached(daemon).1 / MIB_2)
}

fn level(daemon: &Daemon) -> PressureLevel {
    daemon.state().devices[0].pressure()
}

#[test]
fn high_pressure_releases_cached_extents_until_there_is_room() {
    let (daemon, mut session) = used_and_cached(78, 10);
    assert_eq!(level(&daemon), PressureLevel::Elevated);
    always("it is kept", Duration::from_millis(1500), || in_percent(&daemon) == (88, 10));
    session.allocate(percent(3));
    until("as much goes as has to", || in_percent(&daemon) == (85, 4));
    assert_eq!(level(&daemon), PressureLevel::Elevated);
    always("the rest is kept", Duration::from_millis(1500), || in_percent(&daemon) == (85, 4));
}

#[test]
fn critical_pressure_releases_cached_extents_before_the_answer() {
    let (daemon, session) = used_and_cached(79, 10);
    // The next survey would report the same level. It comes once a second, and this check is immediate.
    session.reserve(percent(6));
    assert_eq!(cached(&daemon), (0, 0));
    until("the driver has it back", || in_percent(&daemon) == (85, 0));
}
