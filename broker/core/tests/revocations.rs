//! Evictions and fences: which sessions are asked, and how a part comes back.

use crate::world;

use std::time::Duration;

use crate::world::{
    Client, World, config,
    moving::{moved, to},
    named, persistent,
    revoking::{ANSWER, UNMAPPED, answer, mapped_bytes, one_part, outcome, outcomes, part, revoke},
    spec, unmapped,
};
use broker_core::{
    ClientFrame, ClientRequest, Command, Completion, DaemonFrame, Event, OperatorRequest, PartMove,
    PartRevocation, Refusal, StoredQuotas, Target, Tier, WordsOutcome,
};
use vramd_types::{Bytes, PartIndex};

#[test]
fn unpinned_part_is_evicted_and_comes_back_in_its_slot() {
    let (mut world, client, id) = one_part();
    let slots = world.slots.clone();
    assert_eq!(outcome(&mut world, id, false), PartRevocation::Revoked);
    assert!(!world.maps(client, part(id, 0)) && mapped_bytes(&world).is_zero());
    assert_eq!(world.charged(), Bytes::mib(4), "its charge stays");
    assert_eq!(outcome(&mut world, id, false), PartRevocation::Revoked, "no session maps it");

    world.pin_call(client, 1, &[part(id, 0)]);
    assert_eq!(answer(&world, client, 1), None, "it is to be mapped first");
    world.run_until_idle();
    assert_eq!(answer(&world, client, 1), Some(&None));
    assert!(world.maps(client, part(id, 0)));
    assert_eq!(world.slots, slots);
}

