//! Memory that is accessed in place: a part in the host is mapped there, and is not fetched.

use std::time::Duration;

use vramd_client::{Access, Advice, Allocation, AllocationRequest, Bytes, Client, Reason, aio};
use vramd_proto::v1::{
    self, AdviseRequest, AllocationSpec, EventKind, WatchRequest, allocation_event::Change,
    watch_response::Event,
};
use vramd_tests::{
    Config, Daemon, MIB_2, Probe, RawSession, Watching, content, digest,
    proc::host_memory_of,
    session::spec,
    wait::{always, until},
};

use crate::moves::{
    assert_nothing_left,
    clients::programs::{allocate_unpinned, is_intact, lies, send, send_by_id, tiers_of},
    disk::tier::{PART, until_charged, write_unpinned},
    pins::fetch::connect,
    tiers, vramctl_json,
};
use crate::{has_other_users, pressure::metric};

const TEAM_A: u32 = 20_001;
const TEAM_B: u32 = 20_002;
const SIZE: u64 = 2 * MIB_2;

fn node() -> Config {
    tiers("8MiB", "16MiB").disk("16MiB").telemetry("prometheus_listen = \"127.0.0.1:0\"")
}

/// Parts that are accessed in place and lie in the host.
fn allocate_in_host(daemon: &Daemon, client: &Client, count: u64) -> Allocation {
    let memory = allocate_unpinned(daemon, client, count);
    memory.advise(Advice::SetAccessedBy).unwrap();
    send(daemon, &memory, "host");
    memory
}

/// Writes the first byte of a part, as a kernel would do in place.
#[track_caller]
fn write(memory: &Allocation, part: u32, byte: u8) {
    memory.pin_parts(part..part + 1, Access::Write).unwrap().as_mut_slice().unwrap()[0] = byte;
}

/// The first content, except for the first byte of each of these parts.
#[track_caller]
fn has(memory: &Allocation, written: &[(usize, u8)]) {
    let mut expected = content(memory.info().size.get(), memory.id().get());
    for (part, byte) in written {
        expected[part * PART] = *byte;
    }
    for (part, should) in (0..).zip(expected.chunks(PART)) {
        let pinned = memory.pin_parts(part..part + 1, Access::Read).unwrap();
        assert!(pinned.as_slice().unwrap() == should, "part {part} of {} has other bytes", memory.id());
    }
}

/// The outcome of each part that an operator moves.
#[track_caller]
fn outcomes(daemon: &Daemon, words: &[&str]) -> Vec<String> {
    let told = vramctl_json(daemon, words);
    let parts = told["parts"].as_array().expect("its parts");
    parts.iter().map(|part| part["outcome"].as_str().expect("an outcome").to_owned()).collect()
}

/// The metric's value for one tenant and one device. A zero is left out.
#[track_caller]
fn measured(daemon: &Daemon) -> u64 {
    metric(daemon, "vramd_in_place_bytes", &[]).unwrap_or(0)
}

fn advise(session: &RawSession, allocation_id: u64, advice: i32) -> AdviseRequest {
    AdviseRequest { session_id: session.id(), allocation_id, advice, ..Default::default() }
}

#[test]
fn a_pin_in_place_leaves_the_device_as_it_is() {
    let daemon = Daemon::start(&node());
    let client = connect(&daemon);
    let memory = allocate_in_host(&daemon, &client, 4);
    let address = memory.as_device_ptr();
    until_charged(&daemon, [0, 8, 0]);
    has(&memory, &[]);
    for round in 1..4 {
        write(&memory, 1, round);
        write(&memory, 3, 77);
        has(&memory, &[(1, round), (3, 77)]);
        assert_eq!(memory.as_device_ptr(), address);
    }
    // All parts at once, and none is fetched.
    let pinned = memory.pin(Access::Read).unwrap();
    assert!(pinned.as_device_ptr() == address && memory.is_mapped());
    until_charged(&daemon, [0, 8, 0]);
    assert_eq!(lies(&daemon, &memory), ["host"; 4]);
    drop(pinned);
    has(&memory, &[(1, 3), (3, 77)]);
    // As a slice, if the handle has its pin.
    let mut memory = memory;
    memory.repin().unwrap();
    assert_eq!(memory.as_slice().unwrap()[PART], 3);
    until_charged(&daemon, [0, 8, 0]);
    drop(memory);
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}

