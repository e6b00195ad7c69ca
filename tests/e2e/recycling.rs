//! Freed memory that is kept: the same memory comes back to its tenant, to no other, and makes room for anybody.

use std::{collections::BTreeSet, fs::File, os::unix::fs::MetadataExt as _};

use vramd_proto::v1::AllocationSpec;
use vramd_tests::{
    Config, Daemon, MIB, RawSession, content,
    session::{Parcel, spec},
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
    let books = daemon.books();
    let of_tenants = books.quotas.iter().map(|quota| quota.cached_bytes).sum();
    (of_tenants, books.devices.iter().map(|device| device.cached_bytes).sum())
}

/// Allocates and maps, and says which memory it was.
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
fn what_a_tenant_freed_comes_back_as_it_was() {
    const SIZE: u64 = 32 * MIB;
    let daemon = Daemon::start(&keeping(&["1GiB"]));
    let mut session = daemon.open();
    let (first, memory) = take(&mut session, spec(SIZE));
    session.write(first, &content(SIZE, 7));
    let digest = session.digest(first, SIZE);
    assert_eq!(session.free(first).still_charged_bytes, 0, "the allocation is gone");
    assert_eq!((cached(&daemon), daemon.books().held()), ((SIZE, SIZE), SIZE));

    let mut other = daemon.open();
    let (fresh, others) = take(&mut other, spec(SIZE));
    assert!(others.is_disjoint(&memory), "who wants zeros gets new memory");
    assert!(other.parts(fresh).all(|part| part.bytes().iter().all(|byte| *byte == 0)));
    let (again, same) = take(&mut other, old(SIZE));
    assert_eq!((same, other.digest(again, SIZE)), (memory, digest));
    assert_eq!((cached(&daemon), daemon.books().held()), ((0, 0), 2 * SIZE));

    other.free(again);
    assert_eq!((cached(&daemon), daemon.books().held()), ((SIZE, SIZE), 2 * SIZE));
    let shown = daemon.vramctl().args(["quota", "list", "--json"]).output().expect("vramctl runs");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("\"cached_bytes\""), "{shown:?}");
}

#[test]
fn it_makes_room_for_others_and_is_never_theirs() {
    if !has_other_users("it_makes_room_for_others_and_is_never_theirs") {
        return;
    }
    let daemon = Daemon::start(&keeping(&["64MiB"]).tenant(TEAM_A, "team-a").tenant(TEAM_B, "team-b"));
    let (mut a, mut b) = (daemon.probe_as(TEAM_A), daemon.probe_as(TEAM_B));
    assert_eq!((&a.ask("open")["tenant"], &b.ask("open")["tenant"]), (&"team-a".into(), &"team-b".into()));
    let id = a.ask("allocate 50331648")["allocation"].clone();
    a.ask(&format!("write {id} 7"));
    a.ask(&format!("free {id}"));
    assert_eq!(daemon.books().held_by("team-a"), 48 * MIB);

    // Not so much that the device is full then: of that alone the rest would go.
    let id = b.ask("allocate 41943040 uninitialized")["allocation"].clone();
    let zeros = format!("blake3:{}", blake3::hash(&vec![0; 41_943_040]));
    assert_eq!(b.ask(&format!("digest {id} 41943040"))["digest"], zeros);
    let books = daemon.books();
    assert_eq!((books.held_by("team-a"), books.held_by("team-b")), (16 * MIB, 40 * MIB));
}
