//! Parts that operators hold leave their device for no waiter, until they are let go.

use std::time::Duration;

use crate::world::{
    Client, World, config, key,
    moving::{charged, evict, mib, moved, tier, tiers, to},
    revoking::{answer, part},
    set_quota, spec,
};
use broker_core::{
    AllocationSpec, ClientFrame, ClientRequest, Kind, Notice, OperatorRequest, PartMove, PartRef, Refusal,
    Reply, StoredQuotas, Target, Tier,
};
use vramd_types::{AllocationId, Bytes, PartIndex, Reason};

fn one(world: &mut World, client: Client, content: u64) -> PartRef {
    let part = part(world.allocate(client, spec(4)).expect("room"), 0);
    world.write(client, part, content);
    part
}

fn hold(id: AllocationId, held: bool) -> OperatorRequest {
    OperatorRequest::HoldParts { target: Target::Id(id), parts: Vec::new(), hold: held }
}

fn set(world: &mut World, part: PartRef, held: bool) {
    let reply = world.operate(hold(part.allocation, held));
    assert!(matches!(reply, Ok(Reply::PartsHeld { parts, .. }) if parts == [part.part]));
    let view = world.broker.show(&Target::Id(part.allocation)).expect("it is there");
    assert_eq!(view.parts[0].operator_hold, held);
}

fn reason(reply: Result<Reply, Refusal>) -> Option<Reason> {
    reply.err().map(|refusal| refusal.reason())
}

