//! Orders for managed memory: the daemon orders its pages to the device or to the host, and the client executes that.

use broker_core::{
    Advice, AllocationSpec, ClientFrame, ClientRequest, Event, Kind, ManagedOrder, ManagedView, Notice,
    OperatorRequest, Refusal, Reply, Retention, Target, Tier,
};
use vramd_types::{AllocationId, Bytes, PartIndex, Reason};

use crate::world::{Client, World, moving::tiers, set_quota, spec};

fn charge(world: &mut World, client: Client, mib: u32) -> AllocationId {
    world.allocate(client, AllocationSpec { kind: Kind::Managed, ..spec(mib) }).expect("room")
}

fn evict(world: &mut World, client: Client, id: AllocationId) {
    let reply = world.call(client, ClientRequest::Evict(id, Tier::Host)).expect("ordered");
    assert!(
        matches!(&reply, Reply::PartsMoved { allocation, parts } if *allocation == id && parts.is_empty()),
        "{reply:?}"
    );
}

const fn to_device(id: AllocationId) -> ClientRequest {
    let change = Retention::Location(Some(Tier::Device));
    ClientRequest::Advise(id, Advice::Retain { parts: None, change })
}

/// The batches that a client has got since the last look.
fn taken(world: &mut World, client: Client) -> Vec<(u64, Vec<(AllocationId, Tier)>)> {
    let batches = world.managed_orders.remove(&client.channel).unwrap_or_default();
    let plain = |orders: Vec<ManagedOrder>| orders.into_iter().map(|it| (it.allocation, it.to)).collect();
    batches.into_iter().map(|(number, orders)| (number, plain(orders))).collect()
}

fn done(world: &mut World, client: Client, number: u64, failed: &[AllocationId]) {
    let failed = failed.iter().map(|id| (*id, "no such call".to_owned())).collect();
    world.frame(client, ClientFrame::ManagedOrdersDone { number, failed });
}

/// Has the client execute the one batch that it got.
fn execute(world: &mut World, client: Client) {
    let batches = taken(world, client);
    let [(number, _)] = batches[..] else { panic!("{batches:?}") };
    done(world, client, number, &[]);
}

fn shown(world: &World, id: AllocationId) -> (Option<Tier>, Option<Tier>) {
    let view = world.broker.show(&Target::Id(id)).expect("there");
    let ManagedView { ordered, under_way } = view.managed.expect("managed");
    assert_eq!(view.resident, Bytes::ZERO, "ordered is not resident");
    (ordered, under_way)
}

/// The bytes of a tenant that are charged, ordered on the device and ordered on the host.
fn sums(world: &World, tenant: &str) -> [Bytes; 3] {
    let quota = world.broker.quota(tenant, None, Tier::Device).expect("a quota");
    let managed = quota.in_force.expect("of a device").managed;
    [managed.charged, managed.on_device, managed.on_host]
}

#[test]
fn order_counts_once_it_is_executed() {
    let mut world = World::new(100);
    let client = world.open("a");
    let id = charge(&mut world, client, 8);
    assert_eq!(shown(&world, id), (None, None));
    evict(&mut world, client, id);
    assert_eq!(shown(&world, id), (None, Some(Tier::Host)));
    assert_eq!(sums(&world, "a"), [Bytes::mib(8), Bytes::ZERO, Bytes::ZERO]);
    execute(&mut world, client);
    assert_eq!(shown(&world, id), (Some(Tier::Host), None));
    assert_eq!(sums(&world, "a"), [Bytes::mib(8), Bytes::ZERO, Bytes::mib(8)]);
    assert_eq!(world.charged(), Bytes::mib(8), "faults may bring it back: its charge stays");

    assert!(matches!(world.call(client, to_device(id)), Ok(Reply::Advised(_))));
    assert_eq!(shown(&world, id), (None, Some(Tier::Device)), "it may be on its way");
    execute(&mut world, client);
    assert_eq!(shown(&world, id), (Some(Tier::Device), None));
    assert_eq!(sums(&world, "a"), [Bytes::mib(8), Bytes::mib(8), Bytes::ZERO]);
    world.call(client, ClientRequest::FreeBatch(vec![id])).expect("freed");
    assert_eq!(sums(&world, "a"), [Bytes::ZERO; 3]);
}

