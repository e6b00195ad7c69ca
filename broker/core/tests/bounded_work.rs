//! Calls that name more parts than one event begins with.

use crate::world::{
    Client, World,
    moving::{tiers, to},
    spec,
};
use broker_core::{AllocationSpec, Command, OperatorRequest, PartMove, Reply, Target, Tier};
use vramd_types::Bytes;

const PARTS: u32 = 600;
/// As `limits.rs` says.
const TOGETHER: usize = 512;

fn many() -> (World, Client, vramd_types::AllocationId) {
    let mut world = tiers(2 * PARTS, 2 * PARTS);
    let client = world.open_pinning("a");
    let large = AllocationSpec { part_size: Some(Bytes::mib(2)), ..spec(2 * PARTS) };
    let id = world.allocate(client, large).expect("room");
    (world, client, id)
}

fn asked(world: &World) -> usize {
    world.work.iter().filter(|work| matches!(work, Command::RevokeWords { .. })).count()
}

#[test]
fn event_starts_a_bounded_number_of_parts_and_the_next_goes_on() {
    let (mut world, _, id) = many();
    let call = world.start_operator(None, to(id, Tier::Host));
    assert_eq!(asked(&world), TOGETHER);
    let next = world.broker.next_deadline().expect("it goes on");
    assert!(next.as_micros() <= world.now.as_micros() + 1, "at once");
    world.advance(1);
    assert_eq!(asked(&world), 600);
    world.run_until_idle();
    let Some(Ok(Reply::PartsMoved { parts, .. })) = world.replies.remove(&call) else { panic!("no answer") };
    assert_eq!(parts.len(), 600);
    assert!(parts.iter().all(|(_, outcome)| matches!(outcome, PartMove::Moved)), "{parts:?}");
    assert_eq!((world.charged(), world.charged_in_host()), (Bytes::ZERO, Bytes::mib(2 * PARTS)));
}

#[test]
fn part_freed_before_its_turn_is_not_started() {
    let (mut world, _, id) = many();
    let call = world.start_operator(None, to(id, Tier::Host));
    let free = world.start_operator(None, OperatorRequest::FreeAllocation(Target::Id(id)));
    world.run_until_idle();
    assert!(world.replies.contains_key(&free), "it is gone");
    let Some(Ok(Reply::PartsMoved { parts, .. })) = world.replies.remove(&call) else { panic!("no answer") };
    let freed = |(_, outcome): &&(_, PartMove)| matches!(outcome, PartMove::Freed);
    assert_eq!(parts.iter().filter(freed).count(), 600, "{parts:?}");
    assert_eq!((world.charged(), world.charged_in_host()), (Bytes::ZERO, Bytes::ZERO));
}
