//! Freed memory that stays charged to its tenant: which request gets it again, and what releases it.

use crate::world::{self, Client, World, config, named, persistent, set_quota, spec};
use broker_core::{
    AllocationSpec, CallId, ClientRequest, Command, Completion, Config, CreateError, Event, Notice,
    OperatorRequest, Reply, StoredQuotas, Target, Tier,
};
use vramd_types::{Bytes, DeviceIndex, Reason};

/// A node that caches up to this much for each tenant.
fn keeping(mib: u32, cached_mib: u32) -> Config {
    let mut config = config(&[Bytes::mib(mib)]);
    config.limits.cached_bytes_per_tenant_max = Bytes::mib(cached_mib);
    config
}

fn world(mib: u32, cached_mib: u32) -> World {
    World::with(keeping(mib, cached_mib), StoredQuotas::default())
}

fn old(mib: u32) -> AllocationSpec {
    AllocationSpec { uninitialized: true, ..spec(mib) }
}

fn free(world: &mut World, client: Client, spec: AllocationSpec) {
    let id = world.allocate(client, spec).expect("room");
    world.call(client, ClientRequest::FreeBatch(vec![id])).expect("freed");
}

fn cached(world: &World, tenant: &str) -> Bytes {
    let view = world.broker.quota(tenant, None, Tier::Device).expect("a tenant");
    view.in_force.expect("a present device").cached
}

/// Starts a request, and says whether the driver has to create something for it.
fn needs_making(world: &mut World, client: Client, spec: AllocationSpec) -> (CallId, bool) {
    let call = world.start(client, None, ClientRequest::allocate(vec![spec]));
    (call, world.work.iter().any(|work| matches!(work, Command::CreateExtent { .. })))
}

#[test]
fn freed_memory_comes_back_to_its_tenant_at_once() {
    let mut world = world(64, 64);
    let client = world.open("a");
    free(&mut world, client, spec(10));
    assert_eq!(
        (cached(&world, "a"), world.charged_to("a")),
        (Bytes::mib(10), Bytes::mib(10)),
        "still charged"
    );
    assert_eq!((world.broker.node().allocations, world.work.len()), (0, 0), "nothing is released");
    assert_eq!(world.broker.devices()[0].cached, Bytes::mib(10));

    let other = world.open("a");
    let (call, making) = needs_making(&mut world, other, old(10));
    assert!(!making && world.replies.contains_key(&call), "two parts of 4 MiB and one of 2, all there");
    assert_eq!((cached(&world, "a"), world.charged_to("a")), (Bytes::ZERO, Bytes::mib(10)));
    world.run_until_idle();
    assert_eq!(world.mapped[&other.channel].len(), 3);
}

#[test]
fn request_for_zeros_or_another_size_gets_new_memory() {
    let mut world = world(64, 64);
    let client = world.open("a");
    free(&mut world, client, spec(4));
    assert!(needs_making(&mut world, client, spec(4)).1, "it was promised zeros");
    world.run_until_idle();
    assert!(needs_making(&mut world, client, old(2)).1, "of that size there is none");
    world.run_until_idle();
    assert_eq!(cached(&world, "a"), Bytes::mib(4));
}

#[test]
fn cached_memory_never_goes_to_another_tenant() {
    let mut world = world(64, 64);
    let (client, other) = (world.open("a"), world.open("b"));
    free(&mut world, client, spec(4));
    assert!(needs_making(&mut world, other, old(4)).1);
    world.run_until_idle();
    assert_eq!((cached(&world, "a"), cached(&world, "b")), (Bytes::mib(4), Bytes::ZERO));
}

#[test]
fn extent_sent_to_a_reader_is_not_cached() {
    let mut world = world(64, 64);
    let (writer, reader) = (world.open("a"), world.open("b"));
    let id = world.sealed(writer, AllocationSpec { readers: vec!["b".to_owned()], ..named(4, "llama") });
    world.call(reader, ClientRequest::Attach(Target::Name("a/llama".to_owned()))).expect("a reader");
    world.call(reader, ClientRequest::Detach(vec![id])).expect("let go");
    world.call(writer, ClientRequest::FreeBatch(vec![id])).expect("freed");
    assert_eq!((cached(&world, "a"), world.charged()), (Bytes::ZERO, Bytes::ZERO));
}

