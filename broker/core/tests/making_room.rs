//! Room for waiters: unused parts leave in the order of the policy, and come back when they are wanted.

use crate::world;

use std::time::Duration;

use crate::world::{
    Client, World, config,
    moving::{charged, empty, evict, fill, mib, tier, tiers, to},
    persistent,
    revoking::{STALL, answer, part},
    set_quota, spec,
};
use broker_core::{
    AllocationSpec, ClientFrame, ClientRequest, Command, Notice, OperatorRequest, PartMove, PartRef, Refusal,
    Reply, RequestKey, StoredQuotas, Tier, WaiterView,
};
use vramd_types::{Bytes, Reason, WaitId};

fn one(world: &mut World, client: Client, mib: u32, content: u64) -> PartRef {
    let part = part(world.allocate(client, spec(mib)).expect("room"), 0);
    world.write(client, part, content);
    part
}

fn waiting(world: &mut World, client: Client, mib: u32, wait: Duration) -> broker_core::CallId {
    let request = ClientRequest::AllocateBatch { items: vec![spec(mib)], wait };
    let call = world.start(client, None, request);
    world.run_until_idle();
    call
}

#[test]
fn least_recently_used_part_leaves_first() {
    let mut world = tiers(8, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let old = one(&mut world, a, 4, 1);
    let new = one(&mut world, a, 4, 2);
    world.harvest(a, old);
    one(&mut world, b, 4, 3);
    assert_eq!((tier(&world, old), tier(&world, new)), (Tier::Device, Tier::Host), "the other was touched");
    world.pin_call(a, 1, &[new]);
    world.run_until_idle();
    assert_eq!((answer(&world, a, 1), world.read(a, new)), (Some(&None), 2));
    assert_eq!(charged(&world), mib(8, 12));
}

#[test]
fn scripted_policy_is_followed() {
    let mut world = tiers(8, 64);
    let a = world.open_pinning("a");
    let parts = [one(&mut world, a, 4, 1), one(&mut world, a, 4, 2)];
    let mut base = config(&[Bytes::mib(8)]);
    base.devices[0].host = Bytes::mib(64);
    base.victim_script = vec![parts[1], parts[0]];
    let mut world = World::with(base, StoredQuotas::default());
    let a = world.open_pinning("a");
    assert_eq!([one(&mut world, a, 4, 1), one(&mut world, a, 4, 2)], parts, "ids are counted");
    one(&mut world, a, 4, 3);
    assert_eq!(parts.map(|part| tier(&world, part)), [Tier::Device, Tier::Host]);
}

#[test]
fn fetched_part_that_was_not_written_leaves_without_a_copy() {
    for (writes, copies) in [(false, 0), (true, 1)] {
        let mut world = tiers(8, 64);
        let a = world.open_pinning("a");
        let part = one(&mut world, a, 4, 7);
        evict(&mut world, part);
        world.pin_call(a, 1, &[part]);
        world.run_until_idle();
        world.frame(a, ClientFrame::PinEnded { call: 1 });
        if writes {
            world.write(a, part, 8);
        }
        // One that fails shows that one was made.
        world.fail_copies.push_back(Some("a cable was pulled".to_owned()));
        let failed = matches!(evict(&mut world, part), PartMove::Failed { .. });
        assert_eq!(usize::from(failed), copies);
        world.fail_copies.clear();
        evict(&mut world, part);
        world.pin_call(a, 2, &[part]);
        world.run_until_idle();
        assert_eq!(world.read(a, part), if writes { 8 } else { 7 });
    }
}

#[test]
fn clean_part_without_mappers_leaves_at_once() {
    let mut world = tiers(8, 64);
    let a = world.open_pinning("a");
    let part = one(&mut world, a, 4, 7);
    evict(&mut world, part);
    for _ in 0..2 {
        for towards in [Tier::Device, Tier::Host] {
            let answer = world.operate(to(part.allocation, towards));
            assert!(matches!(world::moving::moved(answer), PartMove::Moved));
        }
    }
    world.pin_call(a, 1, &[part]);
    world.run_until_idle();
    assert_eq!(world.read(a, part), 7);
}

#[test]
fn pinned_guaranteed_or_unbacked_part_stays() {
    let mut world = tiers(8, 4);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let backed = one(&mut world, a, 4, 1);
    let unbacked = one(&mut world, a, 4, 2);
    world.pin(a, backed);
    let refused = world.allocate(b, spec(4)).expect_err("it is pinned, and the other has nothing below");
    assert_eq!(refused.reason(), Reason::DeviceFull);
    world.unpin(a, backed);
    world.harvest(a, backed);
    world.operate(set_quota("a", 8, 8)).expect("it is held");
    assert_eq!(world.allocate(b, spec(4)).expect_err("it is guaranteed").reason(), Reason::DeviceFull);
    world.operate(set_quota("a", 4, 8)).expect("less");
    world.allocate(b, spec(4)).expect("the part above the guarantee leaves");
    assert_eq!((tier(&world, backed), tier(&world, unbacked)), (Tier::Host, Tier::Device));
}

#[test]
fn tenant_at_its_limit_evicts_its_own_parts() {
    let mut world = tiers(16, 64);
    world.operate(set_quota("a", 0, 8)).expect("stored");
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let others = one(&mut world, b, 4, 9);
    let first = one(&mut world, a, 4, 1);
    let second = one(&mut world, a, 4, 2);
    one(&mut world, a, 4, 3);
    assert_eq!(
        [others, first, second].map(|part| tier(&world, part)),
        [Tier::Device, Tier::Host, Tier::Device]
    );
    assert_eq!(world.charged_to("a"), Bytes::mib(8));
}

#[test]
fn lowered_limit_is_reached_by_evictions() {
    let mut world = tiers(16, 64);
    let a = world.open_pinning("a");
    let parts: Vec<_> = (0..3).map(|at| one(&mut world, a, 4, at)).collect();
    world.pin(a, parts[0]);
    world.pin(a, parts[1]);
    world.operate(set_quota("a", 0, 4)).expect("stored");
    world.run_until_idle();
    assert_eq!(world.charged_to("a"), Bytes::mib(8), "two are pinned");
    world.unpin(a, parts[1]);
    world.harvest(a, parts[1]);
    world.run_until_idle();
    assert_eq!(world.charged_to("a"), Bytes::mib(4), "and then one");
}

#[test]
fn waiting_batch_is_served_in_its_turn_or_refused_in_time() {
    let mut world = tiers(8, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let filler = fill(&mut world, a, spec(8));
    let wait = Duration::from_secs(1);
    let first = waiting(&mut world, b, 8, wait);
    let second = waiting(&mut world, b, 2, wait);
    let at_once = waiting(&mut world, b, 2, Duration::ZERO);
    let reason =
        |world: &World, call| world.replies.get(&call).map(|it| it.as_ref().err().map(Refusal::reason));
    assert_eq!(reason(&world, first), None);
    assert_eq!(reason(&world, at_once), Some(Some(Reason::DeviceFull)));
    let waits = world.broker.waits();
    let shown: Vec<_> =
        waits.iter().map(|wait| (wait.waiter.clone(), wait.bytes, wait.deadline.is_some())).collect();
    let batch = |bytes| (WaiterView::Batch { session: b.session, items: 1 }, Bytes::mib(bytes), true);
    assert_eq!(shown, [batch(8), batch(2)]);
    world.advance(500_000);
    empty(&mut world, a, filler);
    assert_eq!((reason(&world, first), reason(&world, second)), (Some(None), Some(None)));
    // The first tenant had it first; no session uses it, so some of it has left for the second.
    assert_eq!((charged(&world), world.broker.waits().len()), (mib(6, 10), 0));
    let never = waiting(&mut world, b, 16, wait);
    assert_eq!(reason(&world, never), Some(Some(Reason::DeviceFull)), "the device is smaller");
}

#[test]
fn deadline_or_operator_ends_a_wait() {
    let mut world = tiers(8, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let away = one(&mut world, b, 4, 1);
    evict(&mut world, away);
    fill(&mut world, a, spec(8));
    let late = waiting(&mut world, b, 4, Duration::from_secs(1));
    let cancelled = waiting(&mut world, b, 4, Duration::from_secs(60));
    world.pin_call(b, 1, &[away]);
    world.run_until_idle();
    let waits = world.broker.waits();
    assert_eq!(waits.len(), 3);
    let unknown =
        world.operate(OperatorRequest::CancelWait { wait: WaitId::from_raw(99_999) }).expect_err("unknown");
    assert_eq!(unknown.reason(), Reason::WaitNotFound);
    for wait in &waits[1..] {
        let reply = world.operate(OperatorRequest::CancelWait { wait: wait.id });
        assert!(matches!(reply, Ok(Reply::WaitCancelled)));
    }
    let reason =
        |world: &World, call| world.replies.get(&call).map(|it| it.as_ref().err().map(Refusal::reason));
    assert_eq!(reason(&world, cancelled), Some(Some(Reason::WaitCancelled)));
    assert!(matches!(answer(&world, b, 1), Some(Some(Refusal::WaitCancelled { .. }))));
    assert_eq!(reason(&world, late), None);
    world.advance(1_000_000);
    assert_eq!(reason(&world, late), Some(Some(Reason::DeviceFull)));
    assert_eq!(world.broker.waits(), []);
}

#[test]
fn client_cancels_its_own_waiting_batch_alone() {
    let mut world = tiers(8, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let filler = fill(&mut world, a, spec(8));
    let batch = ClientRequest::AllocateBatch { items: vec![spec(4)], wait: Duration::from_secs(60) };
    let key = RequestKey { id: [7; 16], fingerprint: [1; 16] };
    let waiting = world.start(b, Some(key), batch.clone());
    world.run_until_idle();
    let cancel = ClientRequest::CancelBatch(key.id);
    let no_wait = |outcome: Result<Reply, Refusal>| outcome.expect_err("it does not wait").reason();
    assert_eq!(no_wait(world.call(a, cancel.clone())), Reason::WaitNotFound, "it is another session's");
    assert_eq!(world.broker.waits().len(), 1);
    assert!(matches!(world.call(b, cancel.clone()), Ok(Reply::WaitCancelled)));
    let refused = world.replies.get(&waiting).map(|it| it.as_ref().err().map(Refusal::reason));
    assert_eq!(refused, Some(Some(Reason::WaitCancelled)));
    assert_eq!(world.broker.waits(), []);
    assert_eq!(no_wait(world.call(b, cancel.clone())), Reason::WaitNotFound);
    // Room that comes later is taken for no one, and the id can be used again.
    empty(&mut world, a, filler);
    assert_eq!(charged(&world), mib(0, 0));
    assert!(world.call(b, batch).is_ok());
    assert_eq!(no_wait(world.call(b, cancel)), Reason::WaitNotFound, "it is served");
}

#[test]
fn ended_session_leaves_the_line() {
    let mut world = tiers(8, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let filler = fill(&mut world, a, spec(8));
    let call = waiting(&mut world, b, 4, Duration::from_secs(60));
    world.end_process(b);
    assert_eq!(world.broker.waits(), []);
    assert!(matches!(world.replies[&call], Err(Refusal::SessionLost { .. })));
    empty(&mut world, a, filler);
    assert_eq!(charged(&world), mib(0, 0));
}

#[test]
fn two_sets_that_fill_the_device_take_turns() {
    let mut world = tiers(16, 64);
    let clients = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let mut sets = Vec::new();
    for (at, client) in (0..).zip(clients) {
        let set: Vec<_> = (0..4).map(|part| one(&mut world, client, 4, at * 4 + part + 1)).collect();
        sets.push(set);
    }
    for round in 1..=3 {
        for (at, client) in clients.iter().enumerate() {
            world.pin_call(*client, round, &sets[at]);
        }
        for (at, client) in clients.iter().enumerate() {
            world.run_until_idle();
            assert_eq!(answer(&world, *client, round), Some(&None), "{at} in round {round}");
            for (content, part) in (1..).zip(&sets[at]) {
                assert_eq!(world.read(*client, *part), at as u64 * 4 + content);
            }
            assert_eq!(charged(&world), mib(16, 32));
            world.frame(*client, ClientFrame::PinEnded { call: round });
        }
    }
    let handed_over = world.notices.iter().filter(|notice| matches!(notice, Notice::Reused { .. })).count();
    assert_eq!(handed_over, 0, "between tenants nothing is");
}

#[test]
fn extent_is_handed_over_inside_its_tenant() {
    let mut world = tiers(8, 64);
    let clients = [(); 2].map(|()| world.open_pinning("a"));
    let sets = clients.map(|client| [one(&mut world, client, 4, 1), one(&mut world, client, 4, 2)]);
    for (client, set) in clients.iter().zip(&sets) {
        world.pin_call(*client, 1, set);
        world.run_until_idle();
        world.frame(*client, ClientFrame::PinEnded { call: 1 });
    }
    for (client, set) in clients.iter().zip(&sets) {
        world.pin_call(*client, 2, set);
        world.run_until_idle();
        assert_eq!(set.map(|part| world.read(*client, part)), [1, 2]);
        world.frame(*client, ClientFrame::PinEnded { call: 2 });
    }
    assert!(world.notices.iter().any(|notice| matches!(notice, Notice::Reused { .. })));
    assert_eq!(charged(&world), mib(8, 16));
}

#[test]
fn earlier_pin_set_takes_parts_of_a_later_one_that_waits() {
    let mut world = tiers(12, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let wanted = [one(&mut world, a, 4, 1), one(&mut world, a, 4, 2)];
    for part in wanted {
        evict(&mut world, part);
    }
    let filler = fill(&mut world, a, spec(8));
    let own = one(&mut world, b, 4, 3);
    let away = one(&mut world, b, 2, 4);
    assert_eq!(tier(&world, own), Tier::Host, "there was no room for both");
    world.pin_call(a, 1, &wanted);
    world.pin_call(b, 1, &[own, away]);
    world.run_until_idle();
    assert_eq!((answer(&world, a, 1), answer(&world, b, 1)), (None, None));
    empty(&mut world, a, filler);
    assert_eq!(answer(&world, a, 1), Some(&None));
    world.frame(a, ClientFrame::PinEnded { call: 1 });
    world.run_until_idle();
    for part in wanted {
        world.harvest(a, part);
    }
    world.run_until_idle();
    assert_eq!(answer(&world, b, 1), Some(&None));
    assert_eq!((world.read(b, own), world.read(b, away)), (3, 4));
}

#[test]
fn pin_past_its_deadline_is_refused_and_keeps_no_other_waiting() {
    let mut world = tiers(8, 64);
    let [a, b, c] = ["a", "b", "c"].map(|tenant| world.open_pinning(tenant));
    let [large, small] = [(a, 8), (b, 4)].map(|(client, mib)| {
        let parts = world.allocate(client, spec(mib));
        let parts = world::moving::parts(&world, parts.expect("room"));
        world.operate(to(parts[0].allocation, Tier::Host)).expect("they leave");
        parts
    });
    fill(&mut world, c, spec(4));
    let within = Duration::from_millis(50);
    world.pin_within(a, 1, &large, within);
    world.pin_call(b, 1, &small);
    world.run_until_idle();
    let until = |world: &World| world.broker.waits().iter().map(|wait| wait.deadline).collect::<Vec<_>>();
    let ends = world.now.as_micros() + 50_000;
    assert!(
        matches!(until(&world)[..], [Some(first), None] if first.as_micros() <= ends),
        "{:?}",
        until(&world)
    );
    world.advance(49_000);
    world.run_until_idle();
    assert_eq!([answer(&world, a, 1), answer(&world, b, 1)], [None, None]);
    world.advance(1_000);
    world.run_until_idle();
    let Some(Some(Refusal::WaitOver { within: allowed, waited })) = answer(&world, a, 1) else {
        panic!("{:?}", answer(&world, a, 1));
    };
    assert_eq!(*allowed, within);
    assert!(waited.starts_with("it waits for"), "{waited}");
    assert_eq!(answer(&world, b, 1), Some(&None), "the waiter behind it is served");
    assert_eq!(world.broker.waits().len(), 0);
    // A call that is answered in time is not refused later.
    world.pin_within(b, 2, &small, within);
    world.run_until_idle();
    world.advance(60_000);
    assert_eq!(answer(&world, b, 2), Some(&None));
}

#[test]
fn pin_without_time_gets_only_what_is_mapped() {
    let mut world = tiers(8, 64);
    let a = world.open_pinning("a");
    let [mapped, away] = [3, 4].map(|stamp| one(&mut world, a, 4, stamp));
    evict(&mut world, away);
    world.run_until_idle();
    world.pin_within(a, 1, &[mapped], Duration::ZERO);
    assert_eq!(answer(&world, a, 1), Some(&None));
    world.pin_within(a, 2, &[mapped, away], Duration::ZERO);
    world.run_until_idle();
    assert!(
        matches!(answer(&world, a, 2), Some(Some(Refusal::WaitOver { .. }))),
        "{:?}",
        answer(&world, a, 2)
    );
    assert_eq!(world.broker.waits().len(), 0);
}

/// As of a set so large that copying it takes longer than calls may stall.
#[test]
fn waiters_behind_a_served_call_have_not_stalled() {
    let mut world = tiers(16, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let away = [a, b].map(|client| {
        let part = one(&mut world, client, 4, 7);
        evict(&mut world, part);
        part
    });
    let holds = fill(&mut world, a, spec(4));
    fill(&mut world, b, spec(8));
    world.pin_call(a, 1, &[away[0]]);
    world.pin_call(b, 1, &[away[1]]);
    let copy = loop {
        let at = world.work.iter().position(|work| matches!(work, Command::Copy { .. }));
        match at.and_then(|at| world.work.remove(at)) {
            Some(copy) => break copy,
            None => assert!(world.work_once(), "it is copied some day"),
        }
    };
    for _ in 0..4 {
        world.run_until_idle();
        world.advance(STALL);
    }
    assert_eq!(answer(&world, b, 1), None, "the other's copy takes its time");
    world.work.push_back(copy);
    world.run_until_idle();
    assert_eq!((answer(&world, a, 1), answer(&world, b, 1)), (Some(&None), None));
    world.frame(a, ClientFrame::PinEnded { call: 1 });
    empty(&mut world, a, holds);
    assert_eq!(answer(&world, b, 1), Some(&None));
}

#[test]
fn nested_pins_that_wait_for_room_are_aborted_the_youngest_first() {
    let mut world = tiers(8, 64);
    let [a, b, c] = ["a", "b", "c"].map(|tenant| world.open_pinning(tenant));
    let mut away = Vec::new();
    for (at, client) in (0..).zip([a, b, c]) {
        let part = one(&mut world, client, 4, at);
        evict(&mut world, part);
        away.push(part);
    }
    let holds = [fill(&mut world, a, spec(4)), fill(&mut world, b, spec(4))];
    world.pin_call(a, 1, &[away[0]]);
    world.pin_call(b, 1, &[away[1]]);
    world.pin_call(c, 1, &[away[2]]);
    world.run_until_idle();
    world.advance(STALL / 2);
    world.run_until_idle();
    assert_eq!([a, b, c].map(|client| answer(&world, client, 1).is_some()), [false; 3]);
    world.advance(STALL);
    world.run_until_idle();
    assert!(
        matches!(answer(&world, b, 1), Some(Some(Refusal::PinStalled { .. }))),
        "the last session that pins"
    );
    assert_eq!((answer(&world, a, 1), answer(&world, c, 1)), (None, None));
    world.unpin(b, part(holds[1], 0));
    world.harvest(b, part(holds[1], 0));
    world.run_until_idle();
    assert_eq!(answer(&world, a, 1), Some(&None), "its turn");
    world.frame(a, ClientFrame::PinEnded { call: 1 });
    world.run_until_idle();
    assert_eq!(answer(&world, c, 1), Some(&None));
}

/// Each pins on one device what the other waits for, and waits on the other device for what that one pins.
#[test]
fn nested_pins_across_devices_are_aborted_too() {
    let mut config = config(&[Bytes::mib(4), Bytes::mib(4)]);
    for device in &mut config.devices {
        device.host = Bytes::mib(64);
    }
    let mut world = World::with(config, StoredQuotas::default());
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let on = |device: usize| AllocationSpec { device: Some(world::UUIDS[device].to_owned()), ..spec(4) };
    let away = [(a, 0), (b, 1)].map(|(client, device)| {
        let part = part(world.allocate(client, on(device)).expect("room"), 0);
        evict(&mut world, part);
        part
    });
    let holds = [(a, 1), (b, 0)].map(|(client, device)| fill(&mut world, client, on(device)));
    world.pin_call(a, 1, &[away[0]]);
    world.pin_call(b, 1, &[away[1]]);
    world.run_until_idle();
    world.advance(STALL * 2);
    world.run_until_idle();
    assert!(matches!(answer(&world, b, 1), Some(Some(Refusal::PinStalled { .. }))), "the last call");
    assert_eq!(answer(&world, a, 1), None);
    world.unpin(b, part(holds[1], 0));
    world.harvest(b, part(holds[1], 0));
    world.run_until_idle();
    assert_eq!(answer(&world, a, 1), Some(&None), "its turn");
}

/// A set that nothing was pinned before, but of which some came past another that waited at its limit.
#[test]
fn overtaking_pin_is_aborted_if_it_and_the_overtaken_block_each_other() {
    let mut config = config(&[Bytes::mib(14)]);
    (config.devices[0].host, config.part_size) = (Bytes::mib(64), Bytes::mib(8));
    let mut world = World::with(config, StoredQuotas::default());
    world.operate(set_quota("a", 0, 8)).expect("stored");
    let [busy, early, late] = ["a", "a", "b"].map(|tenant| world.open_pinning(tenant));
    let wanted = one(&mut world, early, 8, 1);
    evict(&mut world, wanted);
    let set = [(8, 2), (6, 3)].map(|(size, content)| {
        let part = one(&mut world, late, size, content);
        evict(&mut world, part);
        part
    });
    let filler = fill(&mut world, busy, spec(6));
    world.pin_call(early, 1, &[wanted]);
    world.pin_call(late, 1, &set);
    world.run_until_idle();
    // As clients do with frames that arrive while a call of theirs waits.
    world.pin(late, set[0]);
    empty(&mut world, busy, filler);
    assert_eq!(
        (answer(&world, early, 1), answer(&world, late, 1)),
        (None, None),
        "nothing came past it again"
    );
    world.advance(STALL * 2);
    world.run_until_idle();
    assert!(matches!(answer(&world, late, 1), Some(Some(Refusal::PinStalled { .. }))));
    world.unpin(late, set[0]);
    world.harvest(late, set[0]);
    world.run_until_idle();
    assert_eq!((answer(&world, early, 1), world.read(early, wanted)), (Some(&None), 1));
}

/// Memory of a batch can leave once the whole batch is created, which takes its time below.
#[test]
fn waiter_for_an_allocation_in_creation_has_not_stalled() {
    let mut config = config(&[Bytes::mib(12)]);
    (config.devices[0].host, config.part_size) = (Bytes::mib(64), Bytes::mib(4));
    let mut world = World::with(config, StoredQuotas::default());
    let [client, slow] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let set = [1, 2, 3].map(|content| {
        let part = one(&mut world, client, 4, content);
        evict(&mut world, part);
        part
    });
    let fillers = [(); 2].map(|()| fill(&mut world, slow, spec(4)));
    let items = vec![AllocationSpec { unpinned: true, ..spec(8) }];
    let batch = world.start(slow, None, ClientRequest::AllocateBatch { items, wait: Duration::ZERO });
    let is_below = |command: &Command| matches!(command, Command::CreateExtent { tier: Tier::Host, .. });
    let below: Vec<_> = world.work.iter().filter(|command| is_below(command)).cloned().collect();
    assert_eq!(below.len(), 1, "there is room for one part");
    world.work.retain(|command| !is_below(command));
    fillers.into_iter().for_each(|filler| empty(&mut world, slow, filler));
    world.pin_call(client, 1, &set);
    world.run_until_idle();
    let come: Vec<_> = set.into_iter().filter(|part| world.maps(client, *part)).collect();
    assert_eq!(come.len(), 2, "the third has no room");
    for part in come {
        world.pin(client, part);
        world.harvest(client, part);
    }
    for _ in 0..3 {
        world.advance(STALL);
        world.run_until_idle();
        assert_eq!(answer(&world, client, 1), None, "it waits for no session");
    }
    world.work.extend(below);
    world.run_until_idle();
    assert!(world.replies.contains_key(&batch));
    assert_eq!(answer(&world, client, 1), Some(&None));
}

/// At every step of an eviction for a waiter.
#[test]
fn free_pin_or_session_end_during_an_eviction_loses_nothing() {
    for what in ["free", "pin", "die", "cancel", "evict", "bring in"] {
        for steps in 0..8 {
            let mut world = tiers(8, 64);
            let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
            let part = one(&mut world, a, 8, 7);
            let wait = Duration::from_secs(60);
            let request = ClientRequest::AllocateBatch { items: vec![spec(4)], wait };
            let call = world.start(b, None, request);
            for _ in 0..steps {
                if !world.work_once() {
                    world.answer_once(a.channel);
                }
            }
            match what {
                "free" => _ = world.start(a, None, ClientRequest::FreeBatch(vec![part.allocation])),
                "pin" => world.pin_call(a, 1, &[part]),
                "die" => world.end_process(a),
                "cancel" => {
                    for wait in world.broker.waits() {
                        world.operate(OperatorRequest::CancelWait { wait: wait.id }).expect("it waits");
                    }
                }
                "evict" => _ = world.start_operator(None, to(part.allocation, Tier::Host)),
                _ => _ = world.start_operator(None, to(part.allocation, Tier::Device)),
            }
            world.run_until_idle();
            let reply = world.replies.get(&call).expect("it is answered");
            match what {
                "cancel" => {}
                _ => assert!(reply.is_ok(), "{what} after {steps} steps: {reply:?}"),
            }
            if matches!(what, "pin") {
                world.advance(1);
                world.run_until_idle();
                assert_eq!(answer(&world, a, 1), Some(&None), "after {steps} steps");
                assert_eq!(world.read(a, part), 7, "after {steps} steps");
            }
        }
    }
}

#[test]
fn ended_session_pins_nothing() {
    let mut world = tiers(4, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let part = part(world.sealed(a, persistent(4, "weights")), 0);
    world.pin(a, part);
    world.harvest(a, part);
    assert!(world.allocate(b, spec(4)).is_err(), "it is pinned");
    world.end_process(a);
    world.allocate(b, spec(4)).expect("the unused part leaves");
    assert_eq!(tier(&world, part), Tier::Host);
}

#[test]
fn nothing_leaves_one_device_for_a_batch_that_another_cannot_serve() {
    let mut config = config(&[Bytes::mib(4), Bytes::mib(4)]);
    config.devices.iter_mut().for_each(|device| device.host = Bytes::mib(64));
    let mut world = World::with(config, StoredQuotas::default());
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let on = |device: &str| AllocationSpec { device: Some(device.to_owned()), ..spec(4) };
    let free = part(world.allocate(a, on("0")).expect("room"), 0);
    let pinned = part(world.allocate(a, on("1")).expect("room"), 0);
    world.pin(a, pinned);
    world.harvest(a, pinned);
    let both = ClientRequest::allocate(vec![on("0"), on("1")]);
    assert_eq!(world.call(b, both).expect_err("one is pinned").reason(), Reason::DeviceFull);
    world.run_until_idle();
    assert_eq!(tier(&world, free), Tier::Device);
}

#[test]
fn cached_extents_of_a_later_batch_go_to_the_first_waiter() {
    let mut config = config(&[Bytes::mib(8)]);
    config.limits.cached_bytes_per_tenant_max = Bytes::mib(64);
    let mut world = World::with(config, StoredQuotas::default());
    let [a, b, c] = ["a", "b", "c"].map(|tenant| world.open_pinning(tenant));
    let freed = world.allocate(a, spec(4)).expect("room");
    world.allocate(b, spec(4)).expect("room");
    let long = Duration::from_secs(60);
    let first = waiting(&mut world, c, 4, long);
    let again = AllocationSpec { uninitialized: true, ..spec(4) };
    let items = vec![again.clone(), again];
    let second = world.start(a, None, ClientRequest::AllocateBatch { items, wait: long });
    world.run_until_idle();
    world.call(a, ClientRequest::FreeBatch(vec![freed])).expect("freed");
    world.run_until_idle();
    assert!(matches!(world.replies.get(&first), Some(Ok(Reply::Allocated(_)))), "it came first");
    assert!(!world.replies.contains_key(&second));
}

/// Found by the simulator: the batch of a tenant at its limit kept all others waiting.
#[test]
fn waiter_at_its_own_limit_keeps_no_other_tenant_waiting() {
    let mut world = tiers(16, 64);
    world.operate(set_quota("a", 0, 8)).expect("stored");
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    fill(&mut world, a, spec(8));
    let wait = Duration::from_secs(60);
    let large = waiting(&mut world, a, 4, wait);
    let small = waiting(&mut world, a, 2, wait);
    one(&mut world, b, 8, 1);
    let other = waiting(&mut world, b, 8, wait);
    assert!(!world.replies.contains_key(&large) && !world.replies.contains_key(&small));
    assert!(world.replies[&other].is_ok(), "the unused part of b leaves for it");
}

/// Found by the simulator: a part that had lost its backing was chosen as a victim.
#[test]
fn part_that_lost_its_backing_stays() {
    let mut world = tiers(4, 4);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let part = one(&mut world, a, 4, 7);
    let set = OperatorRequest::SetQuota {
        tenant: "a".to_owned(),
        device: broker_core::DeviceSelector::All,
        tier: Tier::Host,
        guarantee: None,
        limit: Some(vramd_types::Quantity::Bytes(Bytes::ZERO)),
    };
    world.operate(set).expect("it is stored");
    world.fail_creates.push_back(Some(broker_core::CreateError::OutOfHostMemory("no".to_owned())));
    assert!(matches!(evict(&mut world, part), PartMove::Refused { .. }));
    assert_eq!(world.allocate(b, spec(4)).expect_err("it can't leave").reason(), Reason::DeviceFull);
    world.pin_call(a, 1, &[part]);
    world.run_until_idle();
    assert_eq!(world.read(a, part), 7);
}

/// Behind a waiter without room: on disk it need not be.
#[test]
fn staged_guarantee_counts_for_its_waiters() {
    let mut world = tiers(12, 64);
    let [a, b, c] = ["a", "b", "c"].map(|tenant| world.open_pinning(tenant));
    for content in 1..3 {
        let part = one(&mut world, a, 4, content);
        world.pin(a, part);
    }
    let first = waiting(&mut world, c, 8, Duration::from_secs(1));
    let behind = waiting(&mut world, b, 4, Duration::from_secs(1));
    world.start_operator(None, set_quota("b", 4, 8));
    let made = |work: &Command| matches!(work, Command::CreateExtent { .. });
    assert!(world.work.iter().any(made), "before the quota is stored: {:?}", world.work);
    world.run_until_idle();
    assert!(matches!(world.replies.get(&behind), Some(Ok(_))));
    assert!(!world.replies.contains_key(&first));
}
