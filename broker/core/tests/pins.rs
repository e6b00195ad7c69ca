//! Pins and revocation: what is evicted or fenced, who waits for it, and how it comes back.

#![allow(clippy::indexing_slicing, reason = "a test that goes out of bounds has failed")]

mod world;

use broker_core::{
    ClientFrame, ClientRequest, Command, Completion, DaemonFrame, Event, Limits, OperatorRequest, PartRef,
    PartRevocation, Refusal, Reply, StoredQuotas, Target, WordsOutcome,
};
use vramd_types::{AllocationId, Bytes, PartIndex};
use world::{Client, World, config, persistent, set_quota, spec, unmapped};

const STALL: u64 = 1_000_000;
const ANSWER: u64 = 10_000_000;

fn part(allocation: AllocationId, index: u32) -> PartRef {
    PartRef { allocation, part: PartIndex(index) }
}

fn revoke(allocation: AllocationId, wait: bool) -> OperatorRequest {
    OperatorRequest::RevokeMappings { target: Target::Id(allocation), parts: Vec::new(), wait }
}

fn outcomes(reply: Result<Reply, Refusal>) -> Vec<PartRevocation> {
    match reply {
        Ok(Reply::MappingsRevoked { parts, .. }) => parts.into_iter().map(|(_, outcome)| outcome).collect(),
        other => panic!("nothing was revoked: {other:?}"),
    }
}

/// One outcome, of an allocation with one part.
fn outcome(world: &mut World, allocation: AllocationId, wait: bool) -> PartRevocation {
    let reply = world.operate(revoke(allocation, wait));
    outcomes(reply).remove(0)
}

/// A world of 64 MiB with a pinning session that has one part.
fn one_part() -> (World, Client, AllocationId) {
    let mut world = World::new(64);
    let client = world.open_pinning("a");
    let id = world.allocate(client, spec(4)).expect("room");
    (world, client, id)
}

fn mapped_bytes(world: &World) -> Bytes {
    world.broker.list_sessions(None, None, 9).0[0].mapped
}

fn answer(world: &World, client: Client, call: u64) -> Option<&Option<Refusal>> {
    world.pin_answers.get(&(client.channel, call))
}

#[test]
fn what_nobody_pins_is_evicted_and_comes_back_in_its_slot() {
    let (mut world, client, id) = one_part();
    let slots = world.slots.clone();
    assert_eq!(outcome(&mut world, id, false), PartRevocation::Revoked);
    assert!(!world.maps(client, part(id, 0)) && mapped_bytes(&world).is_zero());
    assert_eq!(world.held(), Bytes::mib(4), "its charge stays");
    assert_eq!(outcome(&mut world, id, false), PartRevocation::Revoked, "nobody maps it");

    world.pin_call(client, 1, &[part(id, 0)]);
    assert_eq!(answer(&world, client, 1), None, "it is to be mapped first");
    world.settle();
    assert_eq!(answer(&world, client, 1), Some(&None));
    assert!(world.maps(client, part(id, 0)));
    assert_eq!(world.slots, slots);
}

#[test]
fn an_evict_leaves_what_is_pinned_alone_and_a_call_protects_its_set() {
    let (mut world, client, id) = one_part();
    let by = vec![client.session];
    world.pin(client, part(id, 0));
    assert_eq!(outcome(&mut world, id, false), PartRevocation::Pinned { by: by.clone() });
    assert!(world.inboxes[&client.channel].is_empty(), "no frame is sent");
    world.unpin(client, part(id, 0));

    world.pin_call(client, 7, &[part(id, 0)]);
    assert_eq!(answer(&world, client, 7), Some(&None), "it is mapped");
    assert_eq!(outcome(&mut world, id, false), PartRevocation::Pinned { by });
    assert!(world.work.is_empty(), "no word is touched");
    world.frame(client, ClientFrame::PinEnded { call: 7 });
    assert_eq!(outcome(&mut world, id, false), PartRevocation::Revoked);
}