#[test]
fn extent_without_unmap_answer_is_not_cached() {
    // The extents of a process that ends, of one whose channel ended first, and of one that left frames
    // unanswered in its socket.
    for way in 0..3 {
        let mut world = world(64, 64);
        let (client, heir) = (world.open("a"), world.open("a"));
        let id = world.sealed(client, persistent(4, "llama"));
        let name = || ClientRequest::Attach(Target::Name("llama".to_owned()));
        if way == 2 {
            world.stopped.insert(heir.channel);
        }
        world.call(heir, name()).expect("its tenant's");
        world.call(client, ClientRequest::FreeBatch(vec![id])).expect("freed");
        assert_eq!(world.charged(), Bytes::mib(4), "the other one maps it");
        if way == 1 {
            world.event(Event::ChannelEnded { channel: heir.channel });
        }
        world.end_process(heir);
        assert_eq!((cached(&world, "a"), world.charged()), (Bytes::ZERO, Bytes::ZERO), "way {way}");
    }
}

#[test]
fn extent_freed_with_its_session_is_cached_if_unmapped() {
    let mut world = world(64, 64);
    let client = world.open("a");
    let id = world.sealed(client, named(4, "llama"));
    world.call(client, ClientRequest::Detach(vec![id])).expect("let go");
    world.end_process(client);
    assert_eq!((cached(&world, "a"), world.broker.node().allocations), (Bytes::mib(4), 0));
}

#[test]
fn cache_stays_within_its_configured_maximum() {
    let mut world = world(64, 6);
    let client = world.open("a");
    free(&mut world, client, spec(10));
    assert_eq!(
        (cached(&world, "a"), world.charged()),
        (Bytes::mib(6), Bytes::mib(6)),
        "4 and 2 of 4, 4 and 2"
    );
    let mut off = self::world(64, 0);
    let client = off.open("a");
    free(&mut off, client, spec(10));
    assert_eq!(off.charged(), Bytes::ZERO);
}

#[test]
fn freed_extent_displaces_older_ones_of_another_size() {
    let mut world = world(64, 8);
    let client = world.open("a");
    free(&mut world, client, spec(2));
    free(&mut world, client, spec(6));
    assert_eq!(
        (cached(&world, "a"), world.charged_to("a")),
        (Bytes::mib(8), Bytes::mib(8)),
        "2, and 4 and 2"
    );
    let kept = |world: &World| world.notices.iter().filter(|it| matches!(it, Notice::Cached { .. })).count();
    let before = kept(&world);
    free(&mut world, client, spec(12));
    assert_eq!((cached(&world, "a"), world.charged_to("a")), (Bytes::mib(8), Bytes::mib(8)));
    assert_eq!(
        kept(&world),
        before + 1,
        "of three that are alike one finds room, and then none goes for another"
    );
    assert!(!needs_making(&mut world, client, old(8)).1, "both that are kept are of the usual size");
    world.run_until_idle();
}

#[test]
fn extent_too_large_for_the_cache_displaces_nothing() {
    let mut world = world(64, 3);
    let client = world.open("a");
    free(&mut world, client, spec(2));
    free(&mut world, client, spec(4));
    assert!(!needs_making(&mut world, client, old(2)).1);
    world.run_until_idle();
}

#[test]
fn fragmentation_is_counted() {
    let mut world = world(64, 64);
    let client = world.open("a");
    let odd = AllocationSpec { size: Bytes::new((9 << 20) + 1), ..spec(2) };
    let (first, second) =
        (world.allocate(client, odd.clone()).unwrap(), world.allocate(client, odd).unwrap());
    let beyond =
        |world: &World| -> Vec<_> { world.broker.counts().rounding.into_values().map(Bytes::get).collect() };
    assert_eq!(beyond(&world), [2 * ((1 << 20) - 1)], "each has two parts of 4 MiB and one of 2");
    world.call(client, ClientRequest::FreeBatch(vec![first])).expect("freed");
    let device = |world: &World| {
        let device = &world.broker.devices()[0];
        [device.cached, device.cached_smaller, device.cached_larger].map(|bytes| bytes.get() >> 20)
    };
    assert_eq!((beyond(&world), device(&world)), (vec![(1 << 20) - 1], [10, 2, 0]));
    world.call(client, ClientRequest::FreeBatch(vec![second])).expect("freed");
    let large = AllocationSpec { part_size: Some(Bytes::mib(8)), ..spec(8) };
    free(&mut world, client, large);
    assert_eq!((beyond(&world), device(&world)), (vec![], [28, 4, 8]));
}

