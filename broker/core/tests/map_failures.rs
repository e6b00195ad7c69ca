//! Parts that a client could not map: its pin calls are told so, and may be repeated.

use crate::world::{
    Client, World, persistent,
    revoking::{answer, one_part, outcome, part, revoke},
    spec,
};
use broker_core::{
    ClientFrame, ClientRequest, DaemonFrame, Notice, PartRef, PartRevocation, Refusal, Slot, Target,
    UnmappedPart,
};
use vramd_types::{AllocationId, Bytes};

const PROBLEM: &str = "no descriptors";

fn failed(part: PartRef) -> UnmappedPart {
    UnmappedPart { part, failure: Some(PROBLEM.to_owned()), written: false }
}

fn could_not_map(allocation: AllocationId) -> Option<Option<Refusal>> {
    Some(Some(Refusal::MapFailed { allocation, problem: PROBLEM.to_owned() }))
}

/// The slots of the parts in the client's inbox, which the client takes and does not map.
fn sent(world: &mut World, client: Client) -> Vec<Option<Slot>> {
    let frames = world.inboxes.remove(&client.channel).unwrap_or_default();
    let parts = frames.into_iter().flat_map(|frame| match frame {
        DaemonFrame::Map(parts) => parts,
        _ => Vec::new(),
    });
    parts.map(|part| part.slot).collect()
}

/// Pins a part that is away, is sent it in that slot, and cannot map it.
fn pin_in_vain(world: &mut World, client: Client, call: u64, part: PartRef) -> Vec<Option<Slot>> {
    world.stopped.insert(client.channel);
    world.pin_call(client, call, &[part]);
    world.run_until_idle();
    let slots = sent(world, client);
    world.stopped.clear();
    world.frame(client, ClientFrame::Unmapped(vec![failed(part)]));
    world.run_until_idle();
    slots
}

#[test]
fn pin_is_told_why_its_part_was_not_mapped_and_the_next_has_it() {
    let (mut world, client, id) = one_part();
    let slots: Vec<_> = world.slots.keys().map(|(_, slot)| Some(*slot)).collect();
    for call in [1, 2] {
        assert_eq!(outcome(&mut world, id, false), PartRevocation::Revoked);
        assert_eq!(pin_in_vain(&mut world, client, 2 * call, part(id, 0)), slots, "it keeps its slot");
        assert_eq!(answer(&world, client, 2 * call).cloned(), could_not_map(id));
        assert_eq!(world.broker.show(&Target::Id(id)).expect("it is there").mapper_count, 0);
        assert_eq!(world.broker.node().fds_in_flight, 0);
        assert_eq!(world.charged(), Bytes::mib(4), "nothing of it is lost");

        world.pin_call(client, 2 * call + 1, &[part(id, 0)]);
        world.run_until_idle();
        assert_eq!(answer(&world, client, 2 * call + 1), Some(&None));
        assert!(world.maps(client, part(id, 0)));
        world.frame(client, ClientFrame::PinEnded { call: 2 * call + 1 });
    }
    let told = world.notices.iter().filter(|notice| matches!(notice, Notice::MapFailed { .. }));
    assert_eq!(told.count(), 2, "operators are told");
    assert!(!world.closed.contains(&client.channel));
}

#[test]
fn all_calls_of_the_session_for_the_part_end_and_no_other() {
    let mut world = World::new(64);
    let (client, reader) = (world.open_pinning("a"), world.open_pinning("a"));
    let shared = world.sealed(client, persistent(4, "shared"));
    world.call(reader, ClientRequest::Attach(Target::Id(shared))).expect("attached");
    let other = world.allocate(client, spec(4)).expect("room");
    for id in [shared, other] {
        assert_eq!(outcome(&mut world, id, false), PartRevocation::Revoked);
    }
    let (shared, other) = (part(shared, 0), part(other, 0));
    world.stopped.extend([client.channel, reader.channel]);
    world.pin_call(client, 1, &[shared]);
    world.pin_call(client, 2, &[shared, other]);
    world.pin_call(client, 3, &[other]);
    world.pin_call(reader, 1, &[shared]);
    world.run_until_idle();
    assert_eq!(sent(&mut world, client).len(), 1, "the rest waits for an answer");
    world.stopped.clear();
    world.frame(client, ClientFrame::Unmapped(vec![failed(shared)]));
    for call in [1, 2] {
        assert_eq!(answer(&world, client, call).cloned(), could_not_map(shared.allocation));
    }
    world.run_until_idle();
    assert_eq!(answer(&world, client, 3), Some(&None), "it names another part");
    assert_eq!(answer(&world, reader, 1), Some(&None), "another process could map it");
    assert!(!world.maps(client, shared), "no session asks for it any longer");
}