#[test]
fn orders_wait_for_the_last_batch_and_leave_together() {
    let mut world = World::new(100);
    let (client, other) = (world.open("a"), world.open("b"));
    let ids: Vec<_> = (0..4).map(|_| charge(&mut world, client, 4)).collect();
    let foreign = charge(&mut world, other, 4);
    ids.iter().for_each(|id| evict(&mut world, client, *id));
    // Another session's are not held up.
    evict(&mut world, other, foreign);
    assert_eq!(taken(&mut world, other)[0].1, [(foreign, Tier::Host)]);
    // The first has left already; the third is replaced, and the second is called back before it has left.
    world.call(client, to_device(ids[2])).expect("ordered");
    let batches = taken(&mut world, client);
    assert_eq!(batches.len(), 1);
    assert_eq!(batches[0].1, [(ids[0], Tier::Host)]);
    done(&mut world, client, batches[0].0, &[]);
    let batches = taken(&mut world, client);
    let expected = [(ids[1], Tier::Host), (ids[2], Tier::Device), (ids[3], Tier::Host)];
    assert_eq!(batches[0].1, expected);
    done(&mut world, client, batches[0].0, &[]);
    assert!(taken(&mut world, client).is_empty());
    assert_eq!(sums(&world, "a"), [Bytes::mib(16), Bytes::mib(4), Bytes::mib(12)]);
}

#[test]
fn order_back_to_where_one_is_under_way_adds_none() {
    let mut world = World::new(100);
    let client = world.open("a");
    let id = charge(&mut world, client, 8);
    evict(&mut world, client, id);
    world.call(client, to_device(id)).expect("ordered");
    assert_eq!(shown(&world, id), (None, Some(Tier::Device)));
    evict(&mut world, client, id);
    assert_eq!(shown(&world, id), (None, Some(Tier::Host)));
    execute(&mut world, client);
    assert!(taken(&mut world, client).is_empty(), "the order to the device was replaced");
    assert_eq!(shown(&world, id), (Some(Tier::Host), None));
}

#[test]
fn answer_counts_for_its_own_order() {
    let mut world = World::new(100);
    let client = world.open("a");
    let id = charge(&mut world, client, 8);
    world.call(client, to_device(id)).expect("ordered");
    evict(&mut world, client, id);
    execute(&mut world, client);
    assert_eq!(shown(&world, id), (Some(Tier::Device), Some(Tier::Host)));
    execute(&mut world, client);
    assert_eq!(shown(&world, id), (Some(Tier::Host), None));
}

#[test]
fn failed_order_leaves_the_place_unknown() {
    let mut world = World::new(100);
    let client = world.open("a");
    let (id, other) = (charge(&mut world, client, 8), charge(&mut world, client, 4));
    for id in [id, other] {
        evict(&mut world, client, id);
        execute(&mut world, client);
    }
    world.call(client, to_device(id)).expect("ordered");
    let (number, _) = taken(&mut world, client)[0].clone();
    done(&mut world, client, number, &[id]);
    assert_eq!(shown(&world, id), (None, None), "some of its pages may have moved");
    assert_eq!(shown(&world, other), (Some(Tier::Host), None));
    let failed = |notice: &&Notice| matches!(notice, Notice::ManagedOrderEnded { problem: Some(_), .. });
    assert_eq!(world.notices.iter().filter(failed).count(), 1);
}

#[test]
fn lowered_limit_keeps_memory_on_the_host() {
    let mut world = World::new(100);
    let client = world.open("a");
    let ids = [charge(&mut world, client, 20), charge(&mut world, client, 20)];
    for id in ids {
        evict(&mut world, client, id);
        execute(&mut world, client);
    }
    world.operate(set_quota("a", 0, 30)).expect("stored");
    world.call(client, to_device(ids[0])).expect("20 of 30 MiB");
    let refused = world.call(client, to_device(ids[1])).expect_err("40 of 30 MiB");
    assert!(
        matches!(refused, Refusal::QuotaLimit { charged, requested, limit, .. }
            if (charged, requested, limit) == (Bytes::mib(20), Bytes::mib(20), Bytes::mib(30))),
        "{refused:?}"
    );
    execute(&mut world, client);
    world.operate(set_quota("a", 0, 10)).expect("stored");
    let refused = world.call(client, to_device(ids[0])).expect_err("it is beyond the limit where it is");
    assert_eq!(refused.reason(), Reason::QuotaLimit);
    evict(&mut world, client, ids[0]);
    assert_eq!(sums(&world, "a"), [Bytes::mib(40), Bytes::mib(20), Bytes::mib(20)]);
}

