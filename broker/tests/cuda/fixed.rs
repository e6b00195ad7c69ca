//! Fixed memory never moves, whatever an operator orders and a client needs.

use std::{fs::File, os::unix::fs::FileExt as _, time::Duration};

use fake_cuda::Fake;
use vramd_proto::v1::{
    Advice, AdviseRequest, AllocationKind, AllocationSpec, HoldPartsRequest, MovePartsRequest, PartRef,
    RevokeMappingsRequest, Tier, WriteBackPartsRequest, daemon_frame::Frame, hold_parts_request,
    move_parts_request, revoke_mappings_request, write_back_parts_request,
};
use vramd_tests::{
    RawSession, channel::Packet, content, digest, refusal::Refused, rpc::Admin, spec, wait::PATIENCE,
};
use vramd_types::Reason;
use vramd_words::{Access, Unpinned};

use crate::Daemon;

const SIZE: u64 = 4 << 20;

/// One part, mapped by its session, and the memory behind it.
fn fixed(session: &RawSession) -> (u64, File) {
    let fixed = AllocationSpec { kind: AllocationKind::Fixed.into(), ..spec(SIZE) };
    let id = session.reserve(fixed).allocation_id;
    let Packet::Frame(Frame::Map(mut map), fds) = session.channel.receive(PATIENCE) else { panic!("no map") };
    let part = map.parts.pop().unwrap();
    assert!(fds.is_empty() && map.parts.is_empty(), "one part, and no descriptor");
    let memory = Fake::open_export(&part.cuda_ipc_handle);
    session.acknowledge(vec![part.part.unwrap()]);
    (id, memory)
}

fn found(memory: &File) -> String {
    let mut found = vec![0; SIZE.try_into().unwrap()];
    memory.read_exact_at(&mut found, 0).unwrap();
    digest(&found)
}

/// All orders on its parts, with a name for each that is impossible.
fn orders(admin: &Admin, id: u64, part_indexes: &[u32]) -> Vec<(Refused, &'static str)> {
    let part_indexes = || part_indexes.to_vec();
    let mut refused = Vec::new();
    for tier in [Tier::Host, Tier::Device] {
        let target = Some(move_parts_request::Target::AllocationId(id));
        let request = MovePartsRequest {
            target,
            part_indexes: part_indexes(),
            tier: tier.into(),
            ..Default::default()
        };
        refused.push((admin.move_parts(request).refused(), "movable fixed"));
    }
    let target = Some(write_back_parts_request::Target::AllocationId(id));
    let request = WriteBackPartsRequest { target, part_indexes: part_indexes(), ..Default::default() };
    refused.push((admin.write_back_parts(request).refused(), "movable fixed"));
    for let_go in [false, true] {
        let target = Some(hold_parts_request::Target::AllocationId(id));
        let request = HoldPartsRequest { target, part_indexes: part_indexes(), let_go, ..Default::default() };
        refused.push((admin.hold_parts(request).refused(), "movable fixed"));
    }
    for wait in [false, true] {
        let target = Some(revoke_mappings_request::Target::AllocationId(id));
        let request =
            RevokeMappingsRequest { target, part_indexes: part_indexes(), wait, ..Default::default() };
        refused.push((admin.revoke_mappings(request).refused(), "revocable fixed"));
    }
    refused
}

#[test]
fn operator_orders_on_a_fixed_part_are_refused() {
    let daemon = Daemon::start_with_host(&Fake::new(), "16MiB");
    let session = RawSession::open_with_pins(&daemon.sockets());
    let (id, memory) = fixed(&session);
    let bytes = content(SIZE, 5);
    memory.write_all_at(&bytes, 0).unwrap();
    let state = daemon.settled_state();
    assert_eq!((state.allocations[0].resident_bytes, state.allocations[0].host_bytes), (SIZE, 0));
    // Another mistake in the request, as in the last, does not change the answer.
    for parts in [&[][..], &[0], &[1]] {
        for (refused, kind) in orders(&daemon.admin(), id, parts) {
            assert_eq!(refused.is(Reason::KindUnsupported).fact("kind"), kind, "{parts:?}");
        }
    }
    assert!(!session.channel.waits(Duration::from_millis(50)), "no session is told to unmap anything");
    let now = daemon.settled_state();
    assert_eq!(
        (now.allocations, now.sessions, now.quotas),
        (state.allocations, state.sessions, state.quotas)
    );
    assert_eq!(found(&memory), digest(&bytes));
}

/// Its device accesses it in place, and that is the device.
#[test]
fn the_owner_of_a_fixed_part_cannot_advise() {
    let daemon = Daemon::start_with_host(&Fake::new(), "16MiB");
    let session = RawSession::open_with_pins(&daemon.sockets());
    let (allocation_id, _) = fixed(&session);
    for advice in [Advice::SetAccessedBy, Advice::UnsetAccessedBy] {
        let request = AdviseRequest {
            session_id: session.id(),
            allocation_id,
            advice: advice.into(),
            ..Default::default()
        };
        let refused = session.memory.advise(request).refused();
        assert_eq!(refused.is(Reason::KindUnsupported).fact("kind"), "advised fixed");
        assert_eq!(refused.message, "fixed allocations cannot be advised");
    }
}

/// A client that needs the room has other memory evicted.
#[test]
fn a_fixed_part_is_never_evicted() {
    // Beside the daemon's own, room for four parts and a little.
    let daemon = Daemon::start_with_host(&Fake::new().with("memory_mib = 27"), "64MiB");
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let (_, memory) = fixed(&session);
    let bytes = content(SIZE, 6);
    memory.write_all_at(&bytes, 0).unwrap();
    let movable = session.allocate(spec(2 * SIZE)).allocation_id;
    session.write(movable, &content(2 * SIZE, 7));
    daemon.settled_state();

    let mut other = RawSession::open_with_pins(&daemon.sockets());
    let allocating = other.memory.allocate_batch(other.request(vec![spec(3 * SIZE)]));
    while !allocating.is_answered() {
        if session.channel.waits(Duration::from_millis(5)) {
            let revoke = session.receive_revoke();
            assert!(revoke.parts.iter().all(|part| part.allocation_id == movable), "{revoke:?}");
            session.unmap_parts(revoke.parts);
        }
    }
    let theirs = allocating.ok().allocations[0].allocation_id;
    other.map_all(theirs);
    for index in 0..3 {
        other.word_table().client(other.slot(theirs, index)).pin(Access::Write).unwrap();
    }
    let refused = other.refused(spec(SIZE));
    let refused = refused.is(Reason::DeviceFull);
    assert_eq!((refused.fact("asked"), refused.fact("free")), ("4194304", "3145728"));
    assert!(!session.channel.waits(Duration::from_millis(50)), "no session is told to unmap it");
    assert_eq!(found(&memory), digest(&bytes));

    for index in 0..3 {
        assert_eq!(other.word_table().client(other.slot(theirs, index)).unpin(), Ok(Unpinned::Done));
    }
    other.free(theirs);
    let call = session.pin((0..2).map(|part_index| PartRef { allocation_id: movable, part_index }).collect());
    session.pin_answer(call).expect("there is room for it");
    session.end_pin_call(call);
    assert_eq!(session.digest(movable, 2 * SIZE), digest(&content(2 * SIZE, 7)));
}
