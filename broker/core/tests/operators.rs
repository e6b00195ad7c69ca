//! Operators: quotas, and ends of sessions, of memory and of service.

use crate::world::{
    World, config, key, persistent,
    revoking::{ANSWER, answer, one_part, part},
    set_quota, spec,
};
use broker_core::{
    ClientRequest, DaemonFrame, DeviceSelector, Event, OperatorRequest, ProcessStays, Refusal, Reply,
    StoredQuotas, Target, Tier,
};
use vramd_types::{AllocationId, Bytes, Quantity, Reason, SessionId};

fn by_name(name: &str) -> Target {
    Target::Name(name.to_owned())
}

#[test]
fn quotas_are_stored_before_they_apply_and_survive_a_restart() {
    let mut world = World::new(100);
    let call = world.start_operator(key(1, 1), set_quota("a", 60, 100));
    assert!(!world.replies.contains_key(&call), "not before it is on disk");
    let refused = world.start_operator(None, set_quota("b", 50, 100));
    world.run_until_idle();
    assert!(world.replies[&call].is_ok());
    let unbacked = world.replies[&refused].as_ref().expect_err("60 + 50 > 100");
    let Refusal::GuaranteeUnbacked { committed, capacity, .. } = unbacked else { panic!("{unbacked:?}") };
    assert_eq!((*committed, *capacity), (Bytes::mib(110), Bytes::mib(100)));

    let mut again = World::with(config(&[Bytes::mib(100)]), world.stored.clone());
    assert_eq!(again.broker.list_quotas(None), world.broker.list_quotas(None));
    let repeated = again.start_operator(key(1, 1), set_quota("a", 60, 100));
    assert!(again.replies[&repeated].is_ok(), "remembered over the restart");
    let client = again.open("b");
    let full = again.allocate(client, spec(41)).expect_err("40 are not a's");
    assert_eq!(full.reason(), Reason::DeviceFull);
    again.allocate(client, spec(40)).expect("the rest");
}

#[test]
fn quota_that_cannot_be_stored_does_not_apply() {
    let mut world = World::new(100);
    let call = world.start_operator(None, set_quota("a", 60, 80));
    world.work.clear();
    world.event(Event::QuotasStored { result: Err("disk full".to_owned()) });
    assert_eq!(world.replies[&call].as_ref().expect_err("not stored").reason(), Reason::StoreFailed);
    assert!(world.broker.list_quotas(None).is_empty());
    let client = world.open("b");
    world.allocate(client, spec(100)).expect("no tenant has a guarantee");
}

#[test]
fn lowered_limit_admits_nothing_and_takes_nothing() {
    let mut world = World::new(100);
    let client = world.open("a");
    let id = world.allocate(client, spec(40)).expect("room");
    world.operate(set_quota("a", 0, 10)).expect("accepted");
    assert_eq!(world.allocate(client, spec(2)).expect_err("above").reason(), Reason::QuotaLimit);
    assert_eq!(world.charged_to("a"), Bytes::mib(40));
    world.call(client, ClientRequest::FreeBatch(vec![id])).expect("freed");
    world.allocate(client, spec(10)).expect("below");
}

#[test]
fn quotas_on_one_device_go_before_those_on_all() {
    let mut world = World::with(config(&[Bytes::mib(100), Bytes::mib(50)]), StoredQuotas::default());
    world.operate(set_quota("a", 0, 20)).expect("on all");
    let one = OperatorRequest::SetQuota {
        tenant: "a".to_owned(),
        device: DeviceSelector::One("1".to_owned()),
        tier: Tier::Device,
        guarantee: None,
        limit: Some(Quantity::Percent(50)),
    };
    world.operate(one).expect("on one");
    let limit = |world: &World, device| {
        world
            .broker
            .quota("a", Some(device), Tier::Device)
            .expect("a device")
            .in_force
            .expect("present")
            .limit
    };
    assert_eq!((limit(&world, "0"), limit(&world, "GPU-1")), (Bytes::mib(20), Bytes::mib(25)));
    let delete = |device: &str| OperatorRequest::DeleteQuota {
        tenant: "a".to_owned(),
        device: DeviceSelector::One(device.to_owned()),
        tier: Tier::Device,
    };
    world.operate(delete("1")).expect("deleted");
    assert_eq!(limit(&world, "1"), Bytes::mib(20));
    assert_eq!(world.operate(delete("1")).expect_err("gone").reason(), Reason::QuotaNotFound);
    assert_eq!(world.operate(delete("nowhere")).expect_err("never").reason(), Reason::QuotaNotFound);
}

