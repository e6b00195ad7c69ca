//! Sessions that end, fall silent, answer late or wrongly, or come back.

use crate::world::{Client, World, config, named, spec};
use broker_core::{
    ClientFrame, ClientRequest, DaemonFrame, Event, OperatorRequest, PartRef, Refusal, Reply, SessionState,
    StoredQuotas, Target,
};
use vramd_types::{AllocationId, Bytes, PartIndex, Reason};

#[test]
fn process_may_end_at_any_point() {
    // Before the extents are made, before the parts are sent, before they are answered, when mapped, while sealing.
    for steps in 0..24 {
        let mut world = World::new(64);
        let client = world.open("a");
        let other = world.open("b");
        let kept = world.allocate(other, spec(6)).expect("room");
        let first = world.allocate(client, spec(6)).expect("room");
        world.start(client, None, ClientRequest::allocate(vec![spec(6), named(6, "x")]));
        world.start(client, None, ClientRequest::Seal(first));
        for step in 0..steps {
            match step % 2 {
                0 => _ = world.work_once(),
                _ => _ = world.answer_once(client.channel),
            }
        }
        world.event(Event::ChannelEnded { channel: client.channel });
        world.end_process(client);
        assert_eq!(world.charged(), Bytes::mib(6), "after {steps} steps");
        assert_eq!(world.broker.node().allocations, 1);
        assert_eq!(world.broker.node().fds_in_flight, 0);
        assert!(world.broker.show(&Target::Id(kept)).is_ok());
    }
}

#[test]
fn silent_session_stays_charged_until_its_process_ends() {
    let mut world = World::new(64);
    let client = world.open("a");
    world.allocate(client, spec(8)).expect("room");
    world.event(Event::ChannelEnded { channel: client.channel });
    world.run_until_idle();
    let (sessions, _) = world.broker.list_sessions(None, None, 10);
    assert_eq!(sessions[0].state, SessionState::Silent);
    assert_eq!(world.charged(), Bytes::mib(8));
    let lost = world.call(client, ClientRequest::allocate(vec![spec(2)])).expect_err("lost");
    assert_eq!(lost.reason(), Reason::SessionLost);
    world.end_process(client);
    assert_eq!(world.charged(), Bytes::ZERO);
    let lost = world.call(client, ClientRequest::allocate(vec![spec(2)])).expect_err("lost");
    assert_eq!(lost.reason(), Reason::SessionLost);
}

#[test]
fn new_channel_of_the_same_process_may_end_its_old_session() {
    let mut world = World::new(64);
    let client = world.open("a");
    world.allocate(client, spec(8)).expect("room");
    world.event(Event::ChannelEnded { channel: client.channel });
    world.hello_after("a", client.pid + 1, None, vec![client.session]);
    assert_eq!(world.charged(), Bytes::mib(8), "another process may not");
    world.hello_after("a", client.pid, None, vec![client.session]);
    world.run_until_idle();
    assert_eq!(world.charged(), Bytes::ZERO);
}

#[test]
fn answers_that_do_not_fit_are_quarantined() {
    let bad = PartRef { allocation: AllocationId::from_raw(77), part: PartIndex(0) };
    for repeat in [false, true] {
        let mut world = World::new(64);
        let client = world.open("a");
        let id = world.allocate(client, spec(4)).expect("room");
        let own = PartRef { allocation: id, part: PartIndex(0) };
        let part = if repeat { own } else { bad };
        world.event(Event::Frame { channel: client.channel, frame: ClientFrame::Mapped(vec![part]) });
        assert!(world.closed.contains(&client.channel));
        let last = world.inboxes[&client.channel].back();
        assert!(matches!(last, Some(DaemonFrame::Refused(Refusal::ProtocolBroken { .. }))), "{last:?}");
        assert_eq!(world.charged(), Bytes::mib(4), "its mappings stand");
        world.end_process(client);
        assert_eq!(world.charged(), Bytes::ZERO);
    }
}

#[test]
fn stopped_client_loses_its_channel_and_keeps_no_other_waiting() {
    let mut base = config(&[Bytes::gib(4)]);
    base.limits.fds_in_flight_max = 200;
    base.limits.fds_in_flight_per_tenant_max = 150;
    let mut world = World::with(base, StoredQuotas::default());
    let (stopped, other) = (world.open("a"), world.open("b"));
    world.stopped.insert(stopped.channel);
    world.allocate(stopped, spec(600)).expect("room");
    assert_eq!(world.broker.node().fds_in_flight, 128, "one packet");
    world.allocate(other, spec(800)).expect("room");
    assert_eq!(world.mapped[&other.channel].len(), 200);
    world.advance(31_000_000);
    assert!(world.closed.contains(&stopped.channel));
    assert_eq!(world.broker.node().fds_in_flight, 128, "they can still be received");
    world.end_process(stopped);
    assert_eq!(world.broker.node().fds_in_flight, 0);
    assert_eq!(world.charged_to("a"), Bytes::ZERO);
}