#[test]
fn an_evicted_part_stays_in_the_host_when_it_is_pinned_again() {
    let daemon = Daemon::start(&tiers("8MiB", "32MiB"));
    let client = connect(&daemon);
    let memory = allocate_unpinned(&daemon, &client, 3);
    memory.advise(Advice::SetAccessedBy).unwrap();
    // A part on the device stays until another session needs its room.
    is_intact(&memory, 3);
    assert_eq!(lies(&daemon, &memory), ["device"; 3]);
    let other = write_unpinned(&client, 4);
    // This fills the device.
    drop(other.pin(Access::Read).unwrap());
    assert_eq!(lies(&daemon, &memory), ["host"; 3]);
    for _ in 0..3 {
        is_intact(&memory, 3);
        assert_eq!(
            (lies(&daemon, &memory), lies(&daemon, &other)),
            (vec!["host".to_owned(); 3], vec!["device".to_owned(); 4])
        );
    }
    drop((memory, other));
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}

#[test]
fn more_memory_than_the_device_has_is_pinned_in_place() {
    let daemon = Daemon::start(&tiers("4MiB", "16MiB"));
    let client = connect(&daemon);
    let request = AllocationRequest::new(Bytes::new(6 * MIB_2)).part_size(Bytes::new(MIB_2)).unpinned();
    let mut memory = client.allocate(request).unwrap();
    memory.advise(Advice::SetAccessedBy).unwrap();
    let bytes = content(6 * MIB_2, memory.id().get());
    memory.copy_from_host(0, &bytes).unwrap();
    assert!(lies(&daemon, &memory).iter().filter(|tier| *tier == "host").count() >= 4);
    let pinned = memory.pin(Access::Read).unwrap();
    assert!(pinned.as_slice().unwrap() == bytes);
    drop((pinned, memory));
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}

#[test]
fn an_operator_moves_unpinned_parts_that_are_mapped_in_place() {
    let daemon = Daemon::start(&node());
    let client = connect(&daemon);
    let memory = allocate_in_host(&daemon, &client, 2);
    let id = memory.id().to_string();
    for (round, to) in [(1, "disk"), (2, "device"), (3, "disk")] {
        write(&memory, 0, round);
        let pinned = memory.pin(Access::Write).unwrap();
        assert_eq!(lies(&daemon, &memory), ["host"; 2]);
        daemon.settled_state();
        for words in [&["alloc", "bring-in", &id][..], &["alloc", "evict", &id, "--to", "disk"]] {
            assert_eq!(outcomes(&daemon, words), ["pinned"; 2]);
        }
        drop(pinned);
        until("it goes there", || {
            let moved = match to {
                "device" => outcomes(&daemon, &["alloc", "bring-in", &id]),
                _ => outcomes(&daemon, &["alloc", "evict", &id, "--to", to]),
            };
            moved == ["moved"; 2]
        });
        assert!(!memory.is_mapped(), "it was unmapped first");
        assert_eq!(lies(&daemon, &memory), [to; 2]);
        // A part on disk is fetched to the device as always.
        has(&memory, &[(0, round)]);
        assert_eq!(lies(&daemon, &memory), ["device"; 2]);
        send(&daemon, &memory, "host");
    }
    has(&memory, &[(0, 3)]);
    assert_eq!(lies(&daemon, &memory), ["host"; 2]);
    drop(memory);
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}

