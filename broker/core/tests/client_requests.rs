//! The paths that a client can take through the broker, each to its end.

use crate::world;

use crate::world::{World, config, key, named, persistent, spec};
use broker_core::{
    AllocationState, ClientFrame, ClientRequest, CreateError, DaemonFrame, Event, OperatorRequest, PartRef,
    Refusal, Reply, SessionState, StoredQuotas, Target, UnmappedPart,
};
use vramd_types::{AllocationId, Bytes, PartIndex, Reason, SessionId};

fn by_name(name: &str) -> Target {
    Target::Name(name.to_owned())
}

#[test]
fn client_allocates_seals_attaches_and_frees() {
    let mut world = World::new(64);
    let writer = world.open("a");
    let id = world.sealed(writer, persistent(10, "llama"));
    let view = world.broker.show(&Target::Id(id)).expect("there");
    assert_eq!((view.state, view.parts.len(), view.charged), (AllocationState::Sealed, 3, Bytes::mib(10)));
    assert_eq!(view.digest, Some([7; 32]));

    let reader = world.open("a");
    world.call(reader, ClientRequest::Attach(by_name("llama"))).expect("attached");
    assert_eq!(world.mapped[&reader.channel].len(), 3);

    let counts = world.broker.counts();
    assert_eq!(counts.allocations, [(AllocationState::Sealed, 1)].into());
    assert_eq!(counts.allocations_by_tenant, [("a".to_owned(), 1)].into());
    assert_eq!(counts.sessions, [(SessionState::Live, 2)].into());

    let freed = world.call(writer, ClientRequest::FreeBatch(vec![id])).expect("freed");
    assert_eq!(world.broker.counts().allocations, [(AllocationState::Freeing, 1)].into());
    let Reply::Released(items) = freed else { panic!("{freed:?}") };
    let released = items[0].1.as_ref().expect("freed");
    assert_eq!((released.still_charged, released.mappers), (Bytes::mib(10), 1), "the reader maps it");
    let gone = world.call(reader, ClientRequest::Attach(by_name("llama"))).expect_err("freed");
    assert_eq!(gone.reason(), Reason::AllocationNotFound);

    world.call(reader, ClientRequest::Detach(vec![id])).expect("detached");
    assert_eq!((world.charged(), world.broker.node().allocations), (Bytes::ZERO, 0));
    assert_eq!(world.broker.counts().allocations, [].into());
}

#[test]
fn batch_is_all_or_nothing() {
    let mut world = World::new(20);
    let client = world.open("a");
    let batch = ClientRequest::allocate(vec![spec(8), spec(8), spec(8)]);
    let refused = world.call(client, batch).expect_err("too much");
    let Refusal::DeviceFull { free, requested: asked, why, .. } = refused else { panic!("{refused:?}") };
    assert_eq!((free, asked), (Bytes::mib(20), Bytes::mib(24)));
    assert_eq!(why, broker_core::FullBecause::TooSmall { capacity: Bytes::mib(20) });
    assert_eq!((world.charged(), world.broker.node().allocations), (Bytes::ZERO, 0));
}

#[test]
fn one_failed_extent_undoes_the_batch() {
    let mut world = World::new(64);
    let client = world.open("a");
    for (error, reason) in [
        (CreateError::OutOfMemory, Reason::DeviceFull),
        (CreateError::Failed("broken".to_owned()), Reason::DriverFailed),
    ] {
        world.fail_creates = [None, None, Some(error), None].into();
        let refused = world.call(client, ClientRequest::allocate(vec![spec(8), spec(8)])).expect_err("fails");
        assert_eq!(refused.reason(), reason);
        assert_eq!((world.charged(), world.broker.node().allocations), (Bytes::ZERO, 0));
    }
}