#[test]
fn a_fence_waits_for_pins_and_who_comes_later_waits_for_it() {
    let (mut world, client, id) = one_part();
    let other = part(world.allocate(client, spec(4)).expect("room"), 0);
    world.pin_call(client, 1, &[part(id, 0)]);
    world.pin(client, part(id, 0));
    let fence = world.start_operator(None, revoke(id, true));
    world.settle();
    assert!(
        world.maps(client, part(id, 0)) && world.wanted_back.is_empty(),
        "a call before the fence protects"
    );
    world.frame(client, ClientFrame::PinEnded { call: 1 });
    world.settle();
    assert!(!world.wanted_back.is_empty() && !world.replies.contains_key(&fence), "now it is told");

    world.pin_call(client, 2, &[part(id, 0), other]);
    world.settle();
    assert_eq!(answer(&world, client, 2), None);
    world.unpin(client, part(id, 0));
    assert_eq!(outcomes(world.replies.remove(&fence).expect("an answer")), [PartRevocation::Revoked]);
    world.settle();
    assert_eq!(answer(&world, client, 2), Some(&None), "the fence is over");
}

#[test]
fn a_fence_reports_what_is_pinned_when_its_time_is_over() {
    let (mut world, client, id) = one_part();
    world.pin(client, part(id, 0));
    let fence = world.start_operator(None, revoke(id, true));
    world.settle();
    world.advance(ANSWER);
    let by = vec![client.session];
    assert_eq!(outcomes(world.replies.remove(&fence).expect("an answer")), [PartRevocation::Pinned { by }]);
    let sessions = world.broker.list_sessions(None, None, 9).0;
    assert_eq!(sessions[0].silent_reason, None, "who pins may take its time");

    world.unpin(client, part(id, 0));
    assert!(mapped_bytes(&world).is_zero());
    world.pin_call(client, 1, &[part(id, 0)]);
    world.settle();
    assert_eq!(answer(&world, client, 1), Some(&None));
}

#[test]
fn who_does_not_answer_is_silent_until_it_does() {
    let (mut world, client, id) = one_part();
    world.stopped.insert(client.channel);
    let evict = world.start_operator(None, revoke(id, false));
    world.settle();
    world.advance(ANSWER);
    let silent = PartRevocation::Silent { by: vec![client.session] };
    assert_eq!(outcomes(world.replies.remove(&evict).expect("an answer")), std::slice::from_ref(&silent));
    assert_eq!(outcome(&mut world, id, false), silent, "its words are left alone");
    assert!(world.work.is_empty());

    world.stopped.clear();
    world.settle();
    let sessions = world.broker.list_sessions(None, None, 9).0;
    assert_eq!((sessions[0].silent_reason.as_ref(), sessions[0].mapped), (None, Bytes::ZERO));
    world.pin_call(client, 1, &[part(id, 0)]);
    world.settle();
    assert_eq!(answer(&world, client, 1), Some(&None));
}

#[test]
fn a_channel_that_ends_leaves_what_it_maps_and_no_more() {
    let (mut world, client, id) = one_part();
    let away = world.allocate(client, spec(4)).expect("room");
    assert_eq!(outcome(&mut world, away, false), PartRevocation::Revoked);
    world.stopped.insert(client.channel);
    let evict = world.start_operator(None, revoke(id, false));
    while world.work_once() {}
    world.event(Event::ChannelEnded { channel: client.channel });
    let silent = PartRevocation::Silent { by: vec![client.session] };
    assert_eq!(outcomes(world.replies.remove(&evict).expect("an answer")), [silent]);
    assert_eq!(mapped_bytes(&world), Bytes::mib(4));
    world.end_process(client);
    assert!(world.held().is_zero());
}

#[test]
fn a_session_without_pins_is_not_asked() {
    let mut world = World::new(64);
    let standing = world.open("a");
    let id = world.sealed(standing, persistent(4, "model"));
    let pinning = world.open_pinning("a");
    world.call(pinning, ClientRequest::Attach(Target::Id(id))).expect("attached");
    let by = vec![standing.session];
    for wait in [false, true] {
        assert_eq!(outcome(&mut world, id, wait), PartRevocation::Standing { by: by.clone() });
    }
    world.call(standing, ClientRequest::Detach(vec![id])).expect("detached");
    assert_eq!(outcome(&mut world, id, false), PartRevocation::Revoked);

    let late = world.start_operator(None, revoke(id, true));
    assert!(world.replies.contains_key(&late), "nobody maps it");
    world.call(standing, ClientRequest::Attach(Target::Id(id))).expect("attached");
    assert!(world.maps(standing, part(id, 0)));
}

#[test]
fn who_attaches_under_a_fence_is_sent_the_part_after_it() {
    let mut world = World::new(64);
    let owner = world.open_pinning("a");
    let id = world.sealed(owner, persistent(4, "model"));
    world.pin(owner, part(id, 0));
    let fence = world.start_operator(None, revoke(id, true));
    let reader = world.open("a");
    world.call(reader, ClientRequest::Attach(Target::Id(id))).expect("attached");
    assert!(!world.maps(reader, part(id, 0)));
    world.unpin(owner, part(id, 0));
    world.settle();
    assert!(world.maps(reader, part(id, 0)) && world.replies.contains_key(&fence));
}

