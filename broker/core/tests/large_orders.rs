//! Operators' orders for many parts, and long lines.

use crate::world;

use crate::world::{
    Client, World, config,
    moving::{charged, evict, fill, mib, to},
    revoking::{answer, part},
    set_quota, spec,
    writing_back::back,
};
use broker_core::{
    CallId, ClientRequest, Command, OperatorRequest, PartMove, PartRevocation, Reply, StoredQuotas, Target,
    Tier, limits,
};
use vramd_types::{AllocationId, Bytes};

const PARTS: usize = 600;

/// A world with an allocation of this many parts that no session pins.
fn of_many() -> (World, Client, AllocationId) {
    let mut base = config(&[Bytes::mib(4096)]);
    base.devices[0].host = Bytes::mib(4096);
    let mut world = World::with(base, StoredQuotas::default());
    let a = world.open_pinning("a");
    let id = world.allocate(a, spec(2400)).expect("room");
    (world, a, id)
}

fn revoke_all(id: AllocationId) -> OperatorRequest {
    OperatorRequest::RevokeMappings { target: Target::Id(id), parts: Vec::new(), wait: false }
}

/// How many parts were begun with.
fn begun(world: &World) -> usize {
    let begins = |it: &&Command| matches!(it, Command::RevokeWords { .. } | Command::ClearWritten { .. });
    let made = |it: &&Command| matches!(it, Command::CreateExtent { .. });
    world.work.iter().filter(begins).count().max(world.work.iter().filter(made).count())
}

fn ends(world: &World, call: CallId) -> usize {
    match &world.replies[&call] {
        Ok(Reply::PartsMoved { parts, .. }) => {
            parts.iter().filter(|(_, outcome)| matches!(outcome, PartMove::Moved)).count()
        }
        Ok(Reply::MappingsRevoked { parts, .. }) => {
            parts.iter().filter(|(_, outcome)| matches!(outcome, PartRevocation::Revoked)).count()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn order_for_many_parts_starts_a_bounded_number_at_a_time() {
    for request in [|id| to(id, Tier::Host), revoke_all, back] {
        let (mut world, _, id) = of_many();
        let call = world.start_operator(None, request(id));
        assert_eq!(begun(&world), limits::PARTS_STARTED_PER_EVENT);
        assert!(!world.replies.contains_key(&call));
        world.run_until_idle();
        assert_eq!(ends(&world, call), PARTS);
    }
}

#[test]
fn part_freed_before_its_turn_is_reported_as_freed() {
    for request in [|id| to(id, Tier::Host), revoke_all, back] {
        let (mut world, a, id) = of_many();
        let call = world.start_operator(None, request(id));
        world.call(a, ClientRequest::FreeBatch(vec![id])).expect("freed");
        world.run_until_idle();
        let left = PARTS - limits::PARTS_STARTED_PER_EVENT;
        match &world.replies[&call] {
            Ok(Reply::PartsMoved { parts, .. }) => {
                assert!(parts.iter().filter(|(_, it)| matches!(it, PartMove::Freed)).count() >= left);
            }
            Ok(Reply::MappingsRevoked { parts, .. }) => assert_eq!(parts.len(), PARTS),
            other => panic!("{other:?}"),
        }
        assert_eq!(charged(&world), mib(0, 0));
    }
}

#[test]
fn waiter_within_its_guarantee_overtakes_a_long_line() {
    let mut base = config(&[Bytes::mib(16)]);
    base.devices[0].host = Bytes::mib(1024);
    let mut world = World::with(base, StoredQuotas::default());
    world.operate(set_quota("b", 4, 16)).expect("stored");
    let [a, b, c] = ["a", "b", "c"].map(|tenant| world.open_pinning(tenant));
    let mut away = Vec::new();
    for _ in 0..40 {
        let part = part(world.allocate(c, spec(4)).expect("room"), 0);
        evict(&mut world, part);
        away.push(part);
    }
    let of_b = part(world.allocate(b, spec(4)).expect("room"), 0);
    evict(&mut world, of_b);
    let used = fill(&mut world, b, spec(4));
    fill(&mut world, a, spec(12));
    for (call, part) in (1..).zip(&away) {
        world.pin_call(c, call, &[*part]);
    }
    world.pin_call(b, 1, &[of_b]);
    world.run_until_idle();
    assert_eq!(world.broker.waits().len(), 41, "all wait");
    world::moving::empty(&mut world, b, used);
    assert_eq!(answer(&world, b, 1), Some(&None), "its guaranteed room has become free");
    assert_eq!(world.broker.waits().len(), 40);
    // A waiter behind them all finds its guaranteed room at once.
    evict(&mut world, of_b);
    world.pin_call(b, 2, &[of_b]);
    world.run_until_idle();
    assert_eq!(answer(&world, b, 2), Some(&None));
}