#[test]
fn operators_end_sessions() {
    let mut world = World::new(100);
    let client = world.open("a");
    world.allocate(client, spec(8)).expect("room");
    let end = |session, kill| OperatorRequest::EndSession { session, kill };
    let ended = world.operate(end(client.session, false)).expect("ended");
    assert!(matches!(ended, Reply::SessionEnded { gone: true, .. }), "{ended:?}");
    assert_eq!((world.charged(), world.broker.node().sessions), (Bytes::ZERO, 0));
    assert_eq!(
        world.operate(end(client.session, false)).expect_err("gone").reason(),
        Reason::SessionNotFound
    );

    for kill in [false, true] {
        let stubborn = world.open("a");
        world.allocate(stubborn, spec(8)).expect("room");
        world.stopped.insert(stubborn.channel);
        let call = world.start_operator(None, end(stubborn.session, kill));
        world.advance(11_000_000);
        if kill {
            assert_eq!(world.killed, [stubborn.channel]);
            world.end_process(stubborn);
            assert!(matches!(world.replies[&call], Ok(Reply::SessionEnded { gone: true, .. })));
            assert_eq!(world.charged(), Bytes::ZERO);
        } else {
            let Ok(Reply::SessionEnded { gone: false, still_mapped }) = world.replies[&call] else {
                panic!()
            };
            assert_eq!(still_mapped, Bytes::mib(8));
            world.end_process(stubborn);
        }
    }
}

#[test]
fn drained_node_admits_nothing_new() {
    let mut world = World::new(100);
    let client = world.open("a");
    let id = world.allocate(client, spec(8)).expect("room");
    world.operate(OperatorRequest::Drain { draining: true }).expect("drained");
    assert_eq!(world.allocate(client, spec(8)).expect_err("draining").reason(), Reason::Draining);
    let (_, answer) = world.hello("a", 5, None);
    assert!(matches!(answer, DaemonFrame::Refused(Refusal::Draining)));
    world.call(client, ClientRequest::FreeBatch(vec![id])).expect("existing memory may go");
    world.operate(OperatorRequest::Drain { draining: false }).expect("back");
    world.allocate(client, spec(8)).expect("in service");
}

fn free(id: AllocationId) -> OperatorRequest {
    OperatorRequest::FreeAllocation(Target::Id(id))
}

/// The bytes still charged, and the mappers.
fn freed(reply: &Result<Reply, Refusal>) -> (Bytes, &[SessionId]) {
    match reply {
        Ok(Reply::AllocationFreed { still_charged, mappers, .. }) => (*still_charged, mappers),
        other => panic!("nothing was freed: {other:?}"),
    }
}

#[test]
fn operators_free_leaves_readers_their_mappings() {
    let mut world = World::new(100);
    let (owner, reader) = (world.open("a"), world.open("a"));
    let id = world.sealed(owner, persistent(8, "x"));
    world.call(reader, ClientRequest::Attach(by_name("a/x"))).expect("sealed");
    let reply = world.operate(OperatorRequest::FreeAllocation(by_name("a/x")));
    assert_eq!(freed(&reply), (Bytes::mib(8), &[reader.session][..]), "the owner has unmapped it");
    let again = world.operate(OperatorRequest::FreeAllocation(by_name("a/x"))).expect_err("no such name");
    assert_eq!(again.reason(), Reason::AllocationNotFound);
    assert_eq!(
        freed(&world.operate(free(id))),
        (Bytes::mib(8), &[reader.session][..]),
        "no other session is told"
    );
    world.call(reader, ClientRequest::Detach(vec![id])).expect("it lets go");
    assert_eq!(world.charged(), Bytes::ZERO);
}

#[test]
fn operators_free_waits_for_the_owners_pins() {
    let (mut world, client, id) = one_part();
    world.pin(client, part(id, 0));
    let call = world.start_operator(None, free(id));
    world.run_until_idle();
    assert!(!world.to_unmap.is_empty() && !world.replies.contains_key(&call), "the owner is told, and pins");
    world.pin_call(client, 1, &[part(id, 0)]);
    let refused = answer(&world, client, 1).and_then(Option::as_ref).map(Refusal::reason);
    assert_eq!(refused, Some(Reason::AllocationNotFound));
    world.unpin(client, part(id, 0));
    world.run_until_idle();
    assert_eq!(freed(&world.replies[&call]), (Bytes::ZERO, &[][..]));
    assert_eq!(world.charged(), Bytes::ZERO);
}