#[test]
fn cached_extent_is_released_for_any_tenant_that_needs_room() {
    // A full device alone releases nothing.
    let mut config = keeping(16, 16);
    config.pressure.evict_to_percent = 100;
    let mut world = World::with(config, StoredQuotas::default());
    let (client, other) = (world.open("a"), world.open("b"));
    free(&mut world, client, spec(12));
    let call = world.start(other, None, ClientRequest::allocate(vec![spec(8)]));
    assert!(!world.replies.contains_key(&call), "it waits for the driver to let go");
    assert_eq!(cached(&world, "a"), Bytes::mib(8), "no more goes than must");
    world.run_until_idle();
    assert!(matches!(world.replies.remove(&call), Some(Ok(Reply::Allocated(_)))));
    assert_eq!((world.charged_to("a"), world.charged_to("b")), (Bytes::mib(8), Bytes::mib(8)));
    let third = world.open("c");
    let refused = world.allocate(third, spec(10)).expect_err("more than there could be");
    assert_eq!(refused.reason(), Reason::DeviceFull);
    assert_eq!(cached(&world, "a"), Bytes::mib(8), "an extent that would not help is left alone");
    world.allocate(third, spec(8)).expect("all there is");
    assert_eq!(world.charged_to("a"), Bytes::ZERO);
}

#[test]
fn cached_extents_do_not_reach_their_tenants_own_limit() {
    let mut world = world(64, 64);
    world.operate(set_quota("a", 0, 12)).expect("set");
    let client = world.open("a");
    free(&mut world, client, spec(12));
    world.allocate(client, spec(8)).expect("8 of 12");
    assert_eq!(world.charged_to("a"), Bytes::mib(12));
    // A cached extent that the batch reuses is not released for its other items.
    let batch = ClientRequest::allocate(vec![old(4), spec(2)]);
    assert_eq!(world.call(client, batch).expect_err("14 of 12").reason(), Reason::QuotaLimit);
    assert_eq!(cached(&world, "a"), Bytes::mib(4));
    world.allocate(client, old(4)).expect("12 of 12");
    assert_eq!((world.charged_to("a"), cached(&world, "a")), (Bytes::mib(12), Bytes::ZERO));
}

#[test]
fn cached_extents_are_released_to_back_a_guarantee() {
    let mut world = world(16, 16);
    let client = world.open("a");
    free(&mut world, client, spec(12));
    let refused = world.operate(set_quota("b", 20, 20)).expect_err("more than there is");
    assert_eq!(refused.reason(), Reason::GuaranteeUnbacked);
    assert_eq!(cached(&world, "a"), Bytes::mib(12));
    let first = world.start_operator(None, set_quota("b", 10, 16));
    let second = world.start_operator(None, set_quota("b", 12, 16));
    assert!(world.replies.is_empty(), "one waits for room and the other for the first");
    world.run_until_idle();
    assert!([first, second].iter().all(|call| matches!(world.replies[call], Ok(Reply::QuotaSet(_)))));
    assert_eq!(world.charged(), Bytes::mib(4), "and not a part more than must go");
}

#[test]
fn waiter_for_room_that_does_not_come_is_refused() {
    let mut world = world(16, 16);
    let (client, other) = (world.open("a"), world.open("b"));
    let id = world.allocate(client, spec(12)).expect("room");
    let call = world.start(client, None, ClientRequest::FreeBatch(vec![id]));
    world.run_until_idle();
    assert!(world.replies.remove(&call).is_some());
    let call = world.start(other, None, ClientRequest::allocate(vec![spec(16)]));
    let given_up: Vec<_> = world.work.iter().filter_map(released).collect();
    assert_eq!(given_up.len(), 3);
    world.still_open.extend(given_up);
    world.run_until_idle();
    let refused = world.replies.remove(&call).expect("an answer").expect_err("some process holds it");
    assert_eq!(refused.reason(), Reason::DeviceFull);
    assert_eq!(world.charged_to("a"), Bytes::mib(12), "unreturned, and charged to whom it was sent");
}

