//! Managed memory: clients allocate it in their own processes, and the daemon charges it.

use std::time::Duration;

use broker_core::{
    AllocationSpec, ClientRequest, Completion, Event, Kind, OperatorRequest, Refusal, Reply, StoredQuotas,
    Target, Tier,
};
use vramd_types::{AllocationId, Bytes, DeviceIndex, Reason};

use crate::world::{
    Client, World, config,
    moving::tiers,
    pressing::{fill, on_device},
    set_quota, spec,
};

fn managed(mib: u32) -> AllocationSpec {
    AllocationSpec { kind: Kind::Managed, ..spec(mib) }
}

fn charge(world: &mut World, client: Client, mib: u32) -> AllocationId {
    world.allocate(client, managed(mib)).expect("room")
}

fn free(world: &mut World, client: Client, id: AllocationId) {
    world.call(client, ClientRequest::FreeBatch(vec![id])).expect("freed");
}

fn shown(world: &World, tenant: &str) -> Bytes {
    let quota = world.broker.quota(tenant, None, Tier::Device).expect("a quota");
    quota.in_force.expect("of a device").managed.charged
}

fn survey(world: &mut World, unbrokered: u32) {
    let (device, unbrokered, host_missing) = (DeviceIndex(0), Bytes::mib(unbrokered), Bytes::ZERO);
    world.event(Event::Completion(Completion::Surveyed { device, unbrokered, contexts: 0, host_missing }));
}

#[test]
fn charge_lasts_from_the_answer_to_the_free() {
    let mut world = World::new(100);
    let client = world.open("a");
    let id = charge(&mut world, client, 7);
    assert_eq!((world.charged(), shown(&world, "a")), (Bytes::mib(8), Bytes::mib(8)));
    let view = world.broker.show(&Target::Id(id)).expect("there");
    assert_eq!((view.charged, view.resident, view.parts.len()), (Bytes::mib(8), Bytes::ZERO, 0));
    free(&mut world, client, id);
    assert_eq!((world.charged(), shown(&world, "a")), (Bytes::ZERO, Bytes::ZERO));
    assert!(world.broker.show(&Target::Id(id)).is_err());
}

#[test]
fn charge_ends_with_its_process() {
    let mut world = World::new(100);
    let (client, other) = (world.open("a"), world.open("b"));
    charge(&mut world, client, 8);
    charge(&mut world, other, 16);
    world.end_process(client);
    assert_eq!((world.charged_to("a"), world.charged_to("b")), (Bytes::ZERO, Bytes::mib(16)));
}

#[test]
fn limit_and_room_hold_as_for_other_memory() {
    let mut world = World::new(100);
    let (client, other) = (world.open("a"), world.open("b"));
    world.operate(set_quota("a", 0, 20)).expect("stored");
    charge(&mut world, client, 12);
    let refused = world.allocate(client, managed(10)).expect_err("beyond the limit");
    assert_eq!(refused.reason(), Reason::QuotaLimit);
    charge(&mut world, client, 8);
    let refused = world.allocate(other, managed(81)).expect_err("beyond the room");
    assert_eq!(refused.reason(), Reason::DeviceFull);
    assert_eq!(world.charged(), Bytes::mib(20));
}

#[test]
fn failed_batch_leaves_no_charge() {
    let mut world = World::new(100);
    let client = world.open("a");
    world.fail_creates.push_back(Some(broker_core::CreateError::Failed("no".to_owned())));
    let batch = ClientRequest::allocate(vec![managed(8), spec(4)]);
    let refused = world.call(client, batch).expect_err("the other item failed");
    assert_eq!(refused.reason(), Reason::DriverFailed);
    assert_eq!((world.charged(), shown(&world, "a")), (Bytes::ZERO, Bytes::ZERO));
}

