//! Mappings that the daemon revokes at a configured step, in the middle of another operation.

use vramd_proto::v1::{AllocationSpec, PartRef, RevokeReason};
use vramd_tests::{
    Config, Daemon, MIB_2, RawSession,
    config::Revocation,
    content, digest,
    session::{persistent, spec},
    wait::until,
};
use vramd_words::Unpinned;

/// More steps than a test has.
const NEVER: u64 = 1 << 40;

fn start(at: &'static str, nth: u64, every: u64, wait: bool) -> Daemon {
    Daemon::start(&Config::default().revocation(Revocation { at, nth, every, wait }))
}

fn two_parts() -> AllocationSpec {
    AllocationSpec { part_size_bytes: Some(MIB_2), ..spec(2 * MIB_2) }
}

fn part(allocation_id: u64, part_index: u32) -> PartRef {
    PartRef { allocation_id, part_index }
}

/// Answers the revoke, and maps everything again by the next pin.
#[track_caller]
fn loses_and_gets_back(session: &mut RawSession, id: u64, reason: RevokeReason) {
    while session.parts(id).next().is_some() {
        let revoke = session.receive_revoke();
        assert_eq!(revoke.reason(), reason);
        session.unmap_parts(revoke.parts);
    }
    let call = session.pin(vec![part(id, 0), part(id, 1)]);
    session.pin_answer(call).unwrap();
    assert!(session.is_mapped(id));
}

#[test]
fn an_unanswered_map_is_revoked() {
    let daemon = start("map_sent", 1, NEVER, true);
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let id = session.reserve(two_parts()).allocation_id;
    let parcel = session.receive_map();
    // The fence is there before the answer, and waits for it.
    until("the part is revoked", || daemon.log().contains("scheduled revocation begins"));
    session.accept(parcel);
    loses_and_gets_back(&mut session, id, RevokeReason::Evicted);
    session.free(id);
    daemon.drains();
}

#[test]
fn a_new_mapping_is_revoked() {
    for wait in [true, false] {
        let daemon = start("mapped", 1, NEVER, wait);
        let mut session = RawSession::open_with_pins(&daemon.sockets());
        let id = session.allocate(two_parts()).allocation_id;
        loses_and_gets_back(&mut session, id, RevokeReason::Evicted);
    }
}

#[test]
fn a_part_that_a_pin_call_waits_for_is_revoked() {
    let daemon = start("pin", 1, NEVER, true);
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    session.pins_on_map = 0;
    let id = session.allocate(two_parts()).allocation_id;
    // A call from before the fence succeeds first. Its session unmaps the part once the call and its pins have ended.
    let call = session.pin(vec![part(id, 0), part(id, 1)]);
    session.pin_answer(call).unwrap();
    let slots = [0, 1].map(|index| session.slot(id, index));
    for slot in slots {
        session.word_table().client(slot).pin(vramd_words::Access::Write).unwrap();
    }
    session.end_pin_call(call);
    let mut revoke = session.receive_revoke();
    while revoke.parts.len() < 2 {
        revoke.parts.extend(session.receive_revoke().parts);
    }
    for slot in slots {
        assert_eq!(session.word_table().client(slot).unpin(), Ok(Unpinned::WakeWorker));
    }
    session.unmap_parts(revoke.parts);
    loses_and_gets_back(&mut session, id, RevokeReason::Evicted);
}

#[test]
fn parts_are_revoked_during_seal_detach_and_free() {
    for at in ["revoke_sent", "unmapped", "digest"] {
        for wait in [true, false] {
            let daemon = start(at, 1, 1, wait);
            let mut session = RawSession::open_with_pins(&daemon.sockets());
            let name = format!("model-{at}-{wait}");
            let spec = AllocationSpec { part_size_bytes: Some(MIB_2), ..persistent(&name, 2 * MIB_2) };
            let id = session.allocate(spec).allocation_id;
            session.write(id, &content(2 * MIB_2, 9));
            assert_eq!(session.seal(id).digest, digest(&content(2 * MIB_2, 9)), "{at}");
            assert_eq!(session.digest(id, 2 * MIB_2), digest(&content(2 * MIB_2, 9)));
            let mut reader = RawSession::open_with_pins(&daemon.sockets());
            reader.attach(&name);
            reader.detach(id);
            session.free(id);
            until("it is gone", || daemon.state().allocations.is_empty());
            daemon.drains();
            assert_eq!(daemon.state().node.invariant_violations, 0);
        }
    }
}