fn released(work: &Command) -> Option<vramd_types::ExtentId> {
    match work {
        Command::ReleaseExtent { extent } => Some(*extent),
        _ => None,
    }
}

#[test]
fn waiter_whose_session_ends_is_answered() {
    let mut world = world(16, 16);
    let (client, other) = (world.open("a"), world.open("b"));
    free(&mut world, client, spec(12));
    let call = world.start(other, None, ClientRequest::allocate(vec![spec(16)]));
    world.end_process(other);
    assert_eq!(world.replies.remove(&call).expect("told").expect_err("gone").reason(), Reason::SessionLost);
    assert_eq!(world.charged(), Bytes::ZERO);
}

#[test]
fn failed_batch_returns_its_cached_extents() {
    let mut world = world(64, 64);
    let client = world.open("a");
    free(&mut world, client, spec(4));
    world.fail_creates = [Some(CreateError::Failed("broken".to_owned()))].into();
    let batch = ClientRequest::allocate(vec![old(4), spec(4)]);
    world.call(client, batch).expect_err("the second one fails");
    assert_eq!((cached(&world, "a"), world.charged_to("a")), (Bytes::mib(4), Bytes::mib(4)));
    world.fail_creates = [Some(CreateError::OutOfMemory)].into();
    world.allocate(client, spec(4)).expect("the next try finds what was cached");
    assert_eq!((cached(&world, "a"), world.charged_to("a")), (Bytes::ZERO, Bytes::mib(4)));
}

#[test]
fn cached_extents_do_not_count_against_the_maximum() {
    let mut base = keeping(64, 64);
    base.limits.extents_max = 3;
    let mut world = World::with(base, StoredQuotas::default());
    let client = world.open("a");
    free(&mut world, client, spec(12));
    world.allocate(client, spec(8)).expect("room is made for two");
    assert_eq!(cached(&world, "a"), Bytes::mib(4));
    let refused = world.allocate(client, spec(8)).expect_err("four in all");
    assert_eq!(refused.reason(), Reason::AllocationsTooMany);
    world.allocate(client, old(4)).expect("the third");
}

#[test]
fn lowered_limit_and_drain_empty_the_cache() {
    let mut world = world(64, 64);
    let client = world.open("a");
    free(&mut world, client, spec(12));
    world.operate(set_quota("a", 0, 8)).expect("set");
    assert_eq!(world.charged_to("a"), Bytes::mib(8));
    world.operate(OperatorRequest::Drain { draining: true }).expect("drained");
    assert_eq!(world.charged(), Bytes::ZERO);
}

#[test]
fn cached_extents_make_up_for_memory_of_other_programs() {
    let mut world = world(16, 16);
    let client = world.open("a");
    free(&mut world, client, spec(12));
    let (device, unbrokered) = (DeviceIndex(0), Bytes::mib(10));
    world.event(Event::Completion(Completion::Surveyed {
        device,
        unbrokered,
        contexts: 0,
        host_missing: Bytes::ZERO,
    }));
    world.run_until_idle();
    assert_eq!(world.charged_to("a"), Bytes::mib(4));
    assert_eq!(world.broker.devices()[0].shortfall, Bytes::ZERO);
}

#[test]
fn tenant_without_sessions_keeps_its_cache_for_a_while() {
    let mut world = world(64, 64);
    let (client, other) = (world.open("a"), world.open("b"));
    free(&mut world, client, spec(4));
    free(&mut world, other, spec(4));
    world.advance(30_000_000);
    world.end_process(client);
    world.advance(29_000_000);
    assert_eq!(cached(&world, "a"), Bytes::mib(4));
    world.advance(1_000_000);
    world.run_until_idle();
    assert_eq!(
        (world.charged_to("a"), cached(&world, "b")),
        (Bytes::ZERO, Bytes::mib(4)),
        "a tenant with a session keeps it"
    );
    world.end_process(other);
    assert_eq!(world.charged(), Bytes::ZERO, "its time was over");
}