#[test]
fn readers_see_sealed_memory_and_other_tenants_never() {
    let mut world = World::new(64);
    let (writer, reader, stranger) = (world.open("a"), world.open("b"), world.open("c"));
    let mut shared = named(4, "llama");
    shared.readers = vec!["b".to_owned()];
    let id = world.allocate(writer, shared).expect("room");
    let attach = || ClientRequest::Attach(by_name("a/llama"));
    assert_eq!(world.call(reader, attach()).expect_err("open").reason(), Reason::NotSealed);
    assert_eq!(world.call(stranger, attach()).expect_err("hidden").reason(), Reason::AllocationNotFound);
    world.call(writer, ClientRequest::Seal(id)).expect("sealed");
    world.call(reader, attach()).expect("a reader");
    assert_eq!(world.call(stranger, attach()).expect_err("hidden").reason(), Reason::AllocationNotFound);
    for foreign in [ClientRequest::FreeBatch(vec![id]), ClientRequest::Detach(vec![id])] {
        let Ok(Reply::Released(items)) = world.call(stranger, foreign) else { panic!("a batch answers") };
        assert_eq!(items[0].1.as_ref().expect_err("hidden").reason(), Reason::AllocationNotFound);
    }
    assert_eq!(world.charged_to("a"), Bytes::mib(4));
    assert_eq!(world.charged_to("b"), Bytes::ZERO, "the owner's tenant pays");
}

#[test]
fn name_is_replaced_at_the_seal() {
    let mut world = World::new(64);
    let client = world.open("a");
    let old = world.sealed(client, persistent(4, "llama"));
    let taken = world.allocate(client, persistent(4, "llama")).expect_err("taken");
    assert_eq!(taken.reason(), Reason::NameTaken);
    let mut newer = persistent(6, "llama");
    newer.replace = true;
    let new = world.allocate(client, newer).expect("may replace");
    let view = |world: &World| world.broker.show(&by_name("a/llama")).expect("named").id;
    assert_eq!(view(&world), old);
    world.call(client, ClientRequest::Seal(new)).expect("sealed");
    assert_eq!(view(&world), new);
    assert_eq!(world.charged_to("a"), Bytes::mib(10), "the writer maps the old one still");
    world.call(client, ClientRequest::Detach(vec![old])).expect("detached");
    assert_eq!(world.charged_to("a"), Bytes::mib(6));
}

#[test]
fn only_sealed_persistent_memory_outlives_its_session() {
    let mut world = World::new(64);
    let client = world.open("a");
    world.sealed(client, persistent(4, "stays"));
    world.sealed(client, named(4, "session"));
    world.allocate(client, persistent(4, "unsealed")).expect("room");
    world.end_process(client);
    assert_eq!(world.charged_to("a"), Bytes::mib(4));
    let heir = world.open("a");
    let id = world.broker.show(&by_name("a/stays")).expect("stays").id;
    world.call(heir, ClientRequest::FreeBatch(vec![id])).expect("any session of the tenant may");
    assert_eq!(world.charged(), Bytes::ZERO);
}

#[test]
fn unmappable_part_has_no_mapper() {
    let mut world = World::new(64);
    let client = world.open("a");
    world.stopped.insert(client.channel);
    let id = world.allocate(client, spec(4)).expect("made");
    let part = PartRef { allocation: id, part: PartIndex(0) };
    let unmapped = UnmappedPart { part, failure: Some("no descriptors".to_owned()), written: false };
    world.event(Event::Frame { channel: client.channel, frame: ClientFrame::Unmapped(vec![unmapped]) });
    assert_eq!(world.broker.show(&Target::Id(id)).expect("there").mapper_count, 0);
    world.stopped.clear();
    world.inboxes.clear();
    world.call(client, ClientRequest::Attach(Target::Id(id))).expect("its owner may try again");
    assert_eq!(world.mapped[&client.channel].len(), 1);
}

#[test]
fn unreturned_memory_stays_charged() {
    let mut world = World::new(64);
    let (writer, reader) = (world.open("a"), world.open("b"));
    let mut shared = named(4, "x");
    shared.readers = vec!["*".to_owned()];
    let id = world.sealed(writer, shared);
    world.call(reader, ClientRequest::Attach(by_name("a/x"))).expect("attached");
    world.still_open.insert(vramd_types::ExtentId::from_raw((1 << 40) + 1));
    world.end_process(reader);
    world.call(writer, ClientRequest::FreeBatch(vec![id])).expect("freed");
    assert_eq!(
        (world.charged_to("a"), world.charged_to("b")),
        (Bytes::mib(2), Bytes::mib(2)),
        "both were sent it"
    );
    let device = &world.broker.devices()[0];
    assert_eq!((device.unreturned, device.charged), (Bytes::mib(4), Bytes::mib(4)));
    let extent = *world.still_open.first().expect("one");
    world.event(Event::Completion(broker_core::Completion::Returned { extent }));
    assert_eq!((world.charged(), world.broker.node().allocations), (Bytes::ZERO, 0));
}

