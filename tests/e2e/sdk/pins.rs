//! Pins of the Rust SDK against a real daemon.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use vramd_client::{Access, AllocationId, AllocationRequest, Bytes, Client, Error, Pinnable};
use vramd_proto::v1::{
    AllocationState, EndSessionRequest, FreeAllocationRequest, RevocationOutcome as Outcome,
    RevokeMappingsRequest, free_allocation_request, revoke_mappings_request::Target,
};
use vramd_tests::{Daemon, MIB, content, digest, wait::until};

const SIZE: u64 = 6 * MIB;

fn connect(daemon: &Daemon) -> Client {
    let patience = Duration::from_secs(60);
    Client::builder().socket_dir(daemon.sockets()).name("test").request_timeout(patience).connect().unwrap()
}

fn three_parts() -> AllocationRequest {
    AllocationRequest::new(Bytes::new(SIZE)).part_size(Bytes::mib(2))
}

/// The outcome of each part, once the daemon knows that every part it sent is mapped: a mapping in flight counts as
/// pinned.
fn revoke(daemon: &Daemon, id: AllocationId, wait: bool) -> Vec<Outcome> {
    until("all maps are answered", || daemon.state().node.fds_in_flight == 0);
    revoke_now(daemon, id, wait)
}

fn revoke_now(daemon: &Daemon, id: AllocationId, wait: bool) -> Vec<Outcome> {
    let target = Some(Target::AllocationId(id.get()));
    let request = RevokeMappingsRequest { target, wait, ..Default::default() };
    let answer = daemon.admin.revoke_mappings(request).ok();
    answer.parts.iter().map(|part| part.outcome()).collect()
}

#[test]
fn a_revoked_part_is_mapped_again_by_the_next_pin() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    let mut weights = client.allocate(three_parts()).unwrap();
    weights.as_mut_slice().unwrap().copy_from_slice(&content(SIZE, 3));
    assert_eq!(revoke(&daemon, weights.id(), false), [Outcome::Pinned; 3], "the handle holds it");
    weights.unpin().unwrap();
    let address = weights.as_device_ptr();
    for round in 0..20 {
        assert_eq!(revoke(&daemon, weights.id(), round % 2 == 0), [Outcome::Revoked; 3]);
        assert!(!weights.is_mapped());
        let mut pinned = weights.pin(Access::Write).unwrap();
        assert_eq!(revoke(&daemon, weights.id(), false), [Outcome::Pinned; 3]);
        assert_eq!((pinned.as_device_ptr(), pinned.len_bytes()), (address, SIZE));
        assert_eq!(digest(pinned.as_slice().unwrap()), digest(&content(SIZE, 3)));
        pinned.as_mut_slice().unwrap()[0] = content(SIZE, 3)[0];
    }
    let middle = weights.pin_parts(1..2, Access::Read).unwrap();
    assert_eq!(revoke(&daemon, weights.id(), false), [Outcome::Revoked, Outcome::Pinned, Outcome::Revoked]);
    assert_eq!(middle.as_slice().unwrap(), &content(SIZE, 3)[2 << 20..4 << 20]);
    drop(middle);
    weights.repin().unwrap();
    assert_eq!(digest(weights.as_slice().unwrap()), digest(&content(SIZE, 3)));
    drop(weights);
    client.flush().unwrap();
    daemon.drains();
}

#[test]
fn a_fence_waits_for_pins_and_later_ones_for_it() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    let mut weights = client.allocate(three_parts()).unwrap();
    weights.unpin().unwrap();
    let first = weights.pin(Access::Write).unwrap();
    thread::scope(|scope| {
        let fence = scope.spawn(|| revoke(&daemon, weights.id(), true));
        thread::sleep(Duration::from_millis(100));
        assert!(!fence.is_finished());
        drop(first);
        assert_eq!(fence.join().unwrap(), [Outcome::Revoked; 3]);
    });
    drop(weights.pin(Access::Write).unwrap());
    drop(weights);
    client.flush().unwrap();
    daemon.drains();
}