#[test]
fn a_part_is_fetched_after_the_advice_is_unset_and_its_pins_end() {
    let daemon = Daemon::start(&node());
    let client = connect(&daemon);
    let memory = allocate_in_host(&daemon, &client, 2);
    let mut pinned = memory.pin(Access::Write).unwrap();
    memory.advise(Advice::UnsetAccessedBy).unwrap();
    memory.advise(Advice::UnsetAccessedBy).unwrap();
    assert!(!client.describe(memory.id()).unwrap().accessed_by_device);
    pinned.as_mut_slice().unwrap()[PART] = 9;
    always("pinned parts stay", Duration::from_millis(200), || {
        memory.is_mapped() && lies(&daemon, &memory) == ["host"; 2]
    });
    assert_eq!(pinned.as_slice().unwrap()[PART], 9);
    drop(pinned);
    until("it is unmapped there", || !memory.is_mapped());
    has(&memory, &[(1, 9)]);
    assert_eq!(lies(&daemon, &memory), ["device"; 2]);
    until_charged(&daemon, [4, 4, 0]);
    // Again, in the other direction.
    memory.advise(Advice::SetAccessedBy).unwrap();
    memory.advise(Advice::SetAccessedBy).unwrap();
    send(&daemon, &memory, "host");
    has(&memory, &[(1, 9)]);
    assert_eq!(lies(&daemon, &memory), ["host"; 2]);
    drop(memory);
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}

/// Memory that its owner wrote, advised and sealed, and a reader of another tenant attached. Neither has a handle pin,
/// and the memory lies in the host.
fn shared(daemon: &Daemon) -> (Probe, Probe, u64) {
    let mut owner = daemon.probe_as(TEAM_A);
    owner.ask("sdk open");
    let words = format!("sdk allocate {SIZE} part={MIB_2} name=weights persistent reader=team-b");
    let id = owner.ask(&words)["allocation"].as_u64().unwrap();
    owner.ask("sdk write 11");
    owner.ask("sdk advise set");
    owner.ask("sdk seal");
    owner.ask("sdk keep");
    let mut reader = daemon.probe_as(TEAM_B);
    reader.ask("sdk open");
    reader.ask("sdk attach team-a/weights");
    reader.ask("sdk keep");
    daemon.settled_state();
    send_by_id(daemon, &allocation_id(id), "host");
    (owner, reader, id)
}

fn allocation_id(id: u64) -> String {
    vramd_types::AllocationId::from_raw(id).to_string()
}

fn two_tenants() -> Daemon {
    Daemon::start(
        &node().limit("revoke_answer_timeout_ms = 1000").tenant(TEAM_A, "team-a").tenant(TEAM_B, "team-b"),
    )
}

#[track_caller]
fn reads(probe: &mut Probe) {
    assert_eq!(probe.ask("sdk pinned-digest 0")["digest"], digest(&content(SIZE, 11)));
}

#[test]
fn readers_read_in_place_and_only_the_owner_advises() {
    if !has_other_users("readers_read_in_place_and_only_the_owner_advises") {
        return;
    }
    let daemon = two_tenants();
    let (mut owner, mut reader, id) = shared(&daemon);
    let text = allocation_id(id);
    for probe in [&mut owner, &mut reader] {
        reads(probe);
    }
    assert_eq!(tiers_of(&daemon, &text), ["host"; 2]);
    until_charged(&daemon, [0, 4, 0]);
    assert_eq!(daemon.state().allocation(id).unwrap().mapper_count, 2);
    reader.refused("sdk advise unset").is(Reason::NotOwner);
    // A session of the owner's tenant may not, while the owner lives.
    let mut colleague = daemon.probe_as(TEAM_A);
    colleague.ask("sdk open");
    colleague.ask("sdk attach weights");
    colleague.ask("sdk keep");
    colleague.refused("sdk advise unset").is(Reason::NotOwner);
    assert_eq!(tiers_of(&daemon, &text), ["host"; 2]);

    // One session pins the part: it stays for both, and is then fetched for both.
    reader.ask("sdk pin 0");
    owner.ask("sdk advise unset");
    reads(&mut owner);
    assert_eq!(tiers_of(&daemon, &text), ["host"; 2]);
    reader.ask("sdk unpin");
    until("no session maps it there", || daemon.state().allocation(id).unwrap().mapper_count == 0);
    for probe in [&mut owner, &mut reader, &mut colleague] {
        reads(probe);
    }
    assert_eq!(tiers_of(&daemon, &text), ["device"; 2]);
    // A session of the tenant may advise once the owner is gone.
    owner.leave();
    until("its session is gone", || daemon.state().sessions.len() == 2);
    colleague.ask("sdk advise set");
    reader.refused("sdk advise unset").is(Reason::NotOwner);
    send_by_id(&daemon, &text, "host");
    for probe in [&mut reader, &mut colleague] {
        reads(probe);
    }
    assert_eq!(tiers_of(&daemon, &text), ["host"; 2]);
    colleague.ask("sdk free");
    reader.leave();
    colleague.leave();
    assert_nothing_left(&daemon);
}