#[test]
fn operators_order_it_as_a_whole() {
    let mut world = tiers(64, 64);
    let client = world.open_pinning("a");
    let id = charge(&mut world, client, 8);
    let order = |parts, tier| OperatorRequest::MoveParts { target: Target::Id(id), parts, tier };
    world.operate(order(Vec::new(), Tier::Host)).expect("ordered");
    execute(&mut world, client);
    assert_eq!(shown(&world, id), (Some(Tier::Host), None));
    world.operate(order(Vec::new(), Tier::Device)).expect("ordered");
    execute(&mut world, client);
    assert_eq!(shown(&world, id), (Some(Tier::Device), None));
    let refused = world.operate(order(vec![PartIndex(0)], Tier::Host)).expect_err("it has no parts");
    assert_eq!(refused.reason(), Reason::RequestInvalid);
    let refused = world.operate(order(Vec::new(), Tier::Disk)).expect_err("of the driver alone");
    assert!(matches!(refused, Refusal::TierUnsupported { tier: Tier::Disk }), "{refused:?}");
}

#[test]
fn only_its_session_and_operators_order_it() {
    let mut world = World::new(100);
    let (client, other) = (world.open("a"), world.open("a"));
    let id = charge(&mut world, client, 8);
    for request in [ClientRequest::Evict(id, Tier::Host), to_device(id)] {
        let refused = world.call(other, request).expect_err("another session's");
        assert!(matches!(refused, Refusal::NotOwner { .. }), "{refused:?}");
    }
}

#[test]
fn old_client_gets_no_order() {
    let mut world = World::new(100);
    world.takes_orders = false;
    let client = world.open("a");
    let id = charge(&mut world, client, 8);
    let refused = world.call(client, ClientRequest::Evict(id, Tier::Host)).expect_err("it knows none");
    assert!(matches!(refused, Refusal::KindUnsupported { kind: "ordered managed" }), "{refused:?}");
    assert!(taken(&mut world, client).is_empty());
}

#[test]
fn freed_memory_gets_no_order_and_its_answer_is_ignored() {
    let mut world = World::new(100);
    let client = world.open("a");
    let (first, second, third) =
        (charge(&mut world, client, 4), charge(&mut world, client, 4), charge(&mut world, client, 4));
    for id in [first, second, third] {
        evict(&mut world, client, id);
    }
    let (number, orders) = taken(&mut world, client)[0].clone();
    assert_eq!(orders, [(first, Tier::Host)]);
    world.call(client, ClientRequest::FreeBatch(vec![first, second])).expect("freed");
    done(&mut world, client, number, &[]);
    assert_eq!(taken(&mut world, client)[0].1, [(third, Tier::Host)]);
    assert_eq!(sums(&world, "a"), [Bytes::mib(4), Bytes::ZERO, Bytes::ZERO]);
}

#[test]
fn orders_end_with_their_session() {
    let mut world = World::new(100);
    let client = world.open("a");
    let (first, second) = (charge(&mut world, client, 4), charge(&mut world, client, 4));
    for id in [first, second] {
        evict(&mut world, client, id);
    }
    world.end_process(client);
    assert_eq!(sums(&world, "a"), [Bytes::ZERO; 3]);

    // A session without a channel that still maps memory keeps its charges, and gets no order.
    let client = world.open("a");
    let held = world.allocate(client, spec(4)).expect("room");
    world.run_until_idle();
    let id = charge(&mut world, client, 4);
    evict(&mut world, client, id);
    world.event(Event::ChannelEnded { channel: client.channel });
    assert_eq!(shown(&world, id), (None, None));
    let order = OperatorRequest::MoveParts { target: Target::Id(id), parts: Vec::new(), tier: Tier::Host };
    let refused = world.operate(order).expect_err("no channel carries it");
    assert!(matches!(refused, Refusal::SessionLost { .. }), "{refused:?}");
    assert!(world.broker.show(&Target::Id(held)).is_ok());
}

#[test]
fn false_answers_end_in_quarantine() {
    // Orders that are not under way, and a failure that they do not have.
    for is_other_batch in [true, false] {
        let mut world = World::new(100);
        let client = world.open("a");
        let (id, other) = (charge(&mut world, client, 4), charge(&mut world, client, 4));
        evict(&mut world, client, id);
        let (number, _) = taken(&mut world, client)[0].clone();
        match is_other_batch {
            true => done(&mut world, client, number + 1, &[]),
            false => done(&mut world, client, number, &[other]),
        }
        let refused = world.call(client, ClientRequest::Evict(id, Tier::Host)).expect_err("quarantined");
        assert_eq!(refused.reason(), Reason::SessionLost);
    }
}

#[test]
fn silent_client_gets_one_batch_however_many_orders_there_are() {
    let mut world = World::new(100);
    let client = world.open("a");
    let id = charge(&mut world, client, 8);
    for _ in 0..50 {
        evict(&mut world, client, id);
        world.call(client, to_device(id)).expect("ordered");
    }
    assert_eq!(taken(&mut world, client).len(), 1);
    assert_eq!(shown(&world, id), (None, Some(Tier::Device)));
}
