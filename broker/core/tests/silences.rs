//! Sessions that never unmap: a waiter loses one deadline to the first of them, and no further one to each other.

use crate::world;

use std::time::Duration;

use crate::world::{
    Client, World,
    moving::{tier, tiers},
    revoking::{UNMAPPED, answer, part},
    spec,
};
use broker_core::{CallId, ClientRequest, DaemonFrame, PartMove, PartRef, Tier};

const PID: u32 = 7;

/// A session with one part of 4 MiB. Sessions that come later have used theirs later.
fn holder(world: &mut World, client: Client) -> (Client, PartRef) {
    let part = part(world.allocate(client, spec(4)).expect("room"), 0);
    (client, part)
}

fn holders(world: &mut World, count: usize, pid: impl Fn(u32) -> u32) -> Vec<(Client, PartRef)> {
    let open = |at| {
        let client = world.open_pinning_in(pid(at), "a");
        holder(world, client)
    };
    (0..).take(count).map(open).collect()
}

fn begin_wait(world: &mut World, client: Client, wait: Duration) -> CallId {
    let call = world.start(client, None, ClientRequest::AllocateBatch { items: vec![spec(4)], wait });
    world.run_until_idle();
    call
}

/// Lets so many deadlines pass until the call is answered.
fn deadlines(world: &mut World, call: CallId) -> usize {
    for passed in 0..20 {
        if world.replies.contains_key(&call) {
            return passed;
        }
        world.advance(UNMAPPED);
        world.run_until_idle();
    }
    panic!("the call is not answered");
}

fn is_asked(world: &World, client: Client) -> bool {
    let frames = world.inboxes.get(&client.channel);
    frames.is_some_and(|frames| frames.iter().any(|frame| matches!(frame, DaemonFrame::Revoke { .. })))
}

#[test]
fn after_a_silence_other_processes_are_asked_first() {
    let mut world = tiers(44, 64);
    let silent = holders(&mut world, 10, |_| PID);
    let honest = world.open_pinning("b");
    let (_, theirs) = holder(&mut world, honest);
    world.stopped.extend(silent.iter().map(|(client, _)| client.channel));
    let waiter = world.open_pinning("c");
    let call = begin_wait(&mut world, waiter, Duration::from_secs(60));
    assert!(is_asked(&world, silent[0].0), "the least recently used part is first");
    assert_eq!(deadlines(&mut world, call), 1);
    assert!(world.replies[&call].is_ok());
    assert_eq!(tier(&world, theirs), Tier::Host);
    assert!(silent.iter().all(|(client, _)| is_asked(&world, *client)), "their turn would have come before");
}

#[test]
fn after_a_silence_all_sessions_of_the_process_are_asked_at_once() {
    for answers in [9, 10] {
        let mut world = tiers(40, 64);
        let all = holders(&mut world, 10, |_| PID);
        world.stopped.extend(all.iter().take(answers).map(|(client, _)| client.channel));
        let waiter = world.open_pinning("b");
        let call = begin_wait(&mut world, waiter, Duration::from_secs(60));
        world.advance(UNMAPPED);
        assert!(world.replies.is_empty());
        world.run_until_idle();
        assert!(all.iter().take(answers).all(|(client, _)| is_asked(&world, *client)));
        if answers == 9 {
            assert_eq!(deadlines(&mut world, call), 0, "the last one has answered");
            continue;
        }
        world.advance(UNMAPPED);
        let silent = world.broker.list_sessions(None, None, 20).0;
        assert_eq!(silent.iter().filter(|row| row.silent_reason.is_some()).count(), 10);
        assert!(world.replies.is_empty(), "no part can leave");
        world.stopped.remove(&all[4].0.channel);
        world.run_until_idle();
        assert!(world.replies[&call].is_ok(), "a late answer makes room at once");
    }
}

#[test]
fn silent_processes_with_one_session_each_cost_one_deadline() {
    let mut world = tiers(40, 64);
    let all = holders(&mut world, 10, |at| PID + at);
    world.stopped.extend(all.iter().take(9).map(|(client, _)| client.channel));
    let waiter = world.open_pinning("b");
    let call = begin_wait(&mut world, waiter, Duration::from_secs(60));
    assert_eq!(deadlines(&mut world, call), 1);
    assert_eq!(tier(&world, all[9].1), Tier::Host);
}

/// A request without a time to wait is refused once no eviction helps it, and not before.
#[test]
fn parts_that_are_asked_for_ahead_can_still_leave() {
    let mut world = tiers(12, 64);
    let all = holders(&mut world, 3, |_| PID);
    world.stopped.extend(all.iter().map(|(client, _)| client.channel));
    let waiter = world.open_pinning("b");
    let call = begin_wait(&mut world, waiter, Duration::ZERO);
    world.advance(UNMAPPED);
    world.run_until_idle();
    world.event(broker_core::Event::ChannelEnded { channel: all[1].0.channel });
    world.run_until_idle();
    assert!(world.replies.is_empty(), "the third may answer");
    world.stopped.remove(&all[2].0.channel);
    world.run_until_idle();
    assert!(world.replies[&call].is_ok());
}

#[test]
fn distrusted_process_is_not_spared() {
    let mut world = tiers(16, 64);
    let all = holders(&mut world, 2, |_| PID);
    let honest = world.open_pinning("b");
    let theirs = [holder(&mut world, honest).1, holder(&mut world, honest).1];
    world.stopped.insert(all[0].0.channel);
    let waiter = world.open_pinning("c");
    let first = begin_wait(&mut world, waiter, Duration::from_secs(60));
    assert_eq!(deadlines(&mut world, first), 1);
    assert_eq!((tier(&world, all[1].1), tier(&world, theirs[0])), (Tier::Device, Tier::Host));
    assert!(!world.maps(all[1].0, all[1].1), "it was asked meanwhile, and has answered");
    let second = begin_wait(&mut world, waiter, Duration::from_secs(60));
    assert_eq!(deadlines(&mut world, second), 0);
    assert_eq!((tier(&world, all[1].1), tier(&world, theirs[1])), (Tier::Host, Tier::Device));
}

#[test]
fn order_is_that_of_use_again_once_the_silent_process_is_gone() {
    let mut world = tiers(12, 64);
    let [silent, old] = [PID, 8].map(|pid| {
        let client = world.open_pinning_in(pid, "a");
        holder(&mut world, client)
    });
    world.stopped.insert(silent.0.channel);
    assert!(matches!(evict_late(&mut world, silent.1), PartMove::Silent { .. }));
    world.end_process(silent.0);
    let new = world.open_pinning("b");
    let parts = [holder(&mut world, new).1, holder(&mut world, new).1];
    world.harvest(new, parts[0]);
    let waiter = world.open_pinning("c");
    let call = begin_wait(&mut world, waiter, Duration::ZERO);
    assert!(world.replies[&call].is_ok());
    assert_eq!(tier(&world, old.1), Tier::Host);
    world.pin_call(old.0, 1, &[old.1]);
    world.run_until_idle();
    assert_eq!(answer(&world, old.0, 1), Some(&None));
}

/// Evicts a part whose session does not answer.
fn evict_late(world: &mut World, part: PartRef) -> PartMove {
    let call = world.start_operator(None, world::moving::to(part.allocation, Tier::Host));
    world.run_until_idle();
    world.advance(UNMAPPED);
    world.run_until_idle();
    world::moving::moved(world.replies.remove(&call).expect("an answer"))
}