#[test]
fn held_part_leaves_for_no_waiter() {
    let mut world = tiers(8, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let parts = [one(&mut world, a, 1), one(&mut world, a, 2)];
    set(&mut world, parts[0], true);
    one(&mut world, b, 3);
    assert_eq!(parts.map(|part| tier(&world, part)), [Tier::Device, Tier::Host], "the older one is held");
    assert!(matches!(evict(&mut world, parts[0]), PartMove::Held));
    world.operate(set_quota("c", 4, 8)).expect("the other can leave for it");
    let refused = world.operate(set_quota("d", 2, 8));
    assert_eq!(reason(refused), Some(Reason::GuaranteeUnbacked), "the held part does not leave for it");
    assert_eq!((tier(&world, parts[0]), world.read(a, parts[0])), (Tier::Device, 1));
    set(&mut world, parts[0], false);
    world.operate(set_quota("d", 2, 8)).expect("now it does");
    assert_eq!((tier(&world, parts[0]), charged(&world)), (Tier::Host, mib(0, 12)));
}

#[test]
fn waiter_gets_the_room_of_a_part_that_is_let_go() {
    let mut world = tiers(4, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let part = one(&mut world, a, 1);
    set(&mut world, part, true);
    let items = vec![spec(4)];
    let at_once = world.call(b, ClientRequest::allocate(items.clone()));
    assert_eq!(reason(at_once), Some(Reason::DeviceFull));
    let waits = ClientRequest::AllocateBatch { items, wait: Duration::from_secs(60) };
    let call = world.start(b, None, waits);
    world.run_until_idle();
    assert!(!world.replies.contains_key(&call));
    set(&mut world, part, false);
    assert!(world.replies[&call].is_ok());
    assert_eq!(tier(&world, part), Tier::Host);
}

/// While parts of its own could leave for it, the waiter is short of room, and so are those behind it. Once
/// these are held it is at its limit, which keeps no other tenant waiting.
#[test]
fn waiter_that_no_eviction_helps_is_passed() {
    let mut world = tiers(16, 64);
    let [a, b, c] = ["a", "b", "c"].map(|tenant| world.open_pinning(tenant));
    let [own, own_used] = [1, 2].map(|content| one(&mut world, a, content));
    let [theirs, theirs_used] = [3, 4].map(|content| one(&mut world, b, content));
    world.pin_call(a, 1, &[own_used]);
    world.pin_call(b, 1, &[theirs_used]);
    let mut waits = |client, mib| {
        let wait = Duration::from_secs(60);
        let request = ClientRequest::AllocateBatch { items: vec![spec(mib)], wait };
        let call = world.start(client, None, request);
        world.run_until_idle();
        assert!(!world.replies.contains_key(&call), "{mib} MiB are not there");
        call
    };
    let (first, second) = (waits(a, 12), waits(c, 4));
    assert_eq!([own, theirs].map(|part| tier(&world, part)), [Tier::Device; 2], "it would not be enough");
    set(&mut world, own, true);
    assert!(world.replies[&second].is_ok());
    assert!(!world.replies.contains_key(&first));
    assert_eq!([own, theirs].map(|part| tier(&world, part)), [Tier::Device, Tier::Host]);
}

#[test]
fn limit_below_held_parts_is_reached_once_they_are_let_go() {
    let mut world = tiers(8, 64);
    let a = world.open_pinning("a");
    let parts = [one(&mut world, a, 1), one(&mut world, a, 2)];
    for part in parts {
        set(&mut world, part, true);
    }
    world.operate(set_quota("a", 0, 4)).expect("stored");
    world.run_until_idle();
    assert_eq!(world.charged_to("a"), Bytes::mib(8));
    set(&mut world, parts[1], false);
    assert_eq!((world.charged_to("a"), tier(&world, parts[1])), (Bytes::mib(4), Tier::Host));
}

#[test]
fn part_about_to_leave_stays_when_it_is_held() {
    // At every step of the way, for an operator and for another's need.
    for (needed, steps) in (0..6).flat_map(|steps| [(false, steps), (true, steps)]) {
        let mut world = tiers(4, 64);
        let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
        let part = one(&mut world, a, 7);
        let call = match needed {
            true => world.start(b, None, ClientRequest::allocate(vec![spec(4)])),
            false => world.start_operator(None, to(part.allocation, Tier::Host)),
        };
        for _ in 0..steps {
            if !world.work_once() {
                world.answer_once(a.channel);
            }
        }
        let left = tier(&world, part) == Tier::Host;
        world.start_operator(None, hold(part.allocation, true));
        world.run_until_idle();
        let reply = world.replies.remove(&call).expect("an answer");
        match needed {
            true => assert_eq!(reason(reply), (!left).then_some(Reason::DeviceFull), "after {steps} steps"),
            false => assert_eq!(matches!(moved(reply), PartMove::Held), !left, "after {steps} steps"),
        }
        assert_eq!(tier(&world, part) == Tier::Host, left, "after {steps} steps");
        if !left {
            world.pin_call(a, 1, &[part]);
            world.run_until_idle();
            assert_eq!((answer(&world, a, 1), world.read(a, part)), (Some(&None), 7), "after {steps} steps");
        }
    }
}

#[test]
fn part_in_the_host_is_held_once_it_is_fetched() {
    let mut world = tiers(4, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let part = one(&mut world, a, 7);
    evict(&mut world, part);
    set(&mut world, part, true);
    assert!(matches!(evict(&mut world, part), PartMove::Moved), "it is there");
    assert_eq!(tier(&world, part), Tier::Host);
    world.pin_call(a, 1, &[part]);
    world.run_until_idle();
    world.frame(a, ClientFrame::PinEnded { call: 1 });
    assert!(matches!(evict(&mut world, part), PartMove::Held));
    assert_eq!(reason(world.call(b, ClientRequest::allocate(vec![spec(4)]))), Some(Reason::DeviceFull));
    world.call(a, ClientRequest::FreeBatch(vec![part.allocation])).expect("freed");
    world.allocate(b, spec(4)).expect("a freed part is not held");
}

#[test]
fn hold_of_several_parts_is_one_notice() {
    let mut world = tiers(16, 64);
    let a = world.open_pinning("a");
    let id = world.allocate(a, spec(12)).expect("room");
    let some = |parts: &[u32], held| OperatorRequest::HoldParts {
        target: Target::Id(id),
        parts: parts.iter().copied().map(PartIndex).collect(),
        hold: held,
    };
    let told = |world: &World| {
        let of = |notice: &Notice| match notice {
            Notice::PartsHeld { parts, hold, .. } => Some((*parts, *hold)),
            _ => None,
        };
        world.notices.iter().filter_map(of).collect::<Vec<_>>()
    };
    world.operate(some(&[2, 0], true)).expect("held");
    world.operate(some(&[0], true)).expect("held already");
    assert_eq!(told(&world), [(2, true)], "a hold that changes nothing is not noticed");
    let view = world.broker.show(&Target::Id(id)).expect("it is there");
    assert_eq!(view.parts.iter().map(|part| part.operator_hold).collect::<Vec<_>>(), [true, false, true]);
    let once = world.start_operator(key(1, 1), some(&[0], false));
    let again = world.start_operator(key(1, 1), some(&[0], false));
    assert!(world.replies[&once].is_ok() && world.replies[&again].is_ok());
    world.operate(hold(id, false)).expect("let go");
    assert_eq!(told(&world), [(2, true), (1, false), (1, false)]);
    for wrong in [&[3][..], &[0, 0]] {
        assert_eq!(reason(world.operate(some(wrong, true))), Some(Reason::RequestInvalid));
    }
}

#[test]
fn fixed_memory_cannot_be_held() {
    let mut config = config(&[Bytes::mib(8)]);
    config.devices[0].makes_fixed = true;
    let mut world = World::with(config, StoredQuotas::default());
    let a = world.open_pinning("a");
    let id = world.allocate(a, AllocationSpec { kind: Kind::Fixed, ..spec(4) }).expect("room");
    assert_eq!(reason(world.operate(hold(id, true))), Some(Reason::KindUnsupported));
}
