//! A driver without memory although the ledger has room: something leaves, and the request is tried again.

use crate::world;

use std::time::Duration;

use crate::world::{
    Client, World, config,
    moving::{charged, evict, fill, mib, tier, tiers},
    revoking::{answer, part},
    set_quota, spec,
};
use broker_core::{
    CallId, ClientRequest, Command, CreateError, Limits, Notice, PartRef, Refusal, StoredQuotas, Tier,
};
use vramd_types::{AllocationId, Bytes, Reason};

/// A device of 8 MiB with a part of 4 MiB that "a" has away, and one that "b" has there and does not use.
fn beside_an_idle_one() -> (World, Client, PartRef, PartRef) {
    let mut world = tiers(8, 16);
    let [client, other] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let away = part(world.allocate(client, spec(4)).expect("room"), 0);
    world.write(client, away, 7);
    evict(&mut world, away);
    let idle = part(world.allocate(other, spec(4)).expect("room"), 0);
    (world, client, away, idle)
}

/// How often the driver was asked in vain, and how often again.
fn tries(world: &World) -> (usize, usize) {
    let count = |is: fn(&Notice) -> bool| world.notices.iter().filter(|notice| is(notice)).count();
    (
        count(|notice| matches!(notice, Notice::CreateFailed { .. })),
        count(|notice| matches!(notice, Notice::CreateRetried { .. })),
    )
}

fn batch(world: &mut World, client: Client, mib: u32, wait: u64) -> CallId {
    let items = vec![spec(mib)];
    world.start(client, None, ClientRequest::AllocateBatch { items, wait: Duration::from_micros(wait) })
}

fn refused(world: &World, call: CallId) -> Option<Reason> {
    world.replies.get(&call).and_then(|reply| reply.as_ref().err()).map(Refusal::reason)
}

fn is_full(answer: Option<&Option<Refusal>>) -> bool {
    matches!(answer, Some(Some(Refusal::DeviceFull { tier: Tier::Device, .. })))
}

#[test]
fn idle_part_leaves_for_a_pin_which_is_tried_again() {
    let (mut world, client, away, idle) = beside_an_idle_one();
    world.out_of_memory = 1;
    world.pin_call(client, 1, &[away]);
    world.run_until_idle();
    assert_eq!((answer(&world, client, 1), world.read(client, away)), (Some(&None), 7));
    assert_eq!((tier(&world, idle), tries(&world)), (Tier::Host, (1, 1)));
}

/// A survey that began earlier says nothing of the failed request: until the next one the daemon makes room for
/// the waiter.
#[test]
fn survey_that_began_earlier_does_not_end_the_shortage() {
    let mut world = tiers(12, 16);
    let [client, other] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let away = part(world.allocate(client, spec(4)).expect("room"), 0);
    evict(&mut world, away);
    let idle: Vec<_> = (0..2).map(|_| part(world.allocate(other, spec(4)).expect("room"), 0)).collect();
    world.out_of_memory = 1;
    world.pin_call(client, 1, &[away]);
    let next = Limits::default().survey_interval.as_micros();
    world.advance(u64::try_from(next).expect("it is short"));
    // The creation failed while the device was being surveyed; that survey ends now.
    assert!(world.work_once() && world.work_once());
    // The part that was to leave is used now, so another one has to.
    let asked = world.work.iter().find_map(|work| match work {
        Command::RevokeWords { part, .. } => Some(*part),
        _ => None,
    });
    let first = asked.expect("one is to leave");
    world.pin(other, first);
    world.run_until_idle();
    assert_eq!((answer(&world, client, 1), tries(&world)), (Some(&None), (1, 1)));
    let tiers: Vec<_> = idle.iter().map(|part| (*part == first, tier(&world, *part))).collect();
    assert!(tiers.contains(&(true, Tier::Device)) && tiers.contains(&(false, Tier::Host)), "{tiers:?}");
}

#[test]
fn pin_is_not_tried_again_before_something_has_left() {
    let (mut world, client, away, idle) = beside_an_idle_one();
    world.stopped.insert(idle_client(&world, idle).channel);
    world.out_of_memory = 1;
    world.pin_call(client, 1, &[away]);
    world.run_until_idle();
    assert_eq!((answer(&world, client, 1), tries(&world)), (None, (1, 0)));
    world.stopped.clear();
    world.run_until_idle();
    assert_eq!((answer(&world, client, 1), tries(&world)), (Some(&None), (1, 1)));
}

