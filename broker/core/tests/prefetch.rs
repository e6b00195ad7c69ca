//! Prefetch requests: parts that clients ask for ahead of their use.

use std::time::Duration;

use crate::world::{
    Client, World, config,
    moving::{evict, tier, tiers},
    revoking::{answer, part},
    set_quota, spec,
};
use broker_core::{
    AllocationSpec, Cause, ClientFrame, ClientRequest, Deferral, Notice, OperatorRequest, PartRef,
    PrefetchEnd, PrefetchPhase, PrefetchSpec, PrefetchState, Refusal, StoredQuotas, Tier,
};
use vramd_types::{Bytes, Reason};

fn one(world: &mut World, client: Client, mib: u32, content: u64) -> PartRef {
    let spec = AllocationSpec { part_size: Some(Bytes::mib(mib)), ..spec(mib) };
    let part = part(world.allocate(client, spec).expect("room"), 0);
    world.write(client, part, content);
    part
}

/// A part in host memory.
fn below(world: &mut World, client: Client, mib: u32, content: u64) -> PartRef {
    let part = one(world, client, mib, content);
    evict(world, part);
    assert_eq!(tier(world, part), Tier::Host);
    part
}

fn all_of(parts: &[PartRef]) -> PrefetchSpec {
    PrefetchSpec { parts: parts.to_vec(), whole: true, within: None, priority: 0 }
}

fn ask(world: &mut World, client: Client, number: u64, spec: PrefetchSpec) {
    world.frame(client, ClientFrame::Prefetch { number, spec });
}

fn told(world: &World, client: Client, number: u64) -> &[PrefetchState] {
    world.prefetch_states.get(&(client.channel, number)).map_or(&[], Vec::as_slice)
}

fn last(world: &World, client: Client, number: u64) -> &PrefetchState {
    told(world, client, number).last().expect("it was told")
}

fn in_time() -> PrefetchState {
    PrefetchState::Ready { left_out: 0, is_late: false }
}

fn reason(state: &PrefetchState) -> Option<Reason> {
    match state {
        PrefetchState::Refused(refusal) => Some(refusal.reason()),
        _ => None,
    }
}

#[test]
fn group_is_accepted_at_once_and_ready_once_all_is_there() {
    let mut world = tiers(16, 64);
    let a = world.open_pinning("a");
    let parts = [below(&mut world, a, 4, 1), below(&mut world, a, 4, 2)];
    ask(&mut world, a, 1, all_of(&parts));
    assert_eq!(told(&world, a, 1), [PrefetchState::Accepted { expected: None }], "nothing was measured");
    world.run_until_idle();
    assert_eq!(last(&world, a, 1), &in_time());
    assert_eq!(parts.map(|part| tier(&world, part)), [Tier::Device; 2]);
    let view = world.broker.prefetches();
    assert_eq!((view.len(), view[0].unused, view[0].phase), (1, 2, PrefetchPhase::Arrived));
    // A pin finds the parts there, and ends the request.
    world.pin_call(a, 1, &parts);
    world.run_until_idle();
    assert_eq!(answer(&world, a, 1), Some(&None));
    assert_eq!(world.broker.prefetches(), []);
    let used = world.notices.iter().filter(|it| matches!(it, Notice::PrefetchUsed { .. })).count();
    assert_eq!(used, 2);
    // A request for parts that are there is ready at once, and by now the speed is known.
    ask(&mut world, a, 2, all_of(&parts));
    assert_eq!(last(&world, a, 2), &in_time());
    let third = below(&mut world, a, 4, 3);
    ask(&mut world, a, 3, all_of(&[third]));
    assert!(matches!(told(&world, a, 3), [PrefetchState::Accepted { expected: Some(_) }]));
}