#[test]
fn an_away_part_can_be_sealed_freed_detached_and_dropped() {
    let daemon = Daemon::new();
    let (writer, reader) = (connect(&daemon), connect(&daemon));
    let mut weights = writer.allocate(three_parts().name("weights").persistent()).unwrap();
    weights.as_mut_slice().unwrap().copy_from_slice(&content(SIZE, 4));
    weights.unpin().unwrap();
    assert_eq!(revoke(&daemon, weights.id(), false), [Outcome::Revoked; 3]);
    let mut sealed = weights.seal().unwrap();
    assert_eq!(sealed.digest(), digest(&content(SIZE, 4)));
    let mut attached = reader.attach("weights").unwrap();
    assert_eq!(revoke(&daemon, sealed.id(), false), [Outcome::Pinned; 3], "the reader holds it");
    attached.unpin().unwrap();
    if sealed.has_handle_pin() {
        sealed.unpin().unwrap();
    }
    assert_eq!(revoke(&daemon, sealed.id(), false), [Outcome::Revoked; 3]);
    assert_eq!(digest(attached.pin(Access::Read).unwrap().as_slice().unwrap()), sealed.digest());
    assert_eq!(revoke(&daemon, sealed.id(), true), [Outcome::Revoked; 3]);
    attached.detach().unwrap();
    sealed.free().unwrap();

    let mut dropped = writer.allocate(three_parts()).unwrap();
    dropped.unpin().unwrap();
    assert_eq!(revoke(&daemon, dropped.id(), false), [Outcome::Revoked; 3]);
    drop(dropped);
    writer.flush().unwrap();
    daemon.drains();
}

