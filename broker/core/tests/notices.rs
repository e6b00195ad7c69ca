//! Notices: what operators are told, and in which order.

use crate::world::{Client, UID, World, key, named, set_quota, spec};
use broker_core::{
    Backing, Caller, ChannelId, ClientFrame, ClientRequest, CreateError, DeviceSelector, Event, MapState,
    MapperView, Notice, OperatorRequest, PartRef, Peer, RequestKey, RevokeReason, Target, Tier, UnmappedPart,
};
use vramd_types::{AllocationId, Bytes, PartIndex, Reason, SessionId};

/// The notices since the last call, with their subject: one word each.
fn told(world: &mut World) -> Vec<String> {
    world.notices.drain(..).map(|notice| short(&notice)).collect()
}

fn short(notice: &Notice) -> String {
    match notice {
        Notice::SessionOpened { tenant, .. } => format!("opened {tenant}"),
        Notice::SessionSilent { tenant, .. } => format!("silent {tenant}"),
        Notice::SessionKilled { tenant, .. } => format!("killed {tenant}"),
        Notice::SessionAnswered { tenant, .. } => format!("answered {tenant}"),
        Notice::SessionGone { tenant, .. } => format!("gone {tenant}"),
        Notice::Refused { request, refusal, .. } => format!("refused {request} {}", refusal.reason()),
        Notice::QuotaSet { tenant, device, guarantee, limit, .. } => {
            format!("set {tenant} {device} {guarantee} {limit}")
        }
        Notice::QuotaDeleted { tenant, device, .. } => format!("deleted {tenant} {device}"),
        Notice::AllocationMade { tenant, bytes, .. } => format!("made {tenant} {bytes}"),
        Notice::AllocationSealed { tenant, .. } => format!("sealed {tenant}"),
        Notice::AllocationFreed { tenant, .. } => format!("freed {tenant}"),
        Notice::AllocationGone { tenant, .. } => format!("memory of {tenant} gone"),
        Notice::RevokeSent { tenant, parts, reason, .. } => format!("revoke {tenant} {parts} {reason:?}"),
        Notice::RevokeAnswered { tenant, parts, .. } => format!("unmapped {tenant} {parts}"),
        Notice::RevokeOverdue { tenant, parts, .. } => format!("overdue {tenant} {parts}"),
        Notice::Draining { draining } => format!("draining {draining}"),
        other => format!("{other:?}"),
    }
}

fn opened(world: &mut World, tenant: &str) -> Client {
    let client = world.open(tenant);
    world.notices.clear();
    client
}

#[test]
fn allocation_is_noticed_from_creation_to_end() {
    let mut world = World::new(64);
    let client = world.open("a");
    let id = world.sealed(client, spec(6));
    world.call(client, ClientRequest::FreeBatch(vec![id])).expect("freed");
    world.end_process(client);
    assert_eq!(
        told(&mut world),
        [
            "opened a",
            "made a 6 MiB",
            "revoke a 2 Sealing",
            "unmapped a 2",
            "sealed a",
            "freed a",
            "revoke a 2 Freed",
            "unmapped a 2",
            "memory of a gone",
            "gone a"
        ]
    );
}

#[test]
fn late_revoke_is_noticed() {
    let mut world = World::new(64);
    let client = opened(&mut world, "a");
    let ids = [world.allocate(client, spec(4)), world.allocate(client, spec(8))].map(|id| id.expect("room"));
    world.stopped.insert(client.channel);
    world.notices.clear();
    world.start(client, None, ClientRequest::FreeBatch(ids.to_vec()));
    world.advance(11_000_000);
    let late = ["freed a", "revoke a 1 Freed", "freed a", "revoke a 2 Freed", "overdue a 3", "silent a"];
    assert_eq!(told(&mut world), late);
    world.stopped.clear();
    world.run_until_idle();
    let told = told(&mut world);
    assert_eq!(told[0], "unmapped a 1");
    assert!(told.contains(&"answered a".to_owned()), "{told:?}");
}