#[test]
fn what_is_away_or_on_its_way_can_be_freed_sealed_and_detached() {
    for pinned in [false, true] {
        for request in [ClientRequest::FreeBatch, ClientRequest::Detach] {
            let (mut world, client, id) = one_part();
            if pinned {
                world.pin(client, part(id, 0));
            }
            let fence = world.start_operator(None, revoke(id, true));
            world.settle();
            world.pin_call(client, 1, &[part(id, 0)]);
            world.settle();
            let release = world.start(client, None, request(vec![id]));
            world.settle();
            assert_eq!(world.replies.contains_key(&release), !pinned);
            if pinned {
                assert!(matches!(answer(&world, client, 1), Some(Some(_))), "its call is refused");
                world.unpin(client, part(id, 0));
                world.settle();
            }
            assert!(world.replies[&release].is_ok() && world.replies[&fence].is_ok());
            assert!(world.slots.is_empty(), "its slot is free: {:?}", world.slots);
        }
        let (mut world, client, id) = one_part();
        if pinned {
            world.pin(client, part(id, 0));
        }
        world.start_operator(None, revoke(id, true));
        world.settle();
        let seal = world.start(client, None, ClientRequest::Seal(id));
        world.settle();
        if pinned {
            world.unpin(client, part(id, 0));
            world.settle();
        }
        assert!(world.replies[&seal].is_ok());
        assert!(world.maps(client, part(id, 0)), "it is mapped again once it is sealed");
    }
}

#[test]
fn an_owner_that_frees_what_a_reader_is_losing_frees_it_for_good() {
    let mut world = World::new(64);
    let (owner, reader) = (world.open_pinning("a"), world.open_pinning("a"));
    let id = world.sealed(owner, persistent(4, "model"));
    world.call(reader, ClientRequest::Attach(Target::Id(id))).expect("attached");
    world.stopped.insert(reader.channel);
    let evict = world.start_operator(None, revoke(id, false));
    world.settle();
    world.pin_call(reader, 1, &[part(id, 0)]);
    world.call(owner, ClientRequest::FreeBatch(vec![id])).expect("freed");
    assert_eq!(answer(&world, reader, 1), None, "it maps the part still");
    world.stopped.clear();
    world.settle();
    assert!(matches!(answer(&world, reader, 1), Some(Some(Refusal::AllocationNotFound { .. }))));
    assert!(world.replies.contains_key(&evict) && world.held().is_zero());
}

#[test]
fn of_nested_pins_in_each_others_way_the_youngest_is_aborted() {
    let mut world = World::new(64);
    let clients = [world.open_pinning("a"), world.open_pinning("a")];
    let ids = ["one", "two"].map(|name| world.sealed(clients[0], persistent(4, name)));
    for id in ids {
        world.call(clients[1], ClientRequest::Attach(Target::Id(id))).expect("attached");
    }
    let parts = ids.map(|id| part(id, 0));
    // Each pins one part, both parts are fenced, and each wants the other's.
    world.pin(clients[0], parts[0]);
    world.pin(clients[1], parts[1]);
    for id in ids {
        world.start_operator(None, revoke(id, true));
    }
    world.settle();
    world.pin_call(clients[0], 1, &[parts[1]]);
    world.advance(STALL / 2);
    world.pin_call(clients[1], 1, &[parts[0]]);
    world.advance(STALL - 10);
    assert!(world.pin_answers.is_empty(), "not yet");
    world.advance(10);
    let stalled = Refusal::PinStalled { session: clients[1].session };
    assert_eq!(answer(&world, clients[1], 1), Some(&Some(stalled)));
    assert_eq!(answer(&world, clients[0], 1), None);
    world.advance(STALL * 2);
    assert_eq!(answer(&world, clients[0], 1), None, "who is in its way does not wait");
    world.unpin(clients[1], parts[1]);
    world.settle();
    assert_eq!(answer(&world, clients[0], 1), Some(&None));
}