#[test]
fn cached_extent_expires_though_its_tenant_has_sessions() {
    let mut world = world(64, 64);
    let client = world.open("a");
    free(&mut world, client, spec(4));
    world.advance(200_000_000);
    free(&mut world, client, spec(8));
    world.advance(99_000_000);
    assert_eq!(cached(&world, "a"), Bytes::mib(12));
    world.advance(1_000_000);
    world.run_until_idle();
    assert_eq!((world.charged_to("a"), cached(&world, "a")), (Bytes::mib(8), Bytes::mib(8)), "the older one");
    // A reused extent is not idle.
    let again = world.allocate(client, old(8)).expect("it has it");
    world.advance(200_000_000);
    world.run_until_idle();
    assert_eq!(world.charged_to("a"), Bytes::mib(8));
    world.call(client, ClientRequest::FreeBatch(vec![again])).expect("freed");
    world.advance(300_000_000);
    world.run_until_idle();
    assert_eq!(world.charged_to("a"), Bytes::ZERO);
}

#[test]
fn later_waiter_waits_for_an_extent_that_is_leaving() {
    let mut world = world(16, 16);
    let (client, other) = (world.open("a"), world.open("b"));
    world.operate(set_quota("a", 0, 16)).expect("set");
    free(&mut world, client, spec(12));
    world.operate(OperatorRequest::Drain { draining: true }).expect("drained");
    assert_eq!(world.charged(), Bytes::ZERO);
    world.operate(OperatorRequest::Drain { draining: false }).expect("in service");
    free(&mut world, client, spec(12));
    // Released without a waiter, and not returned yet.
    world.start_operator(None, OperatorRequest::Drain { draining: true });
    world.start_operator(None, OperatorRequest::Drain { draining: false });
    assert_eq!((cached(&world, "a"), world.charged_to("a")), (Bytes::ZERO, Bytes::mib(12)));
    let own = world.start(client, None, ClientRequest::allocate(vec![spec(8)]));
    let others = world.start(other, None, ClientRequest::allocate(vec![spec(8)]));
    assert!(!world.replies.contains_key(&own) && !world.replies.contains_key(&others));
    world.run_until_idle();
    assert!([own, others].iter().all(|call| world.replies[call].is_ok()));
}

/// Found by the simulator: nothing further was returned that an operation would hear of, so its caller waited
/// for ever.
#[test]
fn free_during_a_hash_is_answered_though_older_memory_is_unreturned() {
    for steps in 0..8 {
        let mut config = config(&[Bytes::mib(8)]);
        config.devices[0].host = Bytes::mib(8);
        config.limits.cached_bytes_per_tenant_max = Bytes::mib(8);
        let mut world = World::with(config, StoredQuotas::default());
        let client = world.open_pinning("a");
        let part = world::revoking::part(world.allocate(client, spec(4)).expect("room"), 0);
        world.write(client, part, 7);
        world.still_open.insert(world.extents[&part]);
        world::moving::evict(&mut world, part);
        world.pin_call(client, 1, &[part]);
        world.run_until_idle();
        world.frame(client, broker_core::ClientFrame::PinEnded { call: 1 });
        world.start(client, None, ClientRequest::Seal(part.allocation));
        for _ in 0..steps {
            if !world.answer_once(client.channel) {
                world.work_once();
            }
        }
        let free = world.start(client, None, ClientRequest::FreeBatch(vec![part.allocation]));
        // Its other memory is returned before it has been hashed.
        if let Some(at) = world.work.iter().position(|work| matches!(work, Command::Digest { .. })) {
            let digest = world.work.remove(at).expect("it is there");
            world.work.push_back(digest);
        }
        world.run_until_idle();
        assert!(world.replies.contains_key(&free), "after {steps} steps");
    }
}

/// Found by the simulator: a batch passed an earlier waiter beyond its tenant's guarantee, by as much as it reused
/// of cached memory.
#[test]
fn reused_cached_memory_counts_against_the_guarantee() {
    let mut world = world(16, 64);
    let [first, second, third] = ["a", "b", "c"].map(|tenant| world.open(tenant));
    world.operate(set_quota("a", 4, 16)).expect("stored");
    free(&mut world, first, spec(4));
    world.allocate(third, spec(8)).expect("room");
    let wait = std::time::Duration::from_secs(1);
    let mut batch = |client, items| world.start(client, None, ClientRequest::AllocateBatch { items, wait });
    let earlier = batch(second, vec![spec(8)]);
    let later = batch(first, vec![old(8)]);
    world.run_until_idle();
    let answered = |call| world.replies.contains_key(&call);
    assert_eq!((answered(earlier), answered(later)), (false, false), "8 MiB are beyond its guarantee of 4");
}