#[test]
fn operators_free_reports_an_owner_that_does_not_unmap() {
    let (mut world, client, id) = one_part();
    world.stopped.insert(client.channel);
    let calls = [free(id), free(id)].map(|request| world.start_operator(None, request));
    world.run_until_idle();
    world.advance(ANSWER);
    for call in calls {
        assert_eq!(freed(&world.replies[&call]), (Bytes::mib(4), &[client.session][..]));
    }
    let silent = |world: &World| world.broker.list_sessions(None, None, 9).0[0].silent_reason.is_some();
    assert!(silent(&world));
    world.stopped.clear();
    world.run_until_idle();
    assert_eq!((silent(&world), world.charged()), (false, Bytes::ZERO), "it comes back all the same");
}

#[test]
fn operators_free_does_not_wait_for_a_session_without_channel() {
    let (mut world, client, id) = one_part();
    world.event(Event::ChannelEnded { channel: client.channel });
    assert_eq!(freed(&world.operate(free(id))), (Bytes::mib(4), &[client.session][..]));
    world.end_process(client);
    world.run_until_idle();
    assert_eq!(world.charged(), Bytes::ZERO);

    let client = world.open_pinning("a");
    let id = world.allocate(client, spec(4)).expect("room");
    world.pin(client, part(id, 0));
    let call = world.start_operator(None, free(id));
    world.run_until_idle();
    world.event(Event::ChannelEnded { channel: client.channel });
    assert_eq!(freed(&world.replies[&call]), (Bytes::mib(4), &[client.session][..]), "told when it ends");
}

#[test]
fn operators_free_waits_for_memory_that_is_being_released() {
    let mut world = World::new(100);
    let client = world.open("a");
    let id = world.sealed(client, persistent(8, "x"));
    world.call(client, ClientRequest::Detach(vec![id])).expect("detached");
    let call = world.start_operator(None, OperatorRequest::FreeAllocation(Target::Id(id)));
    assert!(!world.replies.contains_key(&call), "the driver has not given it back");
    world.run_until_idle();
    let Ok(Reply::AllocationFreed { still_charged, .. }) = &world.replies[&call] else { panic!("freed") };
    assert_eq!((*still_charged, world.charged()), (Bytes::ZERO, Bytes::ZERO));
}

#[test]
fn operators_are_answered_when_a_killed_process_stays() {
    let mut world = World::new(100);
    let client = world.open("a");
    world.allocate(client, spec(8)).expect("room");
    world.stopped.insert(client.channel);
    let end = || OperatorRequest::EndSession { session: client.session, kill: true };
    let first = world.start_operator(None, end());
    world.advance(11_000_000);
    assert_eq!((world.killed.len(), world.replies.contains_key(&first)), (1, false));
    world.advance(11_000_000);
    let stays = |world: &World, call| matches!(world.replies[&call], Ok(Reply::SessionEnded { gone: false, still_mapped }) if still_mapped == Bytes::mib(8));
    assert!(stays(&world, first));

    for (why, says) in [
        (ProcessStays::NotKilled { problem: "not permitted".to_owned() }, "cannot be killed: not permitted"),
        (ProcessStays::SocketKept, "keeps its socket"),
    ] {
        let again = world.start_operator(None, end());
        world.event(Event::ProcessStays { channel: client.channel, why });
        assert!(stays(&world, again), "at once");
        let reason = world.broker.session(client.session).expect("it stays").silent_reason;
        assert!(reason.as_ref().is_some_and(|reason| reason.contains(says)), "{reason:?}");
    }
    world.event(Event::ChannelEnded { channel: client.channel });
    let reason = world.broker.session(client.session).expect("it stays").silent_reason;
    assert!(reason.is_some_and(|reason| reason.contains("keeps its socket")), "the cause that matters");
    assert_eq!(world.charged(), Bytes::mib(8));
    world.end_process(client);
    assert_eq!(world.charged(), Bytes::ZERO);
}