#[test]
fn who_is_in_its_own_way_is_aborted() {
    let (mut world, client, id) = one_part();
    let other = world.allocate(client, spec(4)).expect("room");
    assert_eq!(outcome(&mut world, other, false), PartRevocation::Revoked);
    world.pin(client, part(id, 0));
    world.start_operator(None, revoke(id, true));
    world.settle();
    world.advance(ANSWER);
    // The fence is over, and its REVOKE stands: this call can never have both while the pin lasts.
    world.pin_call(client, 1, &[part(id, 0), part(other, 0)]);
    world.settle();
    world.advance(STALL);
    assert!(matches!(answer(&world, client, 1), Some(Some(Refusal::PinStalled { .. }))));
}

#[test]
fn a_table_has_so_many_slots() {
    let mut config = config(&[Bytes::mib(64)]);
    config.limits = Limits { words_per_session_max: 3, ..Limits::default() };
    let mut world = World::with(config, StoredQuotas::default());
    let client = world.open_pinning("a");
    let two = world.allocate(client, spec(8)).expect("room");
    let one = world.allocate(client, spec(4)).expect("room");
    let refused = Refusal::SlotsExhausted { session: client.session, limit: 3 };
    assert_eq!(world.allocate(client, spec(1)), Err(refused.clone()));

    let owner = world.open("a");
    let shared = world.sealed(owner, persistent(4, "model"));
    let attach = || ClientRequest::Attach(Target::Id(shared));
    assert_eq!(world.call(client, attach()).err(), Some(refused.clone()));
    assert_eq!(outcome(&mut world, one, false), PartRevocation::Revoked);
    assert_eq!(world.call(client, attach()).err(), Some(refused.clone()), "what is away keeps its slot");
    world.call(client, ClientRequest::FreeBatch(vec![one])).expect("freed");
    world.call(client, attach()).expect("attached");

    // What was detached needs its slots again to be sealed.
    world.call(client, ClientRequest::Detach(vec![two])).expect("detached");
    let four = world.allocate(client, spec(8)).expect("room");
    assert_eq!(world.call(client, ClientRequest::Seal(two)).err(), Some(refused));
    world.call(client, ClientRequest::Seal(four)).expect("it has its slots");
    assert!(world.maps(client, part(four, 1)));
}

#[test]
fn what_can_never_be_mapped_together_is_refused_at_once() {
    let (mut world, client, id) = one_part();
    let large = world.allocate(client, spec(40)).expect("room");
    let all: Vec<_> = (0..10).map(|index| part(large, index)).collect();
    world.operate(set_quota("a", 0, 16)).expect("set");
    world.pin_call(client, 1, &all);
    assert!(matches!(answer(&world, client, 1), Some(Some(Refusal::QuotaLimit { .. }))));

    let survey = |world: &mut World, mib| {
        let device = world.broker.devices()[0].index;
        let surveyed = Completion::Surveyed { device, unbrokered: Bytes::mib(mib), contexts: 0 };
        world.event(Event::Completion(surveyed));
    };
    survey(&mut world, 40);
    world.pin_call(client, 2, &all);
    assert!(matches!(answer(&world, client, 2), Some(Some(Refusal::DeviceFull { .. }))));
    survey(&mut world, 0);

    world.pin_call(client, 3, &[part(id, 1)]);
    assert!(matches!(answer(&world, client, 3), Some(Some(Refusal::AllocationNotFound { .. }))));
    world.pin_call(client, 4, &[part(id, 0)]);
    assert_eq!(answer(&world, client, 4), Some(&None), "the session lives");
}

#[test]
fn calls_that_do_not_end_are_bounded() {
    let mut config = config(&[Bytes::mib(64)]);
    config.limits = Limits { pins_waiting_max: 2, ..Limits::default() };
    let mut world = World::with(config, StoredQuotas::default());
    let client = world.open_pinning("a");
    let id = world.allocate(client, spec(4)).expect("room");
    for call in 1..4 {
        world.pin_call(client, call, &[part(id, 0)]);
    }
    assert_eq!(answer(&world, client, 2), Some(&None));
    assert_eq!(answer(&world, client, 3), Some(&Some(Refusal::QueueFull { limit: 2 })));
    world.frame(client, ClientFrame::PinEnded { call: 1 });
    world.frame(client, ClientFrame::PinEnded { call: 1 });
    world.pin_call(client, 4, &[part(id, 0)]);
    assert_eq!(answer(&world, client, 4), Some(&None), "an end may be told twice");
}

