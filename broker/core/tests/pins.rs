//! Pin calls: which call waits for which, what is refused at once, and what bounds them.

use crate::world;

use crate::world::{
    World, config, persistent,
    revoking::{ANSWER, STALL, answer, mapped_bytes, one_part, outcome, part, revoke},
    set_quota, spec,
};
use broker_core::{
    AllocationSpec, ClientFrame, ClientRequest, Completion, DaemonFrame, Event, Limits, PartRevocation,
    Refusal, StoredQuotas, Target, Tier,
};
use vramd_types::Bytes;

#[test]
fn youngest_of_nested_pins_that_block_each_other_is_aborted() {
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
    world.run_until_idle();
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
    assert_eq!(answer(&world, clients[0], 1), None, "the session in its way does not wait");
    world.unpin(clients[1], parts[1]);
    world.run_until_idle();
    assert_eq!(answer(&world, clients[0], 1), Some(&None));
}

#[test]
fn pin_that_blocks_itself_is_aborted() {
    let (mut world, client, id) = one_part();
    let other = world.allocate(client, spec(4)).expect("room");
    assert_eq!(outcome(&mut world, other, false), PartRevocation::Revoked);
    world.pin(client, part(id, 0));
    world.start_operator(None, revoke(id, true));
    world.run_until_idle();
    world.advance(ANSWER);
    // The fence is over, and its REVOKE stands: this call can never have both while the pin lasts.
    world.pin_call(client, 1, &[part(id, 0), part(other, 0)]);
    world.run_until_idle();
    world.advance(STALL);
    assert!(matches!(answer(&world, client, 1), Some(Some(Refusal::PinStalled { .. }))));
}

#[test]
fn word_table_has_a_bounded_number_of_slots() {
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
    assert_eq!(
        world.call(client, attach()).err(),
        Some(refused.clone()),
        "a part that is away keeps its slot"
    );
    world.call(client, ClientRequest::FreeBatch(vec![one])).expect("freed");
    world.call(client, attach()).expect("attached");

    // Detached parts need their slots again to be sealed.
    world.call(client, ClientRequest::Detach(vec![two])).expect("detached");
    let four = world.allocate(client, spec(8)).expect("room");
    assert_eq!(world.call(client, ClientRequest::Seal(two)).err(), Some(refused));
    world.call(client, ClientRequest::Seal(four)).expect("it has its slots");
    assert!(world.maps(client, part(four, 1)));
}