#[test]
fn overdue_session_is_silent_until_it_answers() {
    let mut world = World::new(64);
    let client = world.open("a");
    let id = world.allocate(client, spec(4)).expect("room");
    world.stopped.insert(client.channel);
    let call = world.start(client, None, ClientRequest::FreeBatch(vec![id]));
    world.run_until_idle();
    assert!(!world.replies.contains_key(&call));
    world.advance(11_000_000);
    let Some(Ok(Reply::Released(items))) = world.replies.get(&call) else { panic!("told as it stands") };
    assert_eq!(items[0].1.as_ref().expect("freed").still_charged, Bytes::mib(4));
    let state = |world: &World| world.broker.list_sessions(None, None, 1).0[0].state;
    assert_eq!(state(&world), SessionState::Silent);
    world.stopped.clear();
    world.run_until_idle();
    assert_eq!((state(&world), world.charged()), (SessionState::Live, Bytes::ZERO));
}

/// Found by the simulator: the room of an ended session went to the next one that was about to end. The parts
/// that it was sent were released in the same moment.
#[test]
fn sessions_reported_as_over_are_sent_nothing_further() {
    let mut base = config(&[Bytes::mib(100)]);
    base.limits.fds_in_flight_max = 1;
    let mut world = World::with(base, StoredQuotas::default());
    let first = world.open("a");
    let (channel, answer) = world.hello("a", first.pid, None);
    let DaemonFrame::Welcome { session, .. } = answer else { panic!("no welcome: {answer:?}") };
    let second = Client { channel, session, ..first };
    world.stopped.extend([first.channel, second.channel]);
    world.start(first, None, ClientRequest::allocate(vec![spec(4)]));
    world.run_until_idle();
    world.start(second, None, ClientRequest::allocate(vec![spec(4)]));
    world.run_until_idle();
    world.hello_after("a", first.pid, None, vec![first.session, second.session]);
    let sent = world.inboxes.get(&second.channel).into_iter().flatten();
    assert!(
        sent.clone().all(|frame| !matches!(frame, DaemonFrame::Map(_))),
        "{:?}",
        sent.collect::<Vec<_>>()
    );
}

/// A client that once missed a deadline keeps no request waiting for ever: a later one has a deadline as well.
#[test]
fn request_that_waits_for_an_overdue_session_has_a_deadline() {
    let mut world = World::new(100);
    let client = world.open("a");
    let id = world.allocate(client, spec(8)).expect("room");
    world.stopped.insert(client.channel);
    let first = world.start(client, None, ClientRequest::FreeBatch(vec![id]));
    world.advance(11_000_000);
    assert!(world.replies.contains_key(&first));
    let second = world.start(client, None, ClientRequest::FreeBatch(vec![id]));
    assert!(!world.replies.contains_key(&second));
    world.advance(11_000_000);
    assert!(world.replies.contains_key(&second));

    let end = |kill| OperatorRequest::EndSession { session: client.session, kill };
    let asked = world.start_operator(None, end(false));
    world.advance(11_000_000);
    assert!(matches!(world.replies[&asked], Ok(Reply::SessionEnded { gone: false, .. })));
    world.start_operator(None, end(true));
    assert_eq!(world.killed, [client.channel], "it was asked already");
}

/// Found by the simulator: a session that answered was sent its next packet first. One with many parts kept all
/// others waiting until the last of them.
#[test]
fn session_that_answers_waits_behind_those_that_wait_for_the_budget() {
    let mut base = config(&[Bytes::mib(100)]);
    base.limits.fds_in_flight_max = 1;
    let mut world = World::with(base, StoredQuotas::default());
    let (busy, other) = (world.open("a"), world.open("b"));
    world.stopped.extend([busy.channel, other.channel]);
    for client in [busy, other] {
        world.start(client, None, ClientRequest::allocate(vec![spec(12)]));
        world.run_until_idle();
    }
    let sent = |world: &World, client: Client| {
        let unread = world.inboxes.get(&client.channel).into_iter().flatten();
        unread.filter(|frame| matches!(frame, DaemonFrame::Map(_))).count()
    };
    assert_eq!((sent(&world, busy), sent(&world, other)), (1, 0));
    world.stopped.remove(&busy.channel);
    world.run_until_idle();
    assert_eq!((world.mapped[&busy.channel].len(), sent(&world, other)), (1, 1), "they take turns");
    world.stopped.clear();
    world.run_until_idle();
    assert_eq!((world.mapped[&busy.channel].len(), world.mapped[&other.channel].len()), (3, 3));
}