/// The owner of the idle part: the second session of these worlds.
fn idle_client(world: &World, idle: PartRef) -> Client {
    let channel = world.mapped.iter().find(|(_, mapped)| mapped.contains(&idle)).map(|(channel, _)| *channel);
    let session = world.broker.show(&broker_core::Target::Id(idle.allocation)).expect("there").owner;
    Client { channel: channel.expect("mapped"), session: session.expect("its session's"), pid: 0 }
}

#[test]
fn pin_is_tried_a_few_times_more_if_nothing_is_left_to_evict() {
    let (mut world, client, away, idle) = beside_an_idle_one();
    // One try before anything has left, one after it, and two in vain after a survey.
    world.out_of_memory = 4;
    world.pin_call(client, 1, &[away]);
    world.run_until_idle();
    assert_eq!((answer(&world, client, 1), world.read(client, away)), (Some(&None), 7));
    assert_eq!((tier(&world, idle), tries(&world)), (Tier::Host, (4, 4)));
}

#[test]
fn pin_is_refused_if_nothing_is_left_to_evict() {
    let (mut world, client, away, idle) = beside_an_idle_one();
    world.out_of_memory = 5;
    world.pin_call(client, 1, &[away]);
    world.run_until_idle();
    assert!(is_full(answer(&world, client, 1)), "{:?}", answer(&world, client, 1));
    assert_eq!((tier(&world, idle), tries(&world)), (Tier::Host, (5, 4)));
    world.pin_call(client, 2, &[away]);
    world.run_until_idle();
    assert_eq!((answer(&world, client, 2), world.read(client, away)), (Some(&None), 7), "nothing is lost");
}

#[test]
fn pin_waits_for_memory_that_other_programs_have() {
    let mut world = tiers(8, 8);
    let client = world.open_pinning("a");
    let away = part(world.allocate(client, spec(4)).expect("room"), 0);
    evict(&mut world, away);
    world.other_programs = Bytes::mib(6);
    world.out_of_memory = 1;
    world.pin_call(client, 1, &[away]);
    world.run_until_idle();
    assert_eq!((answer(&world, client, 1), tries(&world)), (None, (1, 0)));
    world.other_programs = Bytes::ZERO;
    let next = Limits::default().survey_interval.as_micros();
    world.advance(u64::try_from(next).expect("it is short"));
    world.run_until_idle();
    assert_eq!((answer(&world, client, 1), tries(&world)), (Some(&None), (1, 1)));
}

#[test]
fn driver_without_memory_is_asked_once_per_departure() {
    let mut world = tiers(32, 64);
    let [client, other] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let away: Vec<_> = (0..3).map(|_| part(world.allocate(client, spec(4)).expect("room"), 0)).collect();
    for part in &away {
        evict(&mut world, *part);
    }
    let idle: Vec<_> = (0..4).map(|_| part(world.allocate(other, spec(4)).expect("room"), 0)).collect();
    world.out_of_memory = 1000;
    world.pin_call(client, 1, &away);
    world.run_until_idle();
    assert!(is_full(answer(&world, client, 1)), "{:?}", answer(&world, client, 1));
    assert!(idle.iter().all(|part| tier(&world, *part) == Tier::Host), "all that could go went");
    let (failed, again) = tries(&world);
    assert!(failed <= away.len() * (4 + idle.len()) && again < failed, "{failed} and {again}");
    assert_eq!(charged(&world), mib(0, 28));
}

#[test]
fn guaranteed_waiter_is_not_tried_at_once_either() {
    let (mut world, client, away, _) = beside_an_idle_one();
    world.operate(set_quota("a", 4, 8)).expect("there is room for it");
    world.out_of_memory = 1000;
    world.pin_call(client, 1, &[away]);
    world.run_until_idle();
    assert!(is_full(answer(&world, client, 1)), "{:?}", answer(&world, client, 1));
    assert!(tries(&world).0 <= 5, "{:?}", tries(&world));
}

#[test]
fn batch_is_undone_and_created_again_with_or_without_a_wait() {
    for wait in [0, 1_000_000] {
        let (mut world, client, _, idle) = beside_an_idle_one();
        world.out_of_memory = 1;
        let call = batch(&mut world, client, 4, wait);
        world.run_until_idle();
        assert!(world.replies[&call].is_ok(), "{:?}", world.replies[&call]);
        assert_eq!((tier(&world, idle), tries(&world), world.charged()), (Tier::Host, (1, 1), Bytes::mib(4)));
    }
}