#[test]
fn prefetch_waits_for_demand() {
    let mut world = tiers(8, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let wanted = below(&mut world, a, 4, 1);
    let second = below(&mut world, a, 4, 4);
    let held = [one(&mut world, b, 4, 2), one(&mut world, b, 4, 3)];
    held.iter().for_each(|part| world.pin(b, *part));
    world.pin_call(a, 1, &[wanted]);
    world.run_until_idle();
    assert_eq!(answer(&world, a, 1), None, "the device is full");
    ask(&mut world, a, 1, all_of(&[second]));
    assert_eq!(told(&world, a, 1), [PrefetchState::Deferred(Deferral::Demand)]);
    // One part of room is for the pin, and one more for the request.
    world.unpin(b, held[0]);
    world.harvest(b, held[0]);
    world.run_until_idle();
    assert_eq!(answer(&world, a, 1), Some(&None));
    assert_eq!(told(&world, a, 1).len(), 1, "the other is hot, and another tenant's");
    world.unpin(b, held[1]);
    world.call(b, ClientRequest::FreeBatch(vec![held[1].allocation])).expect("freed");
    world.run_until_idle();
    assert_eq!(last(&world, a, 1), &in_time());
}

#[test]
fn own_parts_leave_for_it_and_hot_ones_of_others_stay() {
    let mut world = tiers(8, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let wanted = below(&mut world, a, 4, 1);
    let hot = one(&mut world, b, 4, 2);
    let own = one(&mut world, a, 4, 3);
    ask(&mut world, a, 1, all_of(&[wanted]));
    assert_eq!(told(&world, a, 1), [PrefetchState::Deferred(Deferral::RoomOnItsWay)]);
    world.run_until_idle();
    assert_eq!(last(&world, a, 1), &in_time());
    assert_eq!([hot, own].map(|part| tier(&world, part)), [Tier::Device, Tier::Host]);
    let evicted = world.notices.iter().any(|notice| {
        matches!(notice, Notice::Moved { part, cause: Cause::Prefetch, tier: Tier::Host, .. } if *part == own)
    });
    assert!(evicted);
    // Its parts are kept, and the rest is not its tenant's: the next one waits.
    ask(&mut world, a, 2, all_of(&[own]));
    world.run_until_idle();
    assert_eq!(told(&world, a, 2), [PrefetchState::Deferred(Deferral::Room)]);
    world.pin_call(a, 1, &[wanted]);
    world.run_until_idle();
    world.frame(a, ClientFrame::PinEnded { call: 1 });
    world.advance(2_000);
    world.run_until_idle();
    assert_eq!(last(&world, a, 2), &in_time(), "it was used");
    // A part that no session uses for long is cold, of any tenant.
    world.advance(60_000_000);
    ask(&mut world, a, 3, all_of(&[wanted]));
    world.run_until_idle();
    assert_eq!((last(&world, a, 3), tier(&world, hot)), (&in_time(), Tier::Host));
}

#[test]
fn guaranteed_bytes_stay_though_cold() {
    let mut world = tiers(8, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let wanted = below(&mut world, a, 4, 1);
    world.operate(set_quota("b", 8, 8)).expect("it is free");
    let cold = one(&mut world, b, 8, 2);
    world.advance(60_000_000);
    ask(&mut world, a, 1, PrefetchSpec { whole: false, ..all_of(&[wanted]) });
    world.run_until_idle();
    assert_eq!(told(&world, a, 1), [PrefetchState::Deferred(Deferral::Room)]);
    assert_eq!(tier(&world, cold), Tier::Device);
}

#[test]
fn part_of_a_group_begins_only_where_the_client_says_so() {
    let mut world = tiers(8, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let parts = [below(&mut world, a, 4, 1), below(&mut world, a, 4, 2)];
    let held = one(&mut world, b, 4, 3);
    world.pin(b, held);
    ask(&mut world, a, 1, all_of(&parts));
    world.run_until_idle();
    assert_eq!(told(&world, a, 1), [PrefetchState::Deferred(Deferral::Room)]);
    assert_eq!(parts.map(|part| tier(&world, part)), [Tier::Host; 2]);
    world.frame(a, ClientFrame::PrefetchCancelled { number: 1 });
    assert_eq!(last(&world, a, 1), &PrefetchState::Cancelled { by_operator: false });
    ask(&mut world, a, 2, PrefetchSpec { whole: false, ..all_of(&parts) });
    world.run_until_idle();
    assert_eq!(last(&world, a, 2), &PrefetchState::Ready { left_out: 1, is_late: false });
    assert_eq!(parts.map(|part| tier(&world, part)), [Tier::Device, Tier::Host]);
}

#[test]
fn earliest_deadline_goes_first_then_the_tenant_that_had_least() {
    let mut world = tiers(4096, 8192);
    let clients = ["a", "b", "c"].map(|tenant| world.open_pinning(tenant));
    let parts = clients.map(|client| [0, 1, 2].map(|index| below(&mut world, client, 512, index)));
    // The first one fills the window, so that the others are queued.
    for (client, number) in [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 1)] {
        let index = usize::try_from(number).unwrap() - 1;
        let within = (client == 2).then_some(Duration::from_millis(500));
        ask(
            &mut world,
            clients[client],
            number,
            PrefetchSpec { within, ..all_of(&parts[client][index..=index]) },
        );
        create_all(&mut world);
        let is_queued = matches!(told(&world, clients[client], number), [PrefetchState::Deferred(_)]);
        assert_eq!(is_queued, (client, number) != (0, 1));
    }
    world.run_until_idle();
    let ended = world.notices.iter().filter_map(|notice| match notice {
        Notice::PrefetchEnded { tenant, number, end: PrefetchEnd::Ready, .. } => {
            Some(format!("{tenant}{number}"))
        }
        _ => None,
    });
    assert_eq!(ended.collect::<Vec<_>>(), ["a1", "c1", "a2", "b1", "a3", "b2"]);
}

#[test]
fn priority_orders_the_requests_of_one_tenant() {
    let mut world = tiers(2048, 4096);
    let a = world.open_pinning("a");
    let parts = [0, 1, 2].map(|index| below(&mut world, a, 512, index));
    for (number, part, priority) in [(1, 0, 0), (2, 1, 0), (3, 2, 9)] {
        ask(&mut world, a, number, PrefetchSpec { priority, ..all_of(&parts[part..=part]) });
    }
    world.run_until_idle();
    let ended = world.notices.iter().filter_map(|notice| match notice {
        Notice::PrefetchEnded { number, .. } => Some(*number),
        _ => None,
    });
    assert_eq!(ended.collect::<Vec<_>>(), [1, 3, 2]);
}

/// The numbers of the requests of one client that were ready, in time or late, in their order.
fn ready(world: &World) -> Vec<u64> {
    let ended = world.notices.iter().filter_map(|notice| match notice {
        Notice::PrefetchEnded { number, end: PrefetchEnd::Ready | PrefetchEnd::Late, .. } => Some(*number),
        _ => None,
    });
    ended.collect()
}

#[test]
fn request_whose_deadline_is_over_lets_others_pass() {
    let mut world = tiers(4096, 4096);
    let a = world.open_pinning("a");
    let parts = [0, 1, 2, 3].map(|index| below(&mut world, a, 512, index));
    // The first one fills the window, so that the others are queued.
    for (number, within) in [(1, None), (2, Some(5)), (3, Some(60_000)), (4, None)] {
        let within = within.map(Duration::from_millis);
        let part = parts[usize::try_from(number).unwrap() - 1];
        ask(&mut world, a, number, PrefetchSpec { within, ..all_of(&[part]) });
        create_all(&mut world);
    }
    let is_given_up = |world: &World| world.broker.prefetches()[1].misses_deadline;
    assert!(!is_given_up(&world));
    world.advance(6_000);
    world.run_until_idle();
    // Among those without a deadline it goes first, since it is older.
    assert_eq!(ready(&world), [1, 3, 2, 4]);
    assert!(is_given_up(&world));
    assert_eq!(last(&world, a, 2), &PrefetchState::Ready { left_out: 0, is_late: true });
    assert_eq!(last(&world, a, 3), &in_time());
}

/// Request 1 brings the first part in a second, so that the speed of the link is known. Request 2, for the second part, is
/// under way then.
fn copy_one_in_a_second(world: &mut World, client: Client, parts: &[PartRef]) {
    ask(world, client, 1, all_of(&parts[..1]));
    while !world.work.iter().any(|it| matches!(it, broker_core::Command::Copy { .. })) {
        assert!(world.work_once());
    }
    world.advance(1_000_000);
    world.run_until_idle();
    ask(world, client, 2, all_of(&parts[1..2]));
    create_all(world);
}

#[test]
fn request_that_the_link_cannot_carry_in_time_lets_others_pass() {
    let mut world = tiers(4096, 4096);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let parts = [0, 1, 2, 3, 4].map(|index| below(&mut world, a, 512, index));
    let foreign = below(&mut world, b, 512, 5);
    copy_one_in_a_second(&mut world, a, &parts);
    // Each needs two seconds, behind the one under way.
    for (number, from, within) in [(3, 2, 1_500), (4, 3, 2_500), (5, 4, 1_900)] {
        let within = Some(Duration::from_millis(within));
        ask(&mut world, a, number, PrefetchSpec { within, ..all_of(&parts[from..=from]) });
    }
    let within = Some(Duration::from_millis(3_000));
    ask(&mut world, b, 6, PrefetchSpec { within, ..all_of(&[foreign]) });
    let given_up = world.broker.prefetches().into_iter().filter(|it| it.misses_deadline);
    assert_eq!(given_up.map(|it| it.number).collect::<Vec<_>>(), [3, 5]);
    world.run_until_idle();
    assert_eq!(ready(&world), [1, 2, 4, 6, 3, 5]);
}

#[test]
fn parts_that_are_there_need_no_time_on_the_link() {
    let mut world = tiers(4096, 4096);
    let a = world.open_pinning("a");
    let parts = [0, 1, 2].map(|index| below(&mut world, a, 512, index));
    copy_one_in_a_second(&mut world, a, &parts);
    // Both parts would take three seconds, and one is there.
    let within = Some(Duration::from_millis(2_500));
    ask(&mut world, a, 3, PrefetchSpec { within, ..all_of(&[parts[0], parts[2]]) });
    assert!(world.broker.prefetches().iter().all(|it| !it.misses_deadline));
}

/// Parts of 64 MiB in host memory: one of them fills the link.
fn large_parts<const N: usize>(world: &mut World, client: Client) -> [PartRef; N] {
    std::array::from_fn(|index| below(world, client, 64, u64::try_from(index).expect("few")))
}

/// A request with a deadline that it meets.
fn by_deadline(parts: &[PartRef]) -> PrefetchSpec {
    PrefetchSpec { within: Some(Duration::from_secs(60)), ..all_of(parts) }
}

/// The driver creates memory, and copies nothing yet.
fn create_all(world: &mut World) {
    while let Some(at) = world.work.iter().position(|it| !matches!(it, broker_core::Command::Copy { .. })) {
        world.work.swap(0, at);
        world.work_once();
    }
}

fn copies(world: &World) -> usize {
    world.work.iter().filter(|it| matches!(it, broker_core::Command::Copy { .. })).count()
}

#[test]
fn earlier_deadline_passes_a_request_that_has_begun() {
    let mut world = tiers(4096, 4096);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let parts = large_parts::<12>(&mut world, a);
    let urgent = large_parts::<1>(&mut world, b);
    let within = |seconds| Some(Duration::from_secs(seconds));
    ask(&mut world, a, 1, PrefetchSpec { within: within(60), ..all_of(&parts[..9]) });
    ask(&mut world, a, 2, PrefetchSpec { within: within(90), ..all_of(&parts[9..]) });
    assert_eq!(told(&world, a, 2), [PrefetchState::Deferred(Deferral::Link)], "it goes behind 576 MiB");
    ask(&mut world, b, 3, PrefetchSpec { within: within(30), ..all_of(&urgent) });
    assert!(matches!(told(&world, b, 3), [PrefetchState::Accepted { .. }]), "nothing goes before it");
    create_all(&mut world);
    assert_eq!(copies(&world), 1, "all the memory is there, and the link has one copy");
    world.run_until_idle();
    assert_eq!(ready(&world), [3, 1, 2]);
    assert_eq!([last(&world, a, 1), last(&world, a, 2), last(&world, b, 3)], [&in_time(); 3]);
}

#[test]
fn begun_request_that_is_late_lets_others_pass() {
    let mut world = tiers(4096, 4096);
    let a = world.open_pinning("a");
    let parts = large_parts::<4>(&mut world, a);
    let within = |seconds| Some(Duration::from_secs(seconds));
    ask(&mut world, a, 1, PrefetchSpec { within: within(1), ..all_of(&parts[..3]) });
    ask(&mut world, a, 2, PrefetchSpec { within: within(60), ..all_of(&parts[3..]) });
    create_all(&mut world);
    world.advance(2_000_000);
    world.run_until_idle();
    assert_eq!(ready(&world), [2, 1]);
}

#[test]
fn copies_begin_at_once_where_no_request_has_a_deadline() {
    let mut world = tiers(1024, 1024);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let parts = large_parts::<5>(&mut world, a);
    let urgent = large_parts::<1>(&mut world, b);
    ask(&mut world, a, 1, all_of(&parts[..3]));
    create_all(&mut world);
    assert_eq!(copies(&world), 3);
    ask(&mut world, a, 2, all_of(&parts[3..]));
    // Copies that have begun go on, and the request passes the others.
    ask(&mut world, b, 3, by_deadline(&urgent));
    create_all(&mut world);
    assert_eq!(copies(&world), 3);
    world.run_until_idle();
    assert_eq!(ready(&world), [1, 3, 2]);
}

#[test]
fn copies_begin_at_once_after_the_last_deadline_has_gone() {
    for is_late in [false, true] {
        let mut world = tiers(384, 1024);
        let [a, b, c] = ["a", "b", "c"].map(|tenant| world.open_pinning(tenant));
        one(&mut world, c, 192, 9);
        let parts = large_parts::<3>(&mut world, a);
        let urgent = large_parts::<4>(&mut world, b);
        ask(&mut world, b, 3, by_deadline(&urgent));
        assert_eq!(told(&world, b, 3), [PrefetchState::Deferred(Deferral::Room)]);
        ask(&mut world, a, 1, all_of(&parts));
        create_all(&mut world);
        assert_eq!(copies(&world), 1, "one with a deadline is queued");
        match is_late {
            true => world.advance(61_000_000),
            false => world.frame(b, ClientFrame::PrefetchCancelled { number: 3 }),
        }
        // The daemon looks at deadlines again when a copy ends.
        world.work_once();
        assert_eq!(copies(&world), 2, "{is_late}");
    }
}

#[test]
fn copies_wait_while_a_late_request_is_under_way() {
    let mut world = tiers(1024, 1024);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let parts = large_parts::<4>(&mut world, a);
    let urgent = large_parts::<1>(&mut world, b);
    let within = Some(Duration::from_secs(1));
    ask(&mut world, a, 1, PrefetchSpec { within, ..all_of(&parts) });
    create_all(&mut world);
    world.advance(2_000_000);
    world.work_once();
    assert!(world.broker.prefetches()[0].misses_deadline);
    assert_eq!(copies(&world), 1);
    ask(&mut world, b, 2, by_deadline(&urgent));
    world.run_until_idle();
    assert_eq!(ready(&world), [2, 1]);
}

#[test]
fn part_that_waits_for_the_link_is_copied_once_a_client_pins_it() {
    let mut world = tiers(1024, 1024);
    let a = world.open_pinning("a");
    let parts = large_parts::<4>(&mut world, a);
    ask(&mut world, a, 1, by_deadline(&parts[..3]));
    ask(&mut world, a, 2, by_deadline(&parts[3..]));
    create_all(&mut world);
    assert_eq!(copies(&world), 1);
    // The rest of its request is copied as demand too.
    world.pin_call(a, 1, &parts[2..3]);
    assert_eq!(copies(&world), 3);
    world.run_until_idle();
    assert_eq!((answer(&world, a, 1), ready(&world)), (Some(&None), vec![1, 2]));
}

#[test]
fn cancelled_request_leaves_the_link_to_the_next() {
    for is_copied in [false, true] {
        let mut world = tiers(1024, 1024);
        let a = world.open_pinning("a");
        let parts = large_parts::<4>(&mut world, a);
        ask(&mut world, a, 1, by_deadline(&parts[..2]));
        ask(&mut world, a, 2, by_deadline(&parts[2..]));
        create_all(&mut world);
        let number = if is_copied { 1 } else { 2 };
        world.frame(a, ClientFrame::PrefetchCancelled { number });
        world.run_until_idle();
        assert_eq!(ready(&world), [3 - number]);
        let left = &parts[if is_copied { 0..2 } else { 2..4 }];
        assert!(left.iter().all(|part| tier(&world, *part) == Tier::Host), "{is_copied}");
        assert_eq!(world.broker.prefetches().len(), 1);
    }
}

#[test]
fn late_request_says_so() {
    let mut world = tiers(8, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let wanted = below(&mut world, a, 4, 1);
    let held = one(&mut world, b, 8, 2);
    world.pin(b, held);
    let within = Some(Duration::from_millis(5));
    ask(&mut world, a, 1, PrefetchSpec { within, ..all_of(&[wanted]) });
    world.advance(6_000);
    world.unpin(b, held);
    world.call(b, ClientRequest::FreeBatch(vec![held.allocation])).expect("freed");
    world.run_until_idle();
    assert_eq!(last(&world, a, 1), &PrefetchState::Ready { left_out: 0, is_late: true });
}

#[test]
fn pin_of_a_part_makes_the_rest_urgent() {
    let mut world = tiers(16, 64);
    let a = world.open_pinning("a");
    let parts = [below(&mut world, a, 4, 1), below(&mut world, a, 4, 2)];
    ask(&mut world, a, 1, all_of(&parts));
    // The copies are under way.
    while world.work.len() < 2 || !world.work.iter().all(|it| matches!(it, broker_core::Command::Copy { .. }))
    {
        assert!(world.work_once());
    }
    assert_eq!(world.hastened, []);
    world.pin_call(a, 1, &parts[..1]);
    assert_eq!(world.hastened.len(), 2);
    world.run_until_idle();
    assert_eq!(last(&world, a, 1), &in_time());
}

#[test]
fn evicted_before_its_use_it_is_dropped() {
    let mut world = tiers(8, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let wanted = below(&mut world, a, 8, 1);
    ask(&mut world, a, 1, all_of(&[wanted]));
    world.run_until_idle();
    assert_eq!(last(&world, a, 1), &in_time());
    one(&mut world, b, 4, 2);
    assert_eq!(last(&world, a, 1), &PrefetchState::Dropped { cause: Cause::Demand, by_own_tenant: false },);
    assert_eq!(world.broker.prefetches(), []);
}

#[test]
fn end_of_a_request_leaves_nothing_behind() {
    type End = fn(&mut World, Client, PartRef);
    let ends: [(&str, End); 5] = [
        ("cancelled", |world, a, _| world.frame(a, ClientFrame::PrefetchCancelled { number: 1 })),
        ("by an operator", |world, a, _| {
            let cancel = OperatorRequest::CancelPrefetch { session: a.session, number: 1 };
            world.operate(cancel.clone()).expect("it is there");
            assert_eq!(world.operate(cancel).expect_err("gone").reason(), Reason::PrefetchNotFound);
        }),
        ("freed", |world, a, part| {
            world.call(a, ClientRequest::FreeBatch(vec![part.allocation])).expect("it is its own");
        }),
        ("channel", |world, a, _| world.event(broker_core::Event::ChannelEnded { channel: a.channel })),
        ("process", |world, a, _| world.end_process(a)),
    ];
    for (name, end) in ends {
        for begun in [false, true] {
            let mut world = tiers(8, 64);
            let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
            let wanted = below(&mut world, a, 4, 1);
            let held = one(&mut world, b, 8, 2);
            world.pin(b, held);
            if begun {
                world.unpin(b, held);
                world.call(b, ClientRequest::FreeBatch(vec![held.allocation])).expect("freed");
                world.run_until_idle();
            }
            ask(&mut world, a, 1, all_of(&[wanted]));
            let is_accepted = matches!(last(&world, a, 1), PrefetchState::Accepted { .. });
            assert_eq!(is_accepted, begun, "{name}");
            end(&mut world, a, wanted);
            world.run_until_idle();
            assert_eq!(world.broker.prefetches(), [], "{name}");
            if name == "cancelled" {
                assert_eq!(tier(&world, wanted), Tier::Host, "the move was stopped");
            }
            if !begun {
                world.unpin(b, held);
                world.call(b, ClientRequest::FreeBatch(vec![held.allocation])).expect("freed");
            }
            world.run_until_idle();
            assert_eq!(world.charged(), Bytes::ZERO, "{name}");
        }
    }
}

#[test]
fn bad_requests_are_refused() {
    let mut base = config(&[Bytes::mib(8), Bytes::mib(8)]);
    base.devices.iter_mut().for_each(|device| device.host = Bytes::mib(64));
    let mut world = World::with(base, StoredQuotas::default());
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let own = below(&mut world, a, 4, 1);
    let foreign = below(&mut world, b, 4, 2);
    let mut elsewhere = spec(4);
    elsewhere.device = Some("1".to_owned());
    let elsewhere = part(world.allocate(a, elsewhere).expect("room"), 0);
    let behind = PartRef { part: vramd_types::PartIndex(9), ..own };
    let mut unpinned = spec(12);
    unpinned.unpinned = true;
    let large = world.allocate(a, unpinned).expect("it begins below");
    let large: Vec<_> = (0..3).map(|index| part(large, index)).collect();
    world.run_until_idle();
    let zero = Some(Duration::ZERO);
    for (number, spec, expected) in [
        (1, all_of(&[]), Reason::RequestInvalid),
        (2, all_of(&[own, own]), Reason::RequestInvalid),
        (3, all_of(&[own, elsewhere]), Reason::RequestInvalid),
        (4, all_of(&[foreign]), Reason::AllocationNotFound),
        (5, all_of(&[behind]), Reason::AllocationNotFound),
        (6, all_of(&large), Reason::DeviceFull),
        (7, PrefetchSpec { within: zero, ..all_of(&[own]) }, Reason::RequestInvalid),
    ] {
        ask(&mut world, a, number, spec);
        assert_eq!(told(&world, a, number).len(), 1);
        assert_eq!(reason(last(&world, a, number)), Some(expected), "{number}");
    }
    assert_eq!(world.broker.prefetches(), []);
    // A number that went backwards is no request: the session is silent until its process ends.
    ask(&mut world, a, 7, all_of(&[own]));
    assert!(world.closed.contains(&a.channel));
}

#[test]
fn lost_content_and_a_driver_without_memory_refuse_it() {
    for is_lost in [false, true] {
        let mut world = tiers(8, 64);
        let a = world.open_pinning("a");
        let wanted = below(&mut world, a, 4, 1);
        match is_lost {
            true => world.fail_copies.push_back(Some("a cable was pulled".to_owned())),
            false => world.out_of_memory = 1,
        }
        ask(&mut world, a, 1, all_of(&[wanted]));
        world.run_until_idle();
        let expected = if is_lost { Reason::DriverFailed } else { Reason::DeviceFull };
        assert_eq!(reason(last(&world, a, 1)), Some(expected));
        assert_eq!(world.broker.prefetches(), []);
        world.pin_call(a, 1, &[wanted]);
        world.run_until_idle();
        assert_eq!((answer(&world, a, 1), world.read(a, wanted)), (Some(&None), 1));
    }
}

/// As `limits.rs` says.
const REQUESTS_OF_SESSION: u64 = 4096;
const REQUESTS_OF_TENANT: u64 = 16_384;

/// Five sessions of a tenant make 100,000 requests that find no room.
#[test]
fn flood_of_one_tenant_ends_at_its_limits_and_others_are_served() {
    const REQUESTS: u64 = 20_000;
    let mut world = tiers(8, 64);
    let flooding: Vec<_> = (0..5).map(|_| world.open_pinning("a")).collect();
    let [b, c] = ["b", "c"].map(|tenant| world.open_pinning(tenant));
    let large: Vec<_> = flooding.iter().map(|a| below(&mut world, *a, 8, 1)).collect();
    let wanted = below(&mut world, b, 4, 2);
    let held = one(&mut world, c, 4, 3);
    world.pin(c, held);
    let send = |world: &mut World, client: Client, frame| {
        world.unchecked_event(broker_core::Event::Frame { channel: client.channel, frame });
    };
    for (client, part) in flooding.iter().zip(&large) {
        for number in 1..=REQUESTS {
            send(&mut world, *client, ClientFrame::Prefetch { number, spec: all_of(&[*part]) });
        }
    }
    let is_refused = |state: &PrefetchState, limit: u64| match state {
        PrefetchState::Refused(Refusal::QueueFull { limit: told }) => u64::try_from(*told) == Ok(limit),
        _ => false,
    };
    for (at, client) in flooding.iter().enumerate() {
        let (taken, limit) = match at {
            0..=3 => (REQUESTS_OF_SESSION, REQUESTS_OF_SESSION),
            _ => (0, REQUESTS_OF_TENANT),
        };
        for number in 1..=REQUESTS {
            let state = last(&world, *client, number);
            let is_taken = matches!(state, PrefetchState::Deferred(_));
            assert_eq!(is_taken, number <= taken, "{at} {number}: {state:?}");
            assert!(is_taken || is_refused(state, limit), "{at} {number}: {state:?}");
        }
    }
    assert_eq!(world.broker.prefetches().len() as u64, REQUESTS_OF_TENANT);
    assert_eq!(world.charged(), Bytes::mib(4), "nothing is reserved for them");

    ask(&mut world, b, 1, all_of(&[wanted]));
    world.run_until_idle();
    assert_eq!(last(&world, b, 1), &in_time());

    for client in &flooding {
        for number in 1..=REQUESTS {
            send(&mut world, *client, ClientFrame::PrefetchCancelled { number });
        }
    }
    assert_eq!(world.broker.prefetches().len(), 1, "that of the other tenant");
    // Every place is free again.
    world.end_process(b);
    ask(&mut world, flooding[4], REQUESTS + 1, all_of(&large[4..]));
    assert_eq!(told(&world, flooding[4], REQUESTS + 1), [PrefetchState::Deferred(Deferral::Room)]);
    world.unpin(c, held);
    world.end_process(c);
    assert_eq!(last(&world, flooding[4], REQUESTS + 1), &in_time());
    flooding.into_iter().for_each(|client| world.end_process(client));
    assert_eq!((world.charged(), world.charged_in_host()), (Bytes::ZERO, Bytes::ZERO));
}