#[test]
fn repeated_requests_do_nothing_twice() {
    let mut world = World::new(64);
    let client = world.open("a");
    let allocate = || ClientRequest::allocate(vec![spec(4)]);
    let (first, second) =
        (world.start(client, key(1, 1), allocate()), world.start(client, key(1, 1), allocate()));
    world.run_until_idle();
    let third = world.start(client, key(1, 1), allocate());
    let ids: Vec<_> = [first, second, third]
        .iter()
        .map(|call| match &world.replies[call] {
            Ok(Reply::Allocated(views)) => views[0].id,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]));
    assert_eq!(world.charged(), Bytes::mib(4));
    let other = world.start(client, key(1, 2), allocate());
    assert_eq!(world.replies[&other].as_ref().expect_err("reused").reason(), Reason::RequestIdReused);
}

#[test]
fn calls_come_from_the_sessions_process() {
    let mut world = World::new(64);
    let client = world.open("a");
    let attempt = |world: &mut World, session: u64, pid: u32| {
        let forged = world::Client { session: SessionId::from_raw(session), pid, ..client };
        world.call(forged, ClientRequest::allocate(vec![spec(2)])).expect_err("refused").reason()
    };
    let own = client.session.get();
    assert_eq!(attempt(&mut world, own, client.pid + 1), Reason::SessionForeign);
    assert_eq!(attempt(&mut world, 0, client.pid), Reason::SessionMissing);
    assert_eq!(attempt(&mut world, own + 1, client.pid), Reason::SessionNotFound);
    assert_eq!(attempt(&mut world, 5, client.pid), Reason::SessionNotFound);
    assert_eq!(world.charged(), Bytes::ZERO);
}

#[test]
fn bad_requests_change_nothing() {
    let mut world = World::with(config(&[Bytes::mib(64), Bytes::mib(64)]), StoredQuotas::default());
    let (channel, answer) = world.hello("a", 9, Some(vec!["GPU-0".to_owned(), "GPU-9".to_owned()]));
    let DaemonFrame::Welcome { session, .. } = answer else { panic!("{answer:?}") };
    let client = world::Client { channel, session, pid: 9 };
    let bad = |change: fn(&mut broker_core::AllocationSpec)| {
        let mut spec = spec(4);
        change(&mut spec);
        spec
    };
    for (spec, reason) in [
        (bad(|s| s.size = Bytes::ZERO), Reason::SizeInvalid),
        (bad(|s| s.size = Bytes::MAX), Reason::SizeInvalid),
        (bad(|s| s.part_size = Some(Bytes::ZERO)), Reason::PartSizeInvalid),
        (bad(|s| s.part_size = Some(Bytes::new(4096))), Reason::PartSizeInvalid),
        (bad(|s| s.size = Bytes::gib(1024)), Reason::DeviceFull),
        (bad(|s| s.device = Some("7".to_owned())), Reason::DeviceUnknown),
        (bad(|s| s.device = Some("1".to_owned())), Reason::DeviceNotVisible),
        (bad(|s| s.name = Some(String::new())), Reason::NameInvalid),
        (bad(|s| s.name = Some("b/x".to_owned())), Reason::NameInvalid),
        (bad(|s| s.readers = vec!["no good".to_owned()]), Reason::NameInvalid),
        (bad(|s| s.lifetime = broker_core::Lifetime::Persistent), Reason::NameInvalid),
        (bad(|s| s.replace = true), Reason::RequestInvalid),
        (bad(|s| s.kind = broker_core::Kind::Fixed), Reason::KindUnsupported),
        (bad(|s| s.size = Bytes::mib(65)), Reason::DeviceFull),
    ] {
        let refused = world.allocate(client, spec.clone()).expect_err("bad");
        assert_eq!(refused.reason(), reason, "{spec:?}");
        for (fact, _) in refused.facts() {
            assert!(reason.facts().contains(&fact), "{reason} does not list {fact}");
        }
    }
    let empty = world.call(client, ClientRequest::allocate(vec![])).expect_err("empty");
    assert_eq!(empty.reason(), Reason::RequestInvalid);
    let twice = ClientRequest::allocate(vec![named(2, "x"), named(2, "x")]);
    assert_eq!(world.call(client, twice).expect_err("twice").reason(), Reason::NameTaken);
    assert_eq!((world.charged(), world.broker.node().allocations), (Bytes::ZERO, 0));
}