/// One answer may name parts of several allocations.
#[test]
fn revoke_answers_are_noticed_by_allocation_and_only_if_asked_for() {
    let mut world = World::new(64);
    let client = opened(&mut world, "a");
    let [first, second, third] =
        [spec(8), spec(4), spec(4)].map(|spec| world.allocate(client, spec).expect("room"));
    world.stopped.insert(client.channel);
    world.start(client, None, ClientRequest::FreeBatch(vec![first, second]));
    world.notices.clear();
    let part = |allocation: AllocationId, part: u32| UnmappedPart {
        part: PartRef { allocation, part: PartIndex(part) },
        failure: None,
        written: false,
    };
    let parts = vec![part(third, 0), part(first, 0), part(first, 1), part(second, 0)];
    world.event(Event::Frame { channel: client.channel, frame: ClientFrame::Unmapped(parts) });
    let answers: Vec<_> = world
        .notices
        .iter()
        .filter_map(|notice| match notice {
            Notice::RevokeAnswered { allocation, parts, .. } => Some((*allocation, *parts)),
            _ => None,
        })
        .collect();
    assert_eq!(answers, [(first, 2), (second, 1)]);
}

#[test]
fn quotas_and_drains_are_noticed() {
    let mut world = World::new(100);
    world.operate(set_quota("a", 10, 50)).expect("set");
    let delete = |tenant: &str| OperatorRequest::DeleteQuota {
        tenant: tenant.to_owned(),
        device: DeviceSelector::All,
        tier: Tier::Device,
    };
    world.operate(delete("a")).expect("deleted");
    world.operate(delete("a")).expect_err("there is none any more");
    for draining in [true, true, false] {
        world.operate(OperatorRequest::Drain { draining }).expect("always");
    }
    assert_eq!(
        told(&mut world),
        [
            "set a * 10MiB 50MiB",
            "deleted a *",
            "refused DeleteQuota QUOTA_NOT_FOUND",
            "draining true",
            "draining false"
        ]
    );
}

#[test]
fn quota_that_cannot_be_stored_is_noticed_as_refused() {
    let mut world = World::new(100);
    world.start_operator(None, set_quota("a", 60, 80));
    world.work.clear();
    world.event(Event::QuotasStored { result: Err("disk full".to_owned()) });
    assert_eq!(told(&mut world), ["refused SetQuota STORE_FAILED"]);
}

/// Every way to be refused, once each, with its asker, whatever came of it.
#[test]
fn refusals_are_noticed() {
    let mut world = World::new(64);
    let client = opened(&mut world, "a");
    let refused = |world: &mut World| {
        world.run_until_idle();
        let refused: Vec<_> = world
            .notices
            .drain(..)
            .filter_map(|notice| match notice {
                Notice::Refused { by, request, refusal } => Some((by, request, refusal.reason())),
                _ => None,
            })
            .collect();
        assert_eq!(refused.len(), 1, "{refused:?}");
        refused.into_iter().next().expect("one")
    };
    let by_session = Caller::Session { session: client.session, tenant: "a".into() };

    world.start(client, None, ClientRequest::allocate(vec![spec(100)]));
    assert_eq!(refused(&mut world), (by_session.clone(), "AllocateBatch", Reason::DeviceFull));

    // Asked twice before the driver failed: one refusal, two answers.
    world.fail_creates.push_back(Some(CreateError::OutOfMemory));
    let again = [(); 2].map(|()| world.start(client, key(1, 1), ClientRequest::allocate(vec![spec(2)])));
    assert_eq!(refused(&mut world), (by_session.clone(), "AllocateBatch", Reason::DeviceFull));
    assert!(again.iter().all(|call| world.replies[call].is_err()));

    world.allocate(client, named(2, "x")).expect("room");
    let used = key(2, 1);
    world.start(client, used, ClientRequest::allocate(vec![spec(2)]));
    world.run_until_idle();
    let other = used.map(|key| RequestKey { fingerprint: [9; 16], ..key });
    world.start(client, other, ClientRequest::allocate(vec![spec(4)]));
    assert_eq!(refused(&mut world), (by_session, "AllocateBatch", Reason::RequestIdReused));

    let stranger = Peer { pid: 9999, uid: UID };
    let (call, session) = (broker_core::CallId(900), client.session);
    let request = ClientRequest::Attach(Target::Name("x".to_owned()));
    world.event(Event::Client { call, session, peer: stranger, key: None, request });
    let by = Caller::ForeignProcess { session, pid: 9999 };
    assert_eq!(refused(&mut world), (by, "Attach", Reason::SessionForeign));

    let end = OperatorRequest::EndSession { session: SessionId::from_raw(77), kill: false };
    world.start_operator(None, end);
    assert_eq!(refused(&mut world), (Caller::Operator { uid: 0 }, "EndSession", Reason::SessionNotFound));

    world.operate(OperatorRequest::Drain { draining: true }).expect("always");
    let (channel, _) = world.hello("b", 500, None);
    assert_ne!(channel, ChannelId(0));
    let by = Caller::Process { tenant: "b".to_owned(), pid: 500 };
    assert_eq!(refused(&mut world), (by, "Hello", Reason::Draining));
}