#[test]
fn a_client_killed_while_it_maps_in_place_leaves_nothing() {
    if !has_other_users("a_client_killed_while_it_maps_in_place_leaves_nothing") {
        return;
    }
    let daemon = two_tenants();
    let (mut owner, mut reader, id) = shared(&daemon);
    let uuid = daemon.state().devices[0].device.clone().unwrap_or_default().uuid;
    let maps = |pid: u32| host_memory_of(&uuid).values().any(|who| who.iter().any(|one| *one == pid));
    let mut other = daemon.probe();
    other.ask("sdk open");
    let mine = other.ask(&format!("sdk allocate {SIZE} part={MIB_2}"))["allocation"].as_u64().unwrap();
    other.ask("sdk write 12");
    other.ask("sdk unhold");
    other.ask("sdk advise set");
    daemon.settled_state();
    send_by_id(&daemon, &allocation_id(mine), "host");
    assert_eq!(other.ask("sdk pin-parts 0 2")["digest"], digest(&content(SIZE, 12)));
    reader.ask("sdk pin 0");
    assert!(maps(other.pid()) && maps(reader.pid()));
    until_charged(&daemon, [0, 8, 0]);

    other.kill();
    until_charged(&daemon, [0, 4, 0]);
    reads(&mut owner);
    reads(&mut reader);
    reader.kill();
    until("its session is gone", || daemon.state().sessions.len() == 1);
    reads(&mut owner);
    assert_eq!(tiers_of(&daemon, &allocation_id(id)), ["host"; 2]);
    // The memory is the owner's, and no pin is left.
    owner.ask("sdk advise unset");
    reads(&mut owner);
    assert_eq!(tiers_of(&daemon, &allocation_id(id)), ["device"; 2]);
    owner.ask("sdk free");
    owner.leave();
    assert_nothing_left(&daemon);
}

#[test]
fn an_invalid_advice_is_refused() {
    let daemon = Daemon::start(&node());
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let id = session.allocate(spec(MIB_2)).allocation_id;
    let scratch = session.allocate(AllocationSpec { discardable: true, ..spec(MIB_2) }).allocation_id;
    let set = v1::Advice::SetAccessedBy.into();
    let refused = |request: AdviseRequest| session.memory.advise(request).refused();
    let state = daemon.settled_state();
    refused(advise(&session, 999, set)).is(Reason::AllocationNotFound);
    let kind = refused(advise(&session, scratch, set));
    assert_eq!(kind.is(Reason::KindUnsupported).fact("kind"), "advised discardable");
    for nothing in [0, 17, -1] {
        let none = refused(advise(&session, id, nothing));
        assert_eq!(none.is(Reason::RequestInvalid).fact("field"), "advice");
    }
    let other = RawSession::open_with_pins(&daemon.sockets());
    refused(advise(&other, id, set)).is(Reason::NotOwner);
    refused(AdviseRequest { session_id: 999, ..advise(&session, id, set) }).is(Reason::SessionLost);
    drop(other);
    until("nothing has changed", || daemon.state() == state);
    session.free(id);
    session.free(scratch);
    assert_nothing_left(&daemon);
}