#[test]
fn tenant_with_pending_requests_keeps_no_other_from_being_served() {
    let mut base = config(&[Bytes::gib(1)]);
    base.limits.pending_requests_per_tenant_max = 2;
    base.limits.pending_requests_max = 3;
    let mut world = World::with(base, StoredQuotas::default());
    let (a, b, c) = (world.open("a"), world.open("b"), world.open("c"));
    let allocate = || ClientRequest::allocate(vec![spec(2)]);
    // All places are taken when `c` comes. It has one of its own, and then no other.
    let calls: Vec<_> =
        [a, a, a, b, c, c].into_iter().map(|client| world.start(client, None, allocate())).collect();
    let full: Vec<_> = calls
        .iter()
        .map(|call| world.replies.get(call).map(|reply| reply.as_ref().expect_err("full").reason()))
        .collect();
    assert_eq!(full, [None, None, Some(Reason::QueueFull), None, None, Some(Reason::QueueFull)]);
    world.operate(OperatorRequest::Drain { draining: false }).expect("operators have places of their own");
    world.run_until_idle();
    world.call(c, allocate()).expect("there is room again");
}

/// Found by the simulator: a part that waited to be sent was sent after it was freed, and stayed mapped and
/// charged.
#[test]
fn part_freed_before_it_was_sent_is_never_sent() {
    let mut base = config(&[Bytes::mib(100)]);
    base.limits.fds_in_flight_max = 1;
    let mut world = World::with(base, StoredQuotas::default());
    let (owner, reader) = (world.open("a"), world.open("a"));
    let id = world.sealed(owner, persistent(4, "x"));
    world.call(owner, ClientRequest::Detach(vec![id])).expect("detached");
    world.stopped.extend([owner.channel, reader.channel]);
    world.start(owner, None, ClientRequest::allocate(vec![spec(4)]));
    world.run_until_idle();
    world.start(reader, None, ClientRequest::Attach(by_name("a/x")));
    let freed = world.operate(OperatorRequest::FreeAllocation(by_name("a/x"))).expect("freed");
    let Reply::AllocationFreed { still_charged, mappers, .. } = freed else { panic!("{freed:?}") };
    assert_eq!((still_charged, mappers), (Bytes::ZERO, vec![]));
    world.stopped.clear();
    world.run_until_idle();
    assert_eq!(world.mapped.get(&reader.channel), None, "nothing was sent to the reader");
    assert_eq!(world.charged(), Bytes::mib(4));
}

/// Found by a walk: parts that were only queued were forgotten at the session's end, and never given back.
#[test]
fn part_freed_before_it_was_sent_is_released_with_its_session() {
    let mut base = config(&[Bytes::mib(100)]);
    base.limits.fds_in_flight_max = 1;
    let mut world = World::with(base, StoredQuotas::default());
    let (busy, client) = (world.open("a"), world.open("a"));
    world.stopped.insert(busy.channel);
    world.allocate(busy, spec(4)).expect("takes the only descriptor");
    let id = world.allocate(client, spec(8)).expect("queued");
    world.operate(OperatorRequest::FreeAllocation(Target::Id(id))).expect("freed");
    world.operate(OperatorRequest::EndSession { session: client.session, kill: false }).expect("ended");
    assert_eq!(world.charged(), Bytes::mib(4));
}

#[test]
fn room_is_kept_for_contexts() {
    let mut base = config(&[Bytes::mib(100)]);
    base.devices[0].context_bytes = Bytes::mib(5);
    base.sessions_reserved = 3;
    let mut world = World::with(base, StoredQuotas::default());
    let capacity = |world: &World| world.broker.devices()[0].capacity;
    assert_eq!(capacity(&world), Bytes::mib(80), "three clients and the broker");
    let device = vramd_types::DeviceIndex(0);
    let surveyed = broker_core::Completion::Surveyed {
        device,
        unbrokered: Bytes::mib(10),
        contexts: 7,
        host_missing: Bytes::ZERO,
    };
    world.event(Event::Completion(surveyed));
    assert_eq!(capacity(&world), Bytes::mib(50), "seven of them, the broker, and outsiders");
}