#[test]
fn sets_and_single_pins_succeed_while_an_operator_revokes() {
    let daemon = Daemon::new();
    let owner = connect(&daemon);
    let mut sealed: Vec<_> = [5, 6]
        .map(|seed| {
            let mut weights = owner.allocate(three_parts().name(format!("w{seed}")).persistent()).unwrap();
            weights.as_mut_slice().unwrap().copy_from_slice(&content(SIZE, seed));
            weights.seal().unwrap()
        })
        .into();
    sealed.iter_mut().for_each(|sealed| sealed.unpin().unwrap());
    let (over, pins) = (AtomicBool::new(false), AtomicU64::new(0));
    let others: Vec<_> = (0..2).map(|_| connect(&daemon)).collect();
    thread::scope(|scope| {
        for client in &others {
            scope.spawn(|| {
                let mut both = ["w5", "w6"].map(|name| client.attach(name).unwrap());
                both.iter_mut().for_each(|one| one.unpin().unwrap());
                let last = usize::try_from(SIZE - 1).unwrap();
                let expected = [5, 6].map(|seed| content(SIZE, seed)[last]);
                while !over.load(Ordering::Relaxed) {
                    let set: [(&dyn Pinnable, Access); 2] =
                        [(&both[0], Access::Read), (&both[1], Access::Read)];
                    let pinned = client.pin_set(&set).unwrap();
                    for (guard, expected) in pinned.guards().iter().zip(expected) {
                        assert_eq!(guard.as_slice().unwrap()[last], expected);
                    }
                    drop(pinned);
                    let one = both[0].pin_parts(2..3, Access::Read).unwrap();
                    assert_eq!(one.as_slice().unwrap().last(), Some(&expected[0]));
                    pins.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let (mut revoked, deadline) = (0, Instant::now() + Duration::from_secs(60));
        // An operator may be faster than clients that have only just started.
        let early = |round| round < 200 || (pins.load(Ordering::Relaxed) == 0 && Instant::now() < deadline);
        for round in (0..).take_while(|round| early(*round)) {
            for one in &sealed {
                revoked += revoke_now(&daemon, one.id(), round % 4 == 0)
                    .into_iter()
                    .filter(|outcome| *outcome == Outcome::Revoked)
                    .count();
            }
        }
        over.store(true, Ordering::Relaxed);
        assert!(revoked >= 300, "{revoked} parts were revoked");
    });
    assert!(pins.into_inner() > 0);
    drop((sealed, others));
    drop(owner);
    until("no session is left", || daemon.state().sessions.is_empty());
}

#[test]
fn a_reused_word_pins_no_earlier_part() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    let mut gone = client.allocate(three_parts()).unwrap();
    gone.unpin().unwrap();
    client.free(gone.id()).unwrap();
    until("it is gone", || daemon.state().allocations.is_empty());
    let mut other = client.allocate(three_parts()).unwrap();
    other.unpin().unwrap();
    assert!(gone.pin(Access::Read).is_err(), "its words are another's");
    assert!(gone.pin_parts(1..2, Access::Write).is_err());
    assert_eq!(revoke(&daemon, other.id(), false), [Outcome::Revoked; 3], "and no pin of it is left there");
    other.pin(Access::Write).unwrap().as_mut_slice().unwrap().fill(1);
}

#[test]
fn two_processes_pin_at_full_rate_while_an_operator_revokes() {
    let daemon = Daemon::new();
    let mut probes: Vec<_> = (0..2).map(|_| daemon.probe()).collect();
    let mut ids = Vec::new();
    for probe in &mut probes {
        probe.ask("sdk open");
        let id = probe.ask("sdk allocate 6291456 part=2097152")["allocation"].as_u64().unwrap();
        ids.push(vramd_client::AllocationId::from_raw(id));
        probe.ask("sdk unhold");
        probe.tell("sdk pin-for 3000");
    }
    let (begun, mut revoked) = (Instant::now(), 0);
    for round in 0.. {
        if begun.elapsed() > Duration::from_millis(2500) {
            break;
        }
        for id in &ids {
            let outcomes = revoke_now(&daemon, *id, round % 4 == 0);
            revoked += outcomes.into_iter().filter(|outcome| *outcome == Outcome::Revoked).count();
        }
    }
    for mut probe in probes {
        // The process ends with an error or by a signal if a byte differs or is missing.
        let pins = probe.listen("sdk pin-for")["pins"].as_u64().unwrap();
        assert!(pins > 20, "{pins}");
        probe.leave();
    }
    assert!(revoked > 20, "{revoked}");
    daemon.drains();
}

#[test]
fn an_ended_session_waits_for_guards() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    let weights = client.allocate(three_parts()).unwrap();
    let pinned = weights.pin(Access::Read).unwrap();
    daemon
        .admin
        .end_session(EndSessionRequest { session_id: client.session_id().get(), ..Default::default() })
        .ok();
    let begun = Instant::now();
    while client.is_connected() && begun.elapsed() < Duration::from_secs(20) {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(pinned.as_slice().unwrap()[0], 0, "pinned parts are mapped");
    assert!(matches!(
        client.allocate(three_parts()),
        Err(Error::SessionLost { .. } | Error::BrokerGone { .. })
    ));
}

#[test]
fn an_operators_free_waits_for_guards_and_takes_the_memory_back() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    let mut weights = client.allocate(three_parts()).unwrap();
    weights.as_mut_slice().unwrap().copy_from_slice(&content(SIZE, 7));
    let pinned = weights.pin(Access::Read).unwrap();
    let target = Some(free_allocation_request::Target::AllocationId(weights.id().get()));
    let freeing = daemon.admin.free_allocation(FreeAllocationRequest { target, ..Default::default() });
    until("it is being freed", || daemon.state().allocations[0].state() == AllocationState::Freeing);
    assert!(!freeing.is_answered());
    assert_eq!(digest(pinned.as_slice().unwrap()), digest(&content(SIZE, 7)), "pinned parts are mapped");

    drop(pinned);
    let freed = freeing.ok();
    assert_eq!((freed.still_charged_bytes, freed.mapper_session_ids), (0, vec![]));
    assert_eq!(daemon.state().charged(), 0);
    assert!(!weights.is_mapped());
    assert!(matches!(weights.as_slice(), Err(Error::NotMapped { .. })));
    client.allocate(three_parts()).expect("the session goes on");
    drop(weights);
    client.flush().unwrap();
    drop(client);
    daemon.drains();
}