#[test]
fn a_repeated_request_is_done_once() {
    let daemon = Daemon::start(&node());
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let id = session.allocate(spec(MIB_2)).allocation_id;
    let request = |advice: v1::Advice, of: u8| AdviseRequest {
        request_id: vec![of; 16],
        ..advise(&session, id, advice.into())
    };
    let advised = |request: AdviseRequest| {
        session.memory.advise(request).ok().allocation.expect("the advice is reported").accessed_by_device
    };
    assert!(advised(request(v1::Advice::SetAccessedBy, 1)));
    assert!(!advised(request(v1::Advice::UnsetAccessedBy, 2)));
    advised(request(v1::Advice::SetAccessedBy, 1));
    let shown = vramctl_json(&daemon, &["alloc", "show", &allocation_id(id)]);
    assert_eq!(shown["allocation"]["accessed_by_device"], false, "the first was done, and is not done again");
    session.memory.advise(request(v1::Advice::UnsetAccessedBy, 1)).refused().is(Reason::RequestIdReused);
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn access_in_place_is_shown_measured_and_reported() {
    let daemon = Daemon::start(&node());
    let client = connect(&daemon);
    let kinds = vec![EventKind::Allocation.into()];
    let memory = allocate_unpinned(&daemon, &client, 2);
    let id = memory.id().to_string();
    let mut watching = Watching::start(&daemon.admin, WatchRequest { kinds, ..Default::default() }).unwrap();
    for _ in 0..2 {
        memory.advise(Advice::SetAccessedBy).unwrap();
    }
    let info = client.describe(memory.id()).unwrap();
    assert!(info.accessed_by_device && !memory.info().accessed_by_device);
    assert_eq!(vramctl_json(&daemon, &["alloc", "show", &id])["allocation"]["accessed_by_device"], true);
    assert_eq!(measured(&daemon), 0, "it lies on its device");
    send(&daemon, &memory, "host");
    until("it is measured", || measured(&daemon) == 2 * MIB_2);
    is_intact(&memory, 2);
    assert_eq!(measured(&daemon), 2 * MIB_2);
    memory.advise(Advice::UnsetAccessedBy).unwrap();
    until("it is measured no more", || measured(&daemon) == 0);
    for advice in [v1::Advice::SetAccessedBy, v1::Advice::UnsetAccessedBy] {
        let Some(Event::Allocation(told)) = watching.read().event else { panic!("not of an allocation") };
        assert_eq!(
            (told.change(), told.allocation_id, told.advice()),
            (Change::Advised, memory.id().get(), advice)
        );
    }
    drop(memory);
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}

#[test]
fn a_task_advises_too() {
    let daemon = Daemon::start(&node());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let client = aio::Client::from(connect(&daemon));
        let request = AllocationRequest::new(Bytes::new(SIZE)).part_size(Bytes::new(MIB_2)).unpinned();
        let mut memory = client.allocate(request.name("weights")).await.unwrap();
        memory.copy_from_host_async(0, &content(SIZE, 3)).await.unwrap();
        memory.advise_async(Advice::SetAccessedBy).await.unwrap();
        let sealed = memory.seal_async().await.unwrap();
        assert!(sealed.info().accessed_by_device, "it is as it was before it was sealed");
        send_by_id(&daemon, &sealed.id().to_string(), "host");
        let pinned = sealed.pin_async(Access::Read).await.unwrap();
        assert_eq!(digest(pinned.as_slice().unwrap()), digest(&content(SIZE, 3)));
        let id = sealed.id().to_string();
        assert_eq!(tiers_of(&daemon, &id), ["host"; 2]);
        drop(pinned);
        sealed.advise_async(Advice::UnsetAccessedBy).await.unwrap();
        until("it is unmapped there", || !sealed.is_mapped());
        drop(sealed.pin_async(Access::Read).await.unwrap());
        assert_eq!(tiers_of(&daemon, &id), ["device"; 2]);
        sealed.free_async().await.unwrap();
    });
    assert_nothing_left(&daemon);
}
