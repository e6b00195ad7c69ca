//! Pins of parts that lie elsewhere: they fetch the part, stop it from leaving, and wait for room.

use std::time::{Duration, Instant};

use vramd_client::{Access, AllocationRequest, Bytes, Client, Error};
use vramd_proto::v1::{EndSessionRequest, MoveOutcome as Outcome, SealRequest, SessionState, Tier};
use vramd_tests::{
    Daemon, MIB, MIB_2, RawSession,
    config::Effect,
    content, digest,
    session::persistent,
    wait::{always, until},
};

use crate::moves::{
    assert_nothing_left, end_holds_once_called_off, evict, evict_from, fetch_by_pin, first, held,
    open_and_write, part, pin_words, start_move, tiers, unmap_revoked, unpin_words, until_charged,
    vramctl_json,
};

const SIZE: u64 = 3 * MIB_2;

pub(crate) fn connect(daemon: &Daemon) -> Client {
    let patience = Duration::from_secs(60);
    Client::builder().socket_dir(daemon.sockets()).name("test").request_timeout(patience).connect().unwrap()
}

#[test]
fn a_fetched_part_has_its_address_and_every_byte() {
    let daemon = Daemon::start(&tiers("16MiB", "16MiB"));
    let client = connect(&daemon);
    let request = AllocationRequest::new(Bytes::new(SIZE)).part_size(Bytes::mib(2));
    let mut weights = client.allocate(request).unwrap();
    weights.as_mut_slice().unwrap().copy_from_slice(&content(SIZE, 3));
    let (id, address) = (weights.id().to_string(), weights.as_device_ptr());
    until("all maps are answered", || daemon.state().node.fds_in_flight == 0);
    let told = vramctl_json(&daemon, &["alloc", "evict", &id]);
    assert_eq!(told["parts"][0]["outcome"], "pinned", "the handle holds it");
    weights.unpin().unwrap();
    for round in 0..10_u8 {
        // The end of the pin call arrives on another socket.
        until("it leaves", || {
            let told = vramctl_json(&daemon, &["alloc", "evict", &id]);
            (0..3).all(|at| told["parts"][at]["outcome"] == "moved")
        });
        until_charged(&daemon, 0, 6);
        assert!(!weights.is_mapped());
        // One part alone, and then the others.
        let middle = weights.pin_parts(1..2, Access::Read).unwrap();
        assert_eq!(middle.as_slice().unwrap()[1..], content(SIZE, 3)[(2 << 20) + 1..4 << 20]);
        until_charged(&daemon, 2, 6);
        drop(middle);
        let mut pinned = weights.pin(Access::Write).unwrap();
        assert_eq!((pinned.as_device_ptr(), pinned.len_bytes()), (address, SIZE));
        let mut expected = content(SIZE, 3);
        if round > 0 {
            expected[2 << 20] = round - 1;
        }
        assert_eq!(digest(pinned.as_slice().unwrap()), digest(&expected));
        // Bytes that are written here leave with the part, and come back.
        pinned.as_mut_slice().unwrap()[2 << 20] = round;
        until_charged(&daemon, 6, 6);
    }
    drop(weights);
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}