#[test]
fn failed_batch_is_noticed_as_a_refusal_without_frees() {
    let mut world = World::new(64);
    let client = opened(&mut world, "a");
    world.fail_creates.extend([None, Some(CreateError::OutOfMemory)]);
    world.call(client, ClientRequest::allocate(vec![spec(4), spec(4)])).expect_err("no room");
    let told = told(&mut world);
    assert!(told.contains(&"refused AllocateBatch DEVICE_FULL".to_owned()), "{told:?}");
    assert!(!told.iter().any(|told| told.starts_with("freed") || told.starts_with("made")), "{told:?}");
}

#[test]
fn operators_see_the_extent_of_a_part_and_the_state_of_each_mapping() {
    let mut world = World::new(64);
    let (owner, reader) = (world.open("a"), world.open("a"));
    let shown = |world: &World, id: AllocationId| {
        let part = world.broker.show(&Target::Id(id)).expect("there").parts.remove(0);
        (part.backing.expect("operators see it"), part.mappers)
    };
    let mapper = |client: Client, state| MapperView { session: client.session, state, word: None };

    world.start(owner, None, ClientRequest::allocate(vec![named(4, "x")]));
    let id = world.broker.list_allocations(None, None, 1).0[0].id;
    assert_eq!(shown(&world, id), (Backing::Creating, vec![]));
    world.work_once();
    assert_eq!(shown(&world, id), (Backing::Live, vec![mapper(owner, MapState::Offered)]));
    world.run_until_idle();
    world.call(owner, ClientRequest::Seal(id)).expect("sealed");
    // A session has one packet on its way: what comes next is queued.
    world.stopped.insert(reader.channel);
    world.allocate(reader, spec(4)).expect("room");
    world.call(reader, ClientRequest::Attach(Target::Id(id))).expect("attached");
    let both = vec![mapper(owner, MapState::Mapped), mapper(reader, MapState::Queued)];
    assert_eq!(shown(&world, id), (Backing::Live, both));
    world.stopped.insert(owner.channel);
    world.start(owner, None, ClientRequest::FreeBatch(vec![id]));
    assert_eq!(shown(&world, id), (Backing::Live, vec![mapper(owner, MapState::Revoking)]));
    world.stopped.remove(&owner.channel);
    while world.answer_once(owner.channel) {}
    assert_eq!(shown(&world, id), (Backing::Releasing, vec![]));
    let held = world.charged();
    world.run_until_idle();
    assert_eq!(world.charged(), held.saturating_sub(Bytes::mib(4)));

    let told: Vec<_> = world.notices.iter().map(short).collect();
    assert!(told.contains(&"revoke a 1 Freed".to_owned()), "{told:?}");
    let reasons = world.notices.iter().filter(|notice| {
        matches!(notice, Notice::RevokeSent { reason: RevokeReason::Freed, session, .. } if *session == reader.session)
    });
    assert_eq!(reasons.count(), 0, "a part that was never sent is not revoked");
}

#[test]
fn eviction_is_noticed_like_any_revoke() {
    let mut world = World::new(64);
    let client = world.open_pinning("a");
    let id = world.allocate(client, spec(8)).expect("room");
    world.stopped.insert(client.channel);
    world.notices.clear();
    let evict = OperatorRequest::RevokeMappings { target: Target::Id(id), parts: Vec::new(), wait: false };
    world.start_operator(None, evict);
    world.run_until_idle();
    world.advance(10_000_000);
    let late = told(&mut world);
    let sent: usize = late.iter().filter(|told| *told == "revoke a 1 Evicted").count();
    assert_eq!(sent, 2, "{late:?}");
    assert!(late.contains(&"overdue a 2".to_owned()) && late.contains(&"silent a".to_owned()), "{late:?}");
    world.stopped.clear();
    world.run_until_idle();
    let answered = told(&mut world);
    assert!(answered.contains(&"unmapped a 1".to_owned()), "{answered:?}");
    assert!(answered.contains(&"answered a".to_owned()), "{answered:?}");
}