#[test]
fn who_breaks_the_protocol_of_pins_is_quarantined() {
    let pin = |call, parts| ClientFrame::Pin { call, parts, write: false };
    for lie in 0..6 {
        let (mut world, client, id) = one_part();
        world.pin_call(client, 5, &[part(id, 0)]);
        let frame = match lie {
            0 => pin(5, vec![part(id, 0)]),
            1 => pin(4, vec![part(id, 0)]),
            2 => pin(6, Vec::new()),
            3 => pin(6, (0..1025).map(|index| part(id, index)).collect()),
            4 => pin(6, vec![part(id, 0), part(id, 0)]),
            _ => ClientFrame::PinEnded { call: 6 },
        };
        world.frame(client, frame);
        assert!(world.closed.contains(&client.channel), "lie {lie}");
        assert_eq!(mapped_bytes(&world), Bytes::mib(4), "what it maps stands");
    }
    let mut world = World::new(64);
    let standing = world.open("a");
    let id = world.allocate(standing, spec(4)).expect("room");
    world.pin_call(standing, 1, &[part(id, 0)]);
    assert!(world.closed.contains(&standing.channel), "it speaks no pins");
}

#[test]
fn what_happens_while_words_are_looked_at_is_not_lost() {
    // The client detaches, and is told so.
    let (mut world, client, id) = one_part();
    world.start_operator(None, revoke(id, false));
    let detach = world.start(client, None, ClientRequest::Detach(vec![id]));
    world.settle();
    assert!(world.replies[&detach].is_ok());

    // It pins: the answer waits for the words, and for the way back.
    for pinned in [false, true] {
        let (mut world, client, id) = one_part();
        if pinned {
            world.pin(client, part(id, 0));
        }
        world.start_operator(None, revoke(id, false));
        world.pin_call(client, 1, &[part(id, 0)]);
        assert_eq!(answer(&world, client, 1), None);
        world.settle();
        assert_eq!(answer(&world, client, 1), Some(&None));
    }

    // A fence comes meanwhile: what is pinned is told to unmap after all.
    let (mut world, client, id) = one_part();
    world.pin(client, part(id, 0));
    let evict = world.start_operator(None, revoke(id, false));
    let fence = world.start_operator(None, revoke(id, true));
    world.settle();
    assert!(!world.replies.contains_key(&evict), "both wait for the same");
    assert_eq!(
        outcome(&mut world, id, false),
        PartRevocation::Pinned { by: vec![client.session] },
        "an evict does not wait for a fence"
    );
    world.unpin(client, part(id, 0));
    assert!(world.replies[&evict].is_ok() && world.replies[&fence].is_ok());
}

#[test]
fn a_second_frame_says_that_an_evicted_part_is_gone_for_good() {
    let (mut world, client, id) = one_part();
    world.stopped.insert(client.channel);
    world.start_operator(None, revoke(id, false));
    world.settle();
    world.start(client, None, ClientRequest::FreeBatch(vec![id]));
    let told: Vec<_> = world.inboxes[&client.channel]
        .iter()
        .filter_map(|frame| match frame {
            DaemonFrame::Revoke { reason, parts } => Some((format!("{reason:?}"), parts.len())),
            _ => None,
        })
        .collect();
    assert_eq!(told, [("Evicted".to_owned(), 1), ("Freed".to_owned(), 1)]);
    world.frame(client, ClientFrame::Unmapped(vec![unmapped(part(id, 0))]));
    while world.work_once() {}
    assert!(world.held().is_zero(), "one answer is enough");
}

#[test]
fn only_what_can_be_revoked_is() {
    let (mut world, client, id) = one_part();
    let request = |parts| OperatorRequest::RevokeMappings { target: Target::Id(id), parts, wait: false };
    for parts in [vec![PartIndex(1)], vec![PartIndex(0), PartIndex(0)]] {
        let refused = world.operate(request(parts)).err();
        assert!(matches!(refused, Some(Refusal::RequestInvalid { .. })), "{refused:?}");
    }
    let seal = world.start(client, None, ClientRequest::Seal(id));
    assert_eq!(world.operate(request(Vec::new())).err(), Some(Refusal::Raced { allocation: id }));
    assert!(world.replies[&seal].is_ok());
    let call = world.start_operator(None, request(Vec::new()));
    let asked = world.work.iter().filter(|work| matches!(work, Command::RevokeWords { .. })).count();
    assert_eq!((asked, world.replies.contains_key(&call)), (1, false));
    let outcome = WordsOutcome::Pinned { by: vec![client.session] };
    world.work.clear();
    world.event(Event::Completion(Completion::WordsRevoked { part: part(id, 0), outcome: outcome.clone() }));
    assert!(matches!(
        outcomes(world.replies.remove(&call).expect("an answer"))[0],
        PartRevocation::Pinned { .. }
    ));
}