#[test]
fn a_pin_stops_a_part_from_leaving() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB").fault("copy", 1, Effect::Hold));
    let (mut session, id) = open_and_write(&daemon, 1);
    let evicting = start_move(&daemon, id, Tier::Host);
    unmap_revoked(&mut session, id);
    until("it is being copied", || daemon.state().devices[0].moving_out_bytes == MIB_2);
    let call = session.pin(vec![part(id, 0)]);
    end_holds_once_called_off(&daemon);
    session.pin_answer(call).unwrap();
    session.end_pin_call(call);
    assert_eq!(first(&evicting.ok()), (Outcome::Wanted, &[][..]));
    assert_eq!(session.digest(id, MIB_2), digest(&content(MIB_2, id)));
    until_charged(&daemon, 2, 2);
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_pin_without_room_waits_for_some() {
    let daemon = Daemon::start(&tiers("8MiB", "16MiB"));
    let (mut session, id) = open_and_write(&daemon, 4);
    evict(&daemon, &mut session, id);
    until_charged(&daemon, 0, 8);
    let (mut other, theirs) = open_and_write(&daemon, 3);
    pin_words(&other, theirs, 3);
    let call = session.pin((0..4).map(|index| part(id, index)).collect());
    // One of the two pins finds room at once.
    let awaited = || daemon.state().devices[0].awaited_part_count;
    until("the others wait for room", || awaited() == 3 && held(&daemon) == (8, 14));
    always("they wait", Duration::from_millis(100), || awaited() == 3);
    unpin_words(&other, theirs, 3);
    other.free(theirs);
    session.pin_answer(call).unwrap();
    assert_eq!(session.digest(id, 8 * MIB), digest(&content(8 * MIB, id)));
    until_charged(&daemon, 8, 8);
    assert_eq!(awaited(), 0);
    session.end_pin_call(call);
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_pin_that_stops_waiting_leaves_nothing() {
    let daemon = Daemon::start(&tiers("4MiB", "8MiB"));
    let (mut session, id) = open_and_write(&daemon, 2);
    evict(&daemon, &mut session, id);
    until_charged(&daemon, 0, 4);
    let (mut other, theirs) = open_and_write(&daemon, 2);
    let call = session.pin(vec![part(id, 0)]);
    until("it waits for room", || daemon.state().devices[0].awaited_part_count == 1);
    session.end_pin_call(call);
    // The channel and the calls are two sockets: room might appear before the daemon reads the frame.
    until("nobody waits", || daemon.state().devices[0].awaited_part_count == 0);
    other.free(theirs);
    until_charged(&daemon, 0, 4);
    // The death of the process ends the wait, too.
    let mut probe = daemon.probe();
    probe.ask("sdk open");
    let waiting = probe.ask("sdk allocate 4194304 part=2097152")["allocation"].as_u64().unwrap();
    probe.ask("sdk unhold");
    let answer = start_move(&daemon, waiting, Tier::Host).ok();
    assert_eq!(first(&answer).0, Outcome::Moved);
    until_charged(&daemon, 0, 8);
    let filler = other.allocate(crate::moves::parts(2)).allocation_id;
    probe.tell("sdk pin-for 60000");
    until("it waits for room", || daemon.state().devices[0].awaited_part_count > 0);
    probe.kill();
    until("nobody waits", || daemon.state().devices[0].awaited_part_count == 0);
    // Its bytes in the host are reserved for the other session's part.
    until_charged(&daemon, 4, 8);
    other.free(filler);
    session.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_pin_waits_no_longer_than_its_deadline() {
    let daemon = Daemon::start(&tiers("8MiB", "16MiB"));
    let client = connect(&daemon);
    let mut weights =
        client.allocate(AllocationRequest::new(Bytes::mib(8)).part_size(Bytes::mib(2))).unwrap();
    weights.as_mut_slice().unwrap().copy_from_slice(&content(8 * MIB, 5));
    weights.unpin().unwrap();
    assert_eq!(first(&start_move(&daemon, weights.id().get(), Tier::Host).ok()).0, Outcome::Moved);
    until_charged(&daemon, 0, 8);
    let other = client.allocate(AllocationRequest::new(Bytes::mib(6)).part_size(Bytes::mib(2))).unwrap();

    let wait = Duration::from_millis(200);
    for _ in 0..3 {
        let began = Instant::now();
        let outcome = weights.pin_timeout(0..4, Access::Read, wait);
        assert!(matches!(outcome, Err(Error::Deadline { .. })), "{outcome:?}");
        assert!(began.elapsed() >= wait, "{:?}", began.elapsed());
        let outcome = client.pin_set_timeout(&[(&weights, Access::Read)], wait);
        assert!(matches!(outcome, Err(Error::Deadline { .. })), "{outcome:?}");
    }
    until("nobody waits", || daemon.state().devices[0].awaited_part_count == 0);
    let outcome = weights.pin_timeout(0..4, Access::Read, Duration::ZERO);
    assert!(matches!(outcome, Err(Error::Deadline { .. })), "{outcome:?}");

    let pinned = std::thread::scope(|scope| {
        let pin = scope.spawn(|| weights.pin_timeout(0..4, Access::Read, Duration::MAX));
        until("it waits for room", || daemon.state().devices[0].awaited_part_count > 0);
        drop(other);
        pin.join().unwrap().unwrap()
    });
    assert_eq!(digest(pinned.as_slice().unwrap()), digest(&content(8 * MIB, 5)));
    drop(pinned);
    weights.free().unwrap();
    assert_nothing_left(&daemon);
}

#[test]
fn an_evicted_allocation_is_sealed_in_its_tier_and_attached() {
    let daemon = Daemon::start(&tiers("16MiB", "16MiB"));
    let mut owner = RawSession::open_with_pins(&daemon.sockets());
    let spec =
        vramd_proto::v1::AllocationSpec { part_size_bytes: Some(MIB_2), ..persistent("weights", SIZE - 5) };
    let id = owner.allocate(spec).allocation_id;
    let bytes = content(SIZE - 5, 4);
    owner.write(id, &bytes);
    evict(&daemon, &mut owner, id);
    let seal = SealRequest { session_id: owner.id(), allocation_id: id, ..Default::default() };
    let sealed = owner.memory.seal(seal).ok().allocation.unwrap();
    assert_eq!(sealed.digest, digest(&bytes));
    until_charged(&daemon, 0, 6);
    fetch_by_pin(&mut owner, id, 3);
    assert_eq!(owner.digest(id, SIZE - 5), digest(&bytes));
    until_charged(&daemon, 6, 6);

    evict(&daemon, &mut owner, id);
    let mut reader = RawSession::open_with_pins(&daemon.sockets());
    assert_eq!(reader.attach("weights").digest, digest(&bytes));
    assert_eq!(reader.digest(id, SIZE - 5), digest(&bytes));
    assert!(reader.parts(id).all(|part| !part.writable));
    // Both sessions map the part, and both unmap it for the next move.
    fetch_by_pin(&mut owner, id, 3);
    evict_from(&daemon, &mut [&mut reader, &mut owner], id);
    fetch_by_pin(&mut reader, id, 3);
    assert_eq!(reader.digest(id, SIZE - 5), digest(&bytes));
    reader.detach(id);
    owner.free(id);
    assert_nothing_left(&daemon);
}

#[test]
fn a_session_that_ends_releases_its_parts_in_the_host() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB"));
    let (mut session, id) = open_and_write(&daemon, 2);
    evict(&daemon, &mut session, id);
    assert_eq!(held(&daemon).1, 4);
    let request = EndSessionRequest { session_id: session.id(), ..Default::default() };
    assert_eq!(daemon.admin.end_session(request).ok().state(), SessionState::Gone);
    assert_nothing_left(&daemon);
}