#[test]
fn fixed_memory_is_shared_inside_its_tenant_and_never_sealed() {
    let mut base = config(&[Bytes::mib(100)]);
    base.devices[0].makes_fixed = true;
    let mut world = World::with(base, StoredQuotas::default());
    let (one, two, stranger) = (world.open("a"), world.open("a"), world.open("b"));
    let mut fixed = named(9, "x");
    fixed.kind = broker_core::Kind::Fixed;
    let id = world.allocate(one, fixed.clone()).expect("room");
    assert_eq!(world.broker.show(&Target::Id(id)).expect("there").parts.len(), 1, "one block");
    world.call(two, ClientRequest::Attach(by_name("x"))).expect("the same tenant");
    let foreign = world.call(stranger, ClientRequest::Attach(by_name("a/x"))).expect_err("another tenant");
    assert_eq!(foreign.reason(), Reason::AllocationNotFound);
    assert_eq!(
        world.call(one, ClientRequest::Seal(id)).expect_err("fixed").reason(),
        Reason::KindUnsupported
    );
    fixed.name = None;
    fixed.readers = vec!["b".to_owned()];
    assert_eq!(world.allocate(one, fixed).expect_err("readers").reason(), Reason::RequestInvalid);
    world.call(one, ClientRequest::FreeBatch(vec![id])).expect("freed");
    assert_eq!(world.charged(), Bytes::mib(10), "the other session has it open");
    world.end_process(two);
    assert_eq!(world.charged(), Bytes::ZERO);
}

#[test]
fn seal_is_refused_if_its_writer_does_not_unmap() {
    let mut world = World::new(100);
    let client = world.open("a");
    let id = world.allocate(client, spec(8)).expect("room");
    world.stopped.insert(client.channel);
    let seal = world.start(client, None, ClientRequest::Seal(id));
    world.advance(11_000_000);
    assert_eq!(world.replies[&seal].as_ref().expect_err("not unmapped").reason(), Reason::StillMapped);
    world.stopped.clear();
    world.run_until_idle();
    assert_eq!(world.broker.show(&Target::Id(id)).expect("there").state, AllocationState::Sealed);
}

#[test]
fn repetitions_wait_like_the_first() {
    let mut base = config(&[Bytes::gib(1)]);
    base.limits.pending_requests_per_tenant_max = 4;
    let mut world = World::with(base, StoredQuotas::default());
    let (client, other) = (world.open("a"), world.open("b"));
    let allocate = || ClientRequest::allocate(vec![spec(2)]);
    let calls: Vec<_> = (0..6).map(|_| world.start(client, key(1, 1), allocate())).collect();
    let refused = calls.iter().filter(|call| world.replies.contains_key(call)).count();
    assert_eq!(refused, 2);
    world.call(other, allocate()).expect("no other session waits");
}

#[test]
fn node_has_a_bounded_number_of_extents() {
    let mut base = config(&[Bytes::gib(1)]);
    base.limits.extents_max = 5;
    let mut world = World::with(base, StoredQuotas::default());
    let client = world.open("a");
    world.allocate(client, spec(16)).expect("four parts");
    let refused = world.allocate(client, spec(8)).expect_err("six in all");
    assert_eq!(refused.reason(), Reason::AllocationsTooMany);
    world.allocate(client, spec(4)).expect("five");
}

/// Batches of thousands of refused items are remembered within a bound, at the cost of the session that makes them.
#[test]
fn remembered_outcomes_are_bounded_and_the_modest_keep_theirs() {
    let mut world = World::new(64);
    let (modest, greedy) = (world.open("a"), world.open("a"));
    let allocate = |world: &mut World, client| {
        let call = world.start(client, key(0, 0), ClientRequest::allocate(vec![spec(2)]));
        world.run_until_idle();
        match world.replies.remove(&call) {
            Some(Ok(Reply::Allocated(views))) => views[0].id,
            other => panic!("no allocation: {other:?}"),
        }
    };
    let (kept, forgotten) = (allocate(&mut world, modest), allocate(&mut world, greedy));
    assert_eq!(allocate(&mut world, greedy), forgotten, "the request is repeated");
    for id in 1..=40 {
        let unknown = (1..=4096).map(AllocationId::from_raw).collect();
        world.start(greedy, key(id, 0), ClientRequest::FreeBatch(unknown));
        world.replies.clear();
    }
    assert_eq!(allocate(&mut world, modest), kept);
    assert_ne!(allocate(&mut world, greedy), forgotten, "the request is new");
}