#[test]
fn waiting_charge_has_unused_parts_leave() {
    let mut world = tiers(16, 64);
    let client = world.open_pinning("a");
    let resident = fill(&mut world, client, 8);
    let items = vec![managed(8)];
    let call =
        world.start(client, None, ClientRequest::AllocateBatch { items, wait: Duration::from_secs(1) });
    world.run_until_idle();
    assert!(matches!(world.replies[&call], Ok(Reply::Allocated(_))), "{:?}", world.replies[&call]);
    assert_eq!(shown(&world, "a"), Bytes::mib(8));
    assert_eq!(on_device(&world, &resident), 4, "four of eight parts made the room");
}

#[test]
fn resident_pages_are_charged_once() {
    let mut world = World::new(100);
    let client = world.open("a");
    let id = charge(&mut world, client, 40);
    let device = |world: &World| {
        let view = &world.broker.devices()[0];
        (view.unbrokered, view.capacity)
    };
    survey(&mut world, 40);
    assert_eq!(device(&world), (Bytes::ZERO, Bytes::mib(100)), "all of its pages are there");
    survey(&mut world, 50);
    assert_eq!(device(&world), (Bytes::mib(10), Bytes::mib(90)), "and another program");
    free(&mut world, client, id);
    survey(&mut world, 10);
    assert_eq!(device(&world), (Bytes::mib(10), Bytes::mib(90)), "that program is left");
}

#[test]
fn it_takes_a_size_and_a_device_alone() {
    let mut world = World::new(100);
    let client = world.open_pinning("a");
    let wrong: [fn(&mut AllocationSpec); 7] = [
        |spec| spec.name = Some("x".to_owned()),
        |spec| spec.lifetime = broker_core::Lifetime::Persistent,
        |spec| spec.readers = vec!["b".to_owned()],
        |spec| spec.replace = true,
        |spec| spec.part_size = Some(Bytes::mib(2)),
        |spec| spec.unpinned = true,
        |spec| spec.discardable = true,
    ];
    for change in wrong {
        let mut spec = managed(4);
        change(&mut spec);
        let refused = world.allocate(client, spec.clone()).expect_err("a field too many");
        assert_eq!(refused.reason(), Reason::RequestInvalid, "{spec:?}");
    }
    assert_eq!(world.charged(), Bytes::ZERO);
}

#[test]
fn it_is_neither_shared_nor_written_back_nor_freed_by_operators() {
    let mut world = tiers(64, 64);
    let client = world.open_pinning("a");
    let id = charge(&mut world, client, 8);
    let retain = |change| broker_core::Advice::Retain { parts: None, change };
    let by_client = [
        ClientRequest::Attach(Target::Id(id)),
        ClientRequest::Seal(id),
        ClientRequest::Advise(id, broker_core::Advice::SetAccessedBy),
        ClientRequest::Advise(id, retain(broker_core::Retention::Needed(true))),
        ClientRequest::Advise(id, retain(broker_core::Retention::Location(None))),
    ];
    for request in by_client {
        let refused = world.call(client, request.clone()).expect_err("managed");
        assert!(matches!(refused, Refusal::KindUnsupported { .. }), "{request:?}: {refused:?}");
    }
    let by_operator = [
        OperatorRequest::FreeAllocation(Target::Id(id)),
        OperatorRequest::WriteBackParts { target: Target::Id(id), parts: Vec::new() },
        OperatorRequest::RevokeMappings { target: Target::Id(id), parts: Vec::new(), wait: false },
        OperatorRequest::HoldParts { target: Target::Id(id), parts: Vec::new(), hold: true },
    ];
    for request in by_operator {
        let refused = world.operate(request.clone()).expect_err("managed");
        assert!(matches!(refused, Refusal::KindUnsupported { .. }), "{request:?}: {refused:?}");
    }
    assert_eq!(world.charged(), Bytes::mib(8));
}

#[test]
fn draining_node_charges_no_more() {
    let mut world = World::with(config(&[Bytes::mib(64)]), StoredQuotas::default());
    let client = world.open("a");
    world.operate(OperatorRequest::Drain { draining: true }).expect("drains");
    let refused = world.allocate(client, managed(4)).expect_err("draining");
    assert_eq!(refused.reason(), Reason::Draining);
}