#[test]
fn pin_set_that_never_fits_together_is_refused_at_once() {
    let (mut world, client, id) = one_part();
    let large = world.allocate(client, spec(40)).expect("room");
    let all: Vec<_> = (0..10).map(|index| part(large, index)).collect();
    world.operate(set_quota("a", 0, 16)).expect("set");
    world.pin_call(client, 1, &all);
    assert!(matches!(answer(&world, client, 1), Some(Some(Refusal::QuotaLimit { .. }))));

    let survey = |world: &mut World, mib| {
        let device = world.broker.devices()[0].index;
        let surveyed = Completion::Surveyed {
            device,
            unbrokered: Bytes::mib(mib),
            contexts: 0,
            host_missing: Bytes::ZERO,
        };
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
fn unended_pin_calls_are_bounded() {
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
fn pin_call_ends_if_it_loses_a_part_before_the_rest_arrives() {
    let (mut world, client, id) = one_part();
    let other = world.allocate(client, spec(4)).expect("room");
    assert_eq!(outcome(&mut world, other, false), PartRevocation::Revoked);
    world.pin_call(client, 1, &[part(id, 0), part(other, 0)]);
    assert_eq!(answer(&world, client, 1), None, "one is here, the other on its way");
    world.frame(client, ClientFrame::Unmapped(vec![world::unmapped(part(id, 0))]));
    assert!(matches!(answer(&world, client, 1), Some(Some(Refusal::AllocationNotFound { .. }))));
}

#[test]
fn parts_of_unended_pin_calls_are_bounded() {
    let mut config = config(&[Bytes::mib(64)]);
    config.limits = Limits { pin_parts_waiting_max: 5, ..Limits::default() };
    let mut world = World::with(config, StoredQuotas::default());
    let (client, other) = (world.open_pinning("a"), world.open_pinning("a"));
    let id = world.allocate(client, spec(16)).expect("room");
    let parts = [0, 1, 2, 3].map(|index| part(id, index));
    let full = || Some(Some(Refusal::QueueFull { limit: 5 }));
    world.pin_call(client, 1, &parts);
    world.pin_call(client, 2, &parts[..2]);
    assert_eq!(answer(&world, client, 2).cloned(), full(), "six parts");
    world.pin_call(client, 3, &parts[..1]);
    assert_eq!(answer(&world, client, 3), Some(&None), "five parts");
    world.frame(client, ClientFrame::PinEnded { call: 1 });
    world.pin_call(client, 4, &parts);
    assert_eq!(answer(&world, client, 4), Some(&None), "an ended call no longer counts");
    world.pin_call(client, 5, &parts[..1]);
    assert_eq!(answer(&world, client, 5).cloned(), full());

    let theirs = world.allocate(other, spec(4)).expect("room");
    world.pin_call(other, 1, &[part(theirs, 0)]);
    assert_eq!(answer(&world, other, 1), Some(&None), "each session has its own");
}

#[test]
fn session_that_breaks_the_pin_protocol_is_quarantined() {
    let pin = |call, parts| ClientFrame::Pin { call, parts, write: false, wait: None };
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
        assert_eq!(mapped_bytes(&world), Bytes::mib(4), "its mappings stand");
    }
    let mut world = World::new(64);
    let standing = world.open("a");
    let id = world.allocate(standing, spec(4)).expect("room");
    world.pin_call(standing, 1, &[part(id, 0)]);
    assert!(world.closed.contains(&standing.channel), "it speaks no pins");
}

#[test]
fn word_table_is_mapped_first_and_in_time() {
    let timeout = Limits::default().map_answer_timeout;
    let micros = u64::try_from(timeout.as_micros()).expect("not that long");
    let mut world = World::new(64);
    let (slow, quick) = (world.greet_pinning("a"), world.open_pinning("a"));
    world.advance(micros - 10);
    assert!(world.closed.is_empty(), "not yet");
    world.advance(10);
    assert_eq!(world.closed, [slow.channel].into());
    let told = world.inboxes[&slow.channel].back().cloned();
    let Some(DaemonFrame::Refused(Refusal::ProtocolBroken { problem })) = told else { panic!("{told:?}") };
    assert_eq!(problem, "the word table was not mapped within 30000 ms");
    let sessions = world.broker.list_sessions(None, None, 9).0;
    assert_eq!(sessions.iter().map(|session| session.id).collect::<Vec<_>>(), [quick.session]);

    world.frame(quick, ClientFrame::WordsMapped);
    assert!(world.closed.contains(&quick.channel), "it is mapped once");
    let early = world.greet_pinning("a");
    world.frame(early, ClientFrame::PinEnded { call: 1 });
    assert!(world.closed.contains(&early.channel), "nothing comes before that");
    let without = world.open("a");
    world.frame(without, ClientFrame::WordsMapped);
    assert!(world.closed.contains(&without.channel), "it has none");
}

#[test]
fn reader_of_a_tenants_memory_learns_none_of_its_figures() {
    let mut world = World::new(64);
    let (owner, reader) = (world.open_pinning("a"), world.open_pinning("b"));
    let shared = AllocationSpec { readers: vec!["b".to_owned()], ..persistent(16, "model") };
    let id = world.sealed(owner, shared);
    world.call(reader, ClientRequest::Attach(Target::Id(id))).expect("attached");
    world.operate(set_quota("a", 0, 8)).expect("set");
    let all = [0, 1, 2, 3].map(|index| part(id, index));
    world.pin_call(owner, 1, &all);
    let told = answer(&world, owner, 1).cloned().flatten().map(|refusal| refusal.facts());
    assert!(told.expect("a refusal").contains(&("limit", Bytes::mib(8).get().to_string())));
    world.pin_call(reader, 1, &all);
    let refusal = answer(&world, reader, 1).cloned().flatten().expect("a refusal");
    let (device, tier, asked) = ("GPU-0".to_owned(), Tier::Device, Bytes::mib(16));
    assert_eq!(refusal, Refusal::SetTooLarge { device, tier, requested: asked });
    let told = [("device", "GPU-0"), ("tier", "device"), ("asked", "16777216")];
    assert_eq!(refusal.facts(), told.map(|(key, value)| (key, value.to_owned())));
    world.pin_call(reader, 2, &all[..2]);
    assert_eq!(answer(&world, reader, 2), Some(&None));
}

#[test]
fn pin_that_blocks_itself_under_a_fence_waits_for_itself() {
    let (mut world, client, id) = one_part();
    let other = world.allocate(client, spec(4)).expect("room");
    let set = [part(id, 0), part(other, 0)];
    assert_eq!(outcome(&mut world, other, false), PartRevocation::Revoked);
    // One thread pins, and goes on: another call of its process is served when it is done.
    world.pin(client, part(id, 0));
    world.start_operator(None, revoke(id, true));
    world.run_until_idle();
    world.pin_call(client, 1, &set);
    world.advance(STALL / 2);
    world.unpin(client, part(id, 0));
    world.run_until_idle();
    assert_eq!(answer(&world, client, 1), Some(&None));
    world.frame(client, ClientFrame::PinEnded { call: 1 });

    // The daemon can't tell whether the thread that pins is the one that asks.
    world.pin(client, part(id, 0));
    world.start_operator(None, revoke(id, true));
    world.run_until_idle();
    world.pin_call(client, 2, &set);
    world.advance(STALL - 10);
    assert_eq!(answer(&world, client, 2), None, "not yet");
    world.advance(10);
    let stalled = Refusal::PinStalled { session: client.session };
    assert_eq!(answer(&world, client, 2), Some(&Some(stalled)));
    world.unpin(client, part(id, 0));
    world.pin_call(client, 3, &set);
    world.run_until_idle();
    assert_eq!(answer(&world, client, 3), Some(&None), "it lets go and tries again");
}

#[test]
fn changes_while_pin_words_are_asked_are_not_lost() {
    // The client detaches, and is told so.
    let (mut world, client, id) = one_part();
    world.start_operator(None, revoke(id, false));
    let detach = world.start(client, None, ClientRequest::Detach(vec![id]));
    world.run_until_idle();
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
        world.run_until_idle();
        assert_eq!(answer(&world, client, 1), Some(&None));
    }

    // A fence begins meanwhile: the mapper of the pinned part is told to unmap after all.
    let (mut world, client, id) = one_part();
    world.pin(client, part(id, 0));
    let evict = world.start_operator(None, revoke(id, false));
    let fence = world.start_operator(None, revoke(id, true));
    world.run_until_idle();
    assert!(!world.replies.contains_key(&evict), "both wait for the same");
    assert_eq!(
        outcome(&mut world, id, false),
        PartRevocation::Pinned { by: vec![client.session] },
        "an evict does not wait for a fence"
    );
    world.unpin(client, part(id, 0));
    assert!(world.replies[&evict].is_ok() && world.replies[&fence].is_ok());
}