#[test]
fn part_that_was_never_mapped_is_sent_by_a_pin() {
    let mut world = World::new(64);
    let client = world.open_pinning("a");
    world.stopped.insert(client.channel);
    let id = world.allocate(client, spec(8)).expect("room");
    assert_eq!(sent(&mut world, client).len(), 2);
    let parts = [part(id, 0), part(id, 1)];
    world.frame(client, ClientFrame::Unmapped(parts.map(failed).to_vec()));
    world.stopped.clear();
    world.pin_call(client, 1, &parts);
    world.run_until_idle();
    assert_eq!(answer(&world, client, 1), Some(&None));
    assert!(parts.iter().all(|part| world.maps(client, *part)));
    // It may be released as well.
    world.call(client, ClientRequest::FreeBatch(vec![id])).expect("freed");
    assert_eq!(world.charged(), Bytes::ZERO);
}

#[test]
fn part_freed_after_a_failed_map_is_gone() {
    for by_operator in [false, true] {
        let mut world = World::new(64);
        let (owner, reader) = (world.open_pinning("a"), world.open_pinning("a"));
        let id = world.sealed(owner, persistent(4, "model"));
        world.call(reader, ClientRequest::Attach(Target::Id(id))).expect("attached");
        assert_eq!(outcome(&mut world, id, false), PartRevocation::Revoked);
        world.stopped.insert(reader.channel);
        world.pin_call(reader, 1, &[part(id, 0)]);
        let freed = match by_operator {
            true => world.operate(broker_core::OperatorRequest::FreeAllocation(Target::Id(id))),
            false => world.call(owner, ClientRequest::FreeBatch(vec![id])),
        };
        freed.expect("freed");
        assert_eq!(world.charged(), Bytes::mib(4), "it was sent to a session");
        world.frame(reader, ClientFrame::Unmapped(vec![failed(part(id, 0))]));
        world.run_until_idle();
        let refused = Refusal::AllocationNotFound { allocation: id.to_string() };
        assert_eq!(answer(&world, reader, 1), Some(&Some(refused)));
        assert_eq!((world.charged(), world.broker.node().allocations), (Bytes::ZERO, 0));
    }
}

#[test]
fn part_detached_after_a_failed_map_is_gone() {
    let mut world = World::new(64);
    let (owner, reader) = (world.open_pinning("a"), world.open_pinning("a"));
    let id = world.sealed(owner, persistent(4, "model"));
    world.stopped.insert(reader.channel);
    world.call(reader, ClientRequest::Attach(Target::Id(id))).expect("attached");
    let detach = world.start(reader, None, ClientRequest::Detach(vec![id]));
    world.frame(reader, ClientFrame::Unmapped(vec![failed(part(id, 0))]));
    assert!(world.replies[&detach].is_ok(), "that was all it waited for");
    world.pin_call(reader, 1, &[part(id, 0)]);
    let refused = Refusal::AllocationNotFound { allocation: id.to_string() };
    assert_eq!(answer(&world, reader, 1), Some(&Some(refused)));
}

#[test]
fn fence_ends_with_a_failed_map_and_calls_behind_it_are_told() {
    let (mut world, client, id) = one_part();
    assert_eq!(outcome(&mut world, id, false), PartRevocation::Revoked);
    world.stopped.insert(client.channel);
    world.pin_call(client, 1, &[part(id, 0)]);
    let fence = world.start_operator(None, revoke(id, true));
    world.pin_call(client, 2, &[part(id, 0)]);
    sent(&mut world, client);
    world.stopped.clear();
    world.frame(client, ClientFrame::Unmapped(vec![failed(part(id, 0))]));
    world.run_until_idle();
    assert!(world.replies[&fence].is_ok(), "no session maps it");
    for call in [1, 2] {
        assert_eq!(answer(&world, client, call).cloned(), could_not_map(id));
    }
    world.pin_call(client, 3, &[part(id, 0)]);
    world.run_until_idle();
    assert_eq!(answer(&world, client, 3), Some(&None));
}

#[test]
fn session_that_maps_a_part_cannot_report_a_failed_map() {
    let (mut world, client, id) = one_part();
    world.frame(client, ClientFrame::Unmapped(vec![failed(part(id, 0))]));
    assert!(world.closed.contains(&client.channel), "it has said that it maps it");
    assert_eq!(world.charged(), Bytes::mib(4), "and may map it still");
}