#[test]
fn eviction_spares_pinned_parts_and_sets_of_pin_calls() {
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
fn fence_waits_for_pins_and_later_calls_wait_for_it() {
    let (mut world, client, id) = one_part();
    let other = part(world.allocate(client, spec(4)).expect("room"), 0);
    world.pin_call(client, 1, &[part(id, 0)]);
    world.pin(client, part(id, 0));
    let fence = world.start_operator(None, revoke(id, true));
    world.run_until_idle();
    assert!(world.maps(client, part(id, 0)) && world.to_unmap.is_empty(), "a call before the fence protects");
    world.frame(client, ClientFrame::PinEnded { call: 1 });
    world.run_until_idle();
    assert!(!world.to_unmap.is_empty() && !world.replies.contains_key(&fence), "now it is told");

    world.pin_call(client, 2, &[part(id, 0), other]);
    world.run_until_idle();
    assert_eq!(answer(&world, client, 2), None);
    world.unpin(client, part(id, 0));
    assert_eq!(outcomes(world.replies.remove(&fence).expect("an answer")), [PartRevocation::Revoked]);
    world.run_until_idle();
    assert_eq!(answer(&world, client, 2), Some(&None), "the fence is over");
}

#[test]
fn fence_reports_pins_when_its_time_is_over() {
    let (mut world, client, id) = one_part();
    world.pin(client, part(id, 0));
    let fence = world.start_operator(None, revoke(id, true));
    world.run_until_idle();
    world.advance(ANSWER);
    let by = vec![client.session];
    assert_eq!(outcomes(world.replies.remove(&fence).expect("an answer")), [PartRevocation::Pinned { by }]);
    let sessions = world.broker.list_sessions(None, None, 9).0;
    assert_eq!(sessions[0].silent_reason, None, "a session that pins may take its time");

    world.unpin(client, part(id, 0));
    assert!(mapped_bytes(&world).is_zero());
    world.pin_call(client, 1, &[part(id, 0)]);
    world.run_until_idle();
    assert_eq!(answer(&world, client, 1), Some(&None));
}

#[test]
fn session_that_does_not_answer_is_silent_until_it_does() {
    let (mut world, client, id) = one_part();
    world.stopped.insert(client.channel);
    let evict = world.start_operator(None, revoke(id, false));
    world.run_until_idle();
    world.advance(ANSWER);
    let silent = PartRevocation::Silent { by: vec![client.session] };
    assert_eq!(outcomes(world.replies.remove(&evict).expect("an answer")), std::slice::from_ref(&silent));
    assert_eq!(outcome(&mut world, id, false), silent, "its words are left alone");
    assert!(world.work.is_empty());

    world.stopped.clear();
    world.run_until_idle();
    let sessions = world.broker.list_sessions(None, None, 9).0;
    assert_eq!((sessions[0].silent_reason.as_ref(), sessions[0].mapped), (None, Bytes::ZERO));
    world.pin_call(client, 1, &[part(id, 0)]);
    world.run_until_idle();
    assert_eq!(answer(&world, client, 1), Some(&None));
}

#[test]
fn overdue_session_keeps_other_readers_waiting_only_for_its_time() {
    let mut world = World::new(64);
    let owner = world.open_pinning("a");
    let id = world.sealed(owner, named(4, "weights"));
    let readers = ["a", "a", "a"].map(|tenant| world.open_pinning(tenant));
    for reader in readers {
        world.call(reader, ClientRequest::Attach(Target::Id(id))).expect("a reader");
    }
    let [stopped, first, second] = readers;
    world.stopped.insert(stopped.channel);
    let evict = world.start_operator(None, revoke(id, false));
    world.run_until_idle();
    for reader in [first, second] {
        world.pin_call(reader, 1, &[part(id, 0)]);
    }
    world.run_until_idle();
    assert_eq!((answer(&world, first, 1), answer(&world, second, 1)), (None, None), "the evict lasts");

    world.advance(UNMAPPED);
    world.run_until_idle();
    let silent = PartRevocation::Silent { by: vec![stopped.session] };
    assert_eq!(outcomes(world.replies.remove(&evict).expect("an answer")), [silent]);
    assert_eq!((answer(&world, first, 1), answer(&world, second, 1)), (Some(&None), Some(&None)));
}

#[test]
fn session_that_goes_on_unmapping_is_not_silent() {
    let mut world = World::new(64);
    let client = world.open_pinning("a");
    let [first, second] = [(); 2].map(|()| world.allocate(client, spec(4)).expect("room"));
    let evicts = [first, second].map(|id| world.start_operator(None, revoke(id, false)));
    while world.work_once() {}
    world.advance(UNMAPPED / 2);
    assert!(world.answer_once(client.channel), "one of two");
    world.advance(UNMAPPED / 2);
    assert_eq!(world.broker.list_sessions(None, None, 9).0[0].silent_reason, None);
    world.run_until_idle();
    for evict in evicts {
        assert_eq!(outcomes(world.replies.remove(&evict).expect("an answer")), [PartRevocation::Revoked]);
    }
}

#[test]
fn session_late_with_unpinned_parts_has_its_time_for_the_rest() {
    let mut world = World::new(64);
    let client = world.open_pinning("a");
    let [evicted, freed, sealed] =
        ["x", "y", "z"].map(|name| world.allocate(client, named(4, name)).expect("room"));
    world.stopped.insert(client.channel);
    world.start_operator(None, revoke(evicted, false));
    let free = world.start(client, None, ClientRequest::FreeBatch(vec![freed]));
    let seal = world.start(client, None, ClientRequest::Seal(sealed));
    world.run_until_idle();
    world.advance(UNMAPPED);
    assert!(world.broker.list_sessions(None, None, 9).0[0].silent_reason.is_some());
    assert!(!world.replies.contains_key(&free) && !world.replies.contains_key(&seal), "they had longer");
    world.advance(ANSWER);
    assert!(world.replies.contains_key(&free) && world.replies.contains_key(&seal), "not for ever");
}

/// A client that has not unmapped an unpinned part in time.
fn silent(end_silent_after: Duration) -> (World, Client) {
    let mut config = world::config(&[Bytes::mib(64)]);
    config.limits.end_silent_after = end_silent_after;
    let mut world = World::with(config, StoredQuotas::default());
    let client = world.open_pinning("a");
    let id = world.allocate(client, spec(4)).expect("room");
    world.stopped.insert(client.channel);
    world.start_operator(None, revoke(id, false));
    world.run_until_idle();
    world.advance(UNMAPPED);
    (world, client)
}

#[test]
fn silent_process_is_killed_only_if_configured() {
    for end_silent_after in [Duration::ZERO, Duration::from_secs(30)] {
        let (mut world, client) = silent(end_silent_after);
        world.advance(29_000_000);
        assert!(world.killed.is_empty(), "its time is not over");
        world.advance(1_000_000);
        let killed: &[_] = if end_silent_after.is_zero() { &[] } else { &[client.channel] };
        assert_eq!(world.killed, killed);
    }
}

#[test]
fn session_that_answers_in_time_is_not_killed() {
    let (mut world, _) = silent(Duration::from_secs(30));
    world.stopped.clear();
    world.run_until_idle();
    world.advance(60_000_000);
    assert!(world.killed.is_empty());
}

#[test]
fn ended_channel_leaves_its_mappings_alone() {
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
    assert!(world.charged().is_zero());
}

#[test]
fn session_without_pins_is_not_asked_to_unmap() {
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
    assert!(world.replies.contains_key(&late), "no session maps it");
    world.call(standing, ClientRequest::Attach(Target::Id(id))).expect("attached");
    assert!(world.maps(standing, part(id, 0)));
}

#[test]
fn fence_without_mappers_blocks_no_call() {
    let mut config = config(&[Bytes::mib(64)]);
    config.devices[0].host = Bytes::mib(64);
    let answers_within = Duration::from_secs(1);
    config.limits.map_answer_timeout = answers_within;
    let mut world = World::with(config, StoredQuotas::default());
    let client = world.open_pinning("a");
    world.stopped.insert(client.channel);
    // One is on its way to the client, the next waits until it has answered.
    let [_, queued] = [(); 2].map(|()| world.allocate(client, spec(4)).expect("room"));
    let its_time = world.now.after(answers_within);
    let fence = world.start_operator(None, revoke(queued, true));
    assert!(!world.replies.contains_key(&fence), "it is to be mapped, so it is fenced");
    // The client's time ends in the very moment in which a session requests the part, and with it the packet
    // that was never sent.
    world.now = its_time;
    let evict = world.start_operator(None, to(queued, Tier::Host));
    world.run_until_idle();
    let evicted = moved(world.replies.remove(&evict).expect("an answer"));
    assert!(matches!(evicted, PartMove::Moved), "{evicted:?}");
    assert_eq!(outcomes(world.replies.remove(&fence).expect("an answer")), [PartRevocation::Revoked]);
}

#[test]
fn attach_under_a_fence_is_sent_the_part_after_it() {
    let mut world = World::new(64);
    let owner = world.open_pinning("a");
    let id = world.sealed(owner, persistent(4, "model"));
    world.pin(owner, part(id, 0));
    let fence = world.start_operator(None, revoke(id, true));
    let reader = world.open("a");
    world.call(reader, ClientRequest::Attach(Target::Id(id))).expect("attached");
    assert!(!world.maps(reader, part(id, 0)));
    world.unpin(owner, part(id, 0));
    world.run_until_idle();
    assert!(world.maps(reader, part(id, 0)) && world.replies.contains_key(&fence));
}

#[test]
fn away_or_unsent_parts_can_be_freed_sealed_and_detached() {
    for pinned in [false, true] {
        for request in [ClientRequest::FreeBatch, ClientRequest::Detach] {
            let (mut world, client, id) = one_part();
            if pinned {
                world.pin(client, part(id, 0));
            }
            let fence = world.start_operator(None, revoke(id, true));
            world.run_until_idle();
            world.pin_call(client, 1, &[part(id, 0)]);
            world.run_until_idle();
            let release = world.start(client, None, request(vec![id]));
            world.run_until_idle();
            assert_eq!(world.replies.contains_key(&release), !pinned);
            if pinned {
                assert!(matches!(answer(&world, client, 1), Some(Some(_))), "its call is refused");
                world.unpin(client, part(id, 0));
                world.run_until_idle();
            }
            assert!(world.replies[&release].is_ok() && world.replies[&fence].is_ok());
            assert!(world.slots.is_empty(), "its slot is free: {:?}", world.slots);
        }
        let (mut world, client, id) = one_part();
        if pinned {
            world.pin(client, part(id, 0));
        }
        world.start_operator(None, revoke(id, true));
        world.run_until_idle();
        let seal = world.start(client, None, ClientRequest::Seal(id));
        world.run_until_idle();
        if pinned {
            world.unpin(client, part(id, 0));
            world.run_until_idle();
        }
        assert!(world.replies[&seal].is_ok());
        assert!(world.maps(client, part(id, 0)), "it is mapped again once it is sealed");
    }
}

#[test]
fn free_by_the_owner_during_a_readers_eviction_is_final() {
    let mut world = World::new(64);
    let (owner, reader) = (world.open_pinning("a"), world.open_pinning("a"));
    let id = world.sealed(owner, persistent(4, "model"));
    world.call(reader, ClientRequest::Attach(Target::Id(id))).expect("attached");
    world.stopped.insert(reader.channel);
    let evict = world.start_operator(None, revoke(id, false));
    world.run_until_idle();
    world.pin_call(reader, 1, &[part(id, 0)]);
    world.call(owner, ClientRequest::FreeBatch(vec![id])).expect("freed");
    assert_eq!(answer(&world, reader, 1), None, "it maps the part still");
    world.stopped.clear();
    world.run_until_idle();
    assert!(matches!(answer(&world, reader, 1), Some(Some(Refusal::AllocationNotFound { .. }))));
    assert!(world.replies.contains_key(&evict) && world.charged().is_zero());
}

#[test]
fn second_revoke_frame_ends_an_evicted_mapping_for_good() {
    let (mut world, client, id) = one_part();
    world.stopped.insert(client.channel);
    world.start_operator(None, revoke(id, false));
    world.run_until_idle();
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
    assert!(world.charged().is_zero(), "one answer is enough");
}

#[test]
fn only_revocable_parts_are_revoked() {
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