#[test]
fn batch_without_anything_to_evict_waits_only_with_a_wait_time() {
    let (mut world, client, filler) = all_in_use();
    world.out_of_memory = 1;
    let call = batch(&mut world, client, 4, 0);
    world.run_until_idle();
    assert_eq!((refused(&world, call), tries(&world)), (Some(Reason::DeviceFull), (1, 0)));

    world.out_of_memory = 1;
    let call = batch(&mut world, client, 4, 1_000_000);
    world.run_until_idle();
    assert!(!world.replies.contains_key(&call) && world.broker.waits().len() == 1);
    world::moving::empty(&mut world, client, filler);
    assert!(world.replies[&call].is_ok(), "{:?}", world.replies[&call]);
    assert_eq!(tries(&world), (2, 1));
}

/// A device of 8 MiB of which half is pinned.
fn all_in_use() -> (World, Client, AllocationId) {
    let mut world = tiers(8, 16);
    let client = world.open_pinning("a");
    let filler = fill(&mut world, client, spec(4));
    (world, client, filler)
}

#[test]
fn waiting_batch_is_refused_when_its_time_is_over() {
    let (mut world, client, _) = all_in_use();
    world.out_of_memory = 1;
    let call = batch(&mut world, client, 4, 1_000_000);
    world.run_until_idle();
    world.advance(999_000);
    assert_eq!((refused(&world, call), tries(&world)), (None, (1, 0)));
    world.advance(1_000);
    assert_eq!(refused(&world, call), Some(Reason::DeviceFull));
}

#[test]
fn waiting_batch_is_tried_again_after_a_survey() {
    let (mut world, client, _) = all_in_use();
    world.out_of_memory = 9;
    let call = batch(&mut world, client, 4, 60_000_000);
    world.run_until_idle();
    for tried in 1..=9 {
        assert_eq!((tries(&world).0, refused(&world, call)), (tried, None), "as often as it is looked at");
        until_looked_at(&mut world);
    }
    assert!(world.replies[&call].is_ok(), "{:?}", world.replies[&call]);
}

/// The time passes until the next regular survey.
fn until_looked_at(world: &mut World) {
    let next = Limits::default().survey_interval.as_micros();
    world.advance(u64::try_from(next).expect("it is short"));
    world.run_until_idle();
}

#[test]
fn capacity_is_what_the_driver_had_until_a_survey() {
    let mut config = config(&[Bytes::mib(64)]);
    config.devices[0].host = Bytes::mib(64);
    let mut world = World::with(config, StoredQuotas::default());
    let client = world.open_pinning("a");
    let filler = fill(&mut world, client, spec(4));
    world.out_of_memory = 1;
    batch(&mut world, client, 8, 1_000_000);
    let capacity = |world: &World| world.broker.devices()[0].capacity;
    // The first of its two parts could not be made, while the second is being.
    world.work_once();
    assert_eq!(capacity(&world), Bytes::mib(4 + 4 + 2));
    world.run_until_idle();
    assert_eq!(capacity(&world), Bytes::mib(64));
    world::moving::empty(&mut world, client, filler);
    assert_eq!(world.charged(), Bytes::mib(8));
}

/// Of its two parts the first is made each time, and undone again.
#[test]
fn undone_extents_of_a_batch_are_not_room_made_for_it() {
    let mut world = tiers(16, 16);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    for _ in 0..100 {
        world.fail_creates.extend([None, Some(CreateError::OutOfMemory)]);
    }
    let does_not_wait = batch(&mut world, a, 8, 0);
    world.run_until_idle();
    assert_eq!((tries(&world).0, refused(&world, does_not_wait)), (1, Some(Reason::DeviceFull)));
    let call = batch(&mut world, a, 8, 12_000_000);
    world.run_until_idle();
    for looks in 1..=2 {
        assert_eq!((tries(&world).0, refused(&world, call)), (1 + looks * 4, None), "that is enough for now");
        assert_eq!((charged(&world), world.broker.waits().len()), (mib(0, 0), 1));
        until_looked_at(&mut world);
    }
    world.advance(2_000_000);
    world.run_until_idle();
    assert_eq!((tries(&world).0, refused(&world, call)), (13, Some(Reason::DeviceFull)), "its time is over");
    assert_eq!((charged(&world), world.broker.waits().len()), (mib(0, 0), 0));
    world.fail_creates.clear();
    for client in [a, b] {
        world.allocate(client, spec(4)).expect("there is memory again");
    }
}
