//! Write-backs: dirty parts are copied to their backing while they stay mapped. Unless they are written since,
//! they leave without a copy.

use crate::world;

use crate::world::{
    Client, World,
    moving::{charged, evict, mib, moved, one_written, tier, tiers, to},
    persistent,
    revoking::{answer, part, revoke},
    spec,
    writing_back::{back, clean, clean_write_backs, is_copying, one_step, was_copied, write_back},
};
use broker_core::{
    AllocationSpec, ClientFrame, ClientRequest, CreateError, Event, PartMove, PartRef, Refusal, Tier,
};
use vramd_types::Bytes;

/// Runs until everything is done, whatever comes in between.
const STEPS: usize = 6;

/// One dirty part whose write-back, ordered by an operator, has come this far.
fn under_way(steps: usize) -> (World, Client, PartRef, broker_core::CallId) {
    let (mut world, client, part) = one_written();
    let call = world.start_operator(None, back(part.allocation));
    (0..steps).for_each(|_| one_step(&mut world, client));
    (world, client, part, call)
}

/// The content that its client finds in it, wherever it lies.
fn holds(world: &mut World, client: Client, part: PartRef) -> u64 {
    if !world.maps(client, part) {
        world.pin_call(client, 9, &[part]);
        world.run_until_idle();
        assert_eq!(answer(world, client, 9), Some(&None));
    }
    world.read(client, part)
}

#[test]
fn part_written_back_stays_mapped_and_leaves_without_a_copy() {
    let (mut world, client, part) = one_written();
    assert_eq!(clean(&world, "a"), Bytes::ZERO);
    assert!(matches!(write_back(&mut world, part), PartMove::Moved));
    assert!(world.maps(client, part), "it stays mapped");
    assert_eq!((charged(&world), tier(&world, part)), (mib(4, 4), Tier::Device));
    assert_eq!((clean(&world, "a"), clean_write_backs(&world, part)), (Bytes::mib(4), vec![true]));
    assert!(matches!(evict(&mut world, part), PartMove::Moved));
    assert_eq!((was_copied(&world, part), charged(&world)), (false, mib(0, 4)));
    assert!(matches!(write_back(&mut world, part), PartMove::Moved), "it is below");
    assert_eq!(holds(&mut world, client, part), 7);
}

#[test]
fn part_written_after_its_write_back_is_copied_when_it_leaves() {
    let (mut world, client, part) = one_written();
    write_back(&mut world, part);
    world.write(client, part, 8);
    evict(&mut world, part);
    assert!(was_copied(&world, part));
    assert_eq!(holds(&mut world, client, part), 8);
}

#[test]
fn part_written_during_its_write_back_is_dirty() {
    // Reported during the copy, and not before it leaves.
    for told in [true, false] {
        let (mut world, client, part, _) = under_way(2);
        assert!(is_copying(&world));
        world.write(client, part, 8);
        if told {
            let copy = world.work.pop_front().expect("the copy");
            world.operate(revoke(part.allocation, false)).expect("revoked");
            world.work.push_back(copy);
        }
        world.run_until_idle();
        assert_eq!(clean_write_backs(&world, part), [!told]);
        evict(&mut world, part);
        assert!(was_copied(&world, part));
        assert_eq!(holds(&mut world, client, part), 8);
    }
}

#[test]
fn write_before_the_copy_is_in_it_though_reported_meanwhile() {
    let (mut world, client, part) = one_written();
    // Its memory below is made first, and meanwhile it is unmapped.
    world.start_operator(None, back(part.allocation));
    let make = world.work.pop_front().expect("memory is made");
    world.operate(revoke(part.allocation, false)).expect("revoked");
    world.work.push_back(make);
    world.run_until_idle();
    assert_eq!((clean_write_backs(&world, part), clean(&world, "a")), (vec![true], Bytes::mib(4)));
    evict(&mut world, part);
    assert!(!was_copied(&world, part));
    assert_eq!(holds(&mut world, client, part), 7);
}

#[test]
fn pinned_part_is_not_written_back() {
    let (mut world, client, part) = one_written();
    world.pin(client, part);
    assert!(matches!(write_back(&mut world, part), PartMove::Pinned { by } if by == [client.session]));
    assert_eq!(clean(&world, "a"), Bytes::ZERO);
    world.unpin(client, part);
    world.pin_call(client, 1, &[part]);
    let before = world.work.len();
    let call = world.start_operator(None, back(part.allocation));
    assert_eq!(world.work.len(), before, "a pin call that is answered shows, and nothing is asked");
    let told = moved(world.replies.remove(&call).expect("an answer"));
    assert!(matches!(told, PartMove::Pinned { by } if by == [client.session]));
    // A pin during the copy does not stop it.
    world.frame(client, ClientFrame::PinEnded { call: 1 });
    world.start_operator(None, back(part.allocation));
    while !is_copying(&world) {
        one_step(&mut world, client);
    }
    world.pin(client, part);
    world.run_until_idle();
    assert_eq!(clean_write_backs(&world, part), [true]);
}

#[test]
fn part_of_a_session_without_pins_is_not_written_back() {
    let mut world = tiers(8, 8);
    let client = world.open("a");
    let part = part(world.allocate(client, spec(4)).expect("room"), 0);
    assert!(matches!(write_back(&mut world, part), PartMove::Standing { by } if by == [client.session]));
    let silent = world.open_pinning("b");
    let theirs = world::revoking::part(world.allocate(silent, spec(4)).expect("room"), 0);
    world.event(Event::ChannelEnded { channel: silent.channel });
    assert!(matches!(write_back(&mut world, theirs), PartMove::Silent { by } if by == [silent.session]));
}

#[test]
fn failed_write_back_leaves_no_clean_backing() {
    let (mut world, client, part) = one_written();
    write_back(&mut world, part);
    world.write(client, part, 8);
    world.fail_copies.push_back(Some("a cable was pulled".to_owned()));
    let failed = write_back(&mut world, part);
    assert!(matches!(failed, PartMove::Failed { problem } if problem == "a cable was pulled"));
    assert_eq!((clean(&world, "a"), charged(&world)), (Bytes::ZERO, mib(4, 4)));
    evict(&mut world, part);
    assert!(was_copied(&world, part));
    assert_eq!(holds(&mut world, client, part), 8);
}

#[test]
fn part_that_leaves_during_its_write_back_takes_the_copy() {
    for steps in 0..STEPS {
        let (mut world, client, part, call) = under_way(steps);
        assert!(matches!(evict(&mut world, part), PartMove::Moved), "after {steps} steps");
        let told = moved(world.replies.remove(&call).expect("an answer"));
        assert!(matches!(told, PartMove::Moved), "after {steps} steps: {told:?}");
        assert_eq!((charged(&world), tier(&world, part)), (mib(0, 4), Tier::Host), "after {steps} steps");
        assert_eq!(was_copied(&world, part), steps < 2, "after {steps} steps");
        assert_eq!(holds(&mut world, client, part), 7, "after {steps} steps");
    }
}

#[test]
fn part_written_and_leaving_during_its_write_back_is_copied_again() {
    for steps in 0..STEPS {
        let (mut world, client, part, _) = under_way(steps);
        world.write(client, part, 8);
        evict(&mut world, part);
        assert!(was_copied(&world, part), "after {steps} steps");
        assert_eq!(holds(&mut world, client, part), 8, "after {steps} steps");
    }
}

#[test]
fn part_wanted_during_its_write_back_stays_and_the_copy_goes_on() {
    let (mut world, client, part, _) = under_way(2);
    world.start_operator(None, to(part.allocation, Tier::Host));
    let copy = world.work.pop_front().expect("the copy");
    world.run_until_idle();
    assert!(!world.maps(client, part), "it waits for the copy alone");
    world.pin_call(client, 1, &[part]);
    world.run_until_idle();
    assert_eq!((answer(&world, client, 1), world.read(client, part)), (Some(&None), 7));
    world.work.push_back(copy);
    world.run_until_idle();
    assert_eq!((clean_write_backs(&world, part), clean(&world, "a")), (vec![true], Bytes::mib(4)));
}

#[test]
fn part_freed_during_its_write_back_leaves_nothing() {
    for steps in 0..STEPS {
        for dies in [true, false] {
            let (mut world, client, part, call) = under_way(steps);
            match dies {
                true => world.end_process(client),
                false => _ = world.call(client, ClientRequest::FreeBatch(vec![part.allocation])),
            }
            world.run_until_idle();
            assert!(world.replies.contains_key(&call), "after {steps} steps");
            assert_eq!((charged(&world), world.broker.moves()), (mib(0, 0), vec![]), "after {steps} steps");
        }
    }
}

#[test]
fn part_sealed_during_its_write_back_keeps_its_content() {
    for steps in 0..STEPS {
        let (mut world, client, part, _) = under_way(steps);
        world.write(client, part, 8);
        world.call(client, ClientRequest::Seal(part.allocation)).expect("sealed");
        world.run_until_idle();
        evict(&mut world, part);
        assert_eq!(holds(&mut world, client, part), 8, "after {steps} steps");
    }
}

#[test]
fn operator_that_moves_the_part_to_its_device_stops_its_write_back() {
    let (mut world, client, part, call) = under_way(2);
    assert!(matches!(moved(world.operate(to(part.allocation, Tier::Device))), PartMove::Moved));
    let told = moved(world.replies.remove(&call).expect("an answer"));
    assert!(matches!(told, PartMove::Wanted), "{told:?}");
    assert_eq!((clean(&world, "a"), charged(&world)), (Bytes::ZERO, mib(4, 4)));
    evict(&mut world, part);
    assert!(was_copied(&world, part));
    assert_eq!(holds(&mut world, client, part), 7);
}

#[test]
fn sealed_part_is_written_back_though_pinned() {
    let (mut world, client, part) = one_written();
    world.call(client, ClientRequest::Seal(part.allocation)).expect("sealed");
    world.pin(client, part);
    assert!(matches!(write_back(&mut world, part), PartMove::Moved));
    assert_eq!(clean_write_backs(&world, part), [true]);
    assert!(matches!(write_back(&mut world, part), PartMove::Moved));
    assert_eq!(clean_write_backs(&world, part), [true], "once is enough: no session writes it");
    world.unpin(client, part);
    // A reader that says it wrote is mistaken.
    world.write(client, part, 7);
    evict(&mut world, part);
    assert!(!was_copied(&world, part));
}

#[test]
fn part_without_mappers_is_written_back_without_asking_words() {
    let mut world = tiers(8, 8);
    let client = world.open_pinning("a");
    let unpinned = AllocationSpec { unpinned: true, ..spec(4) };
    let part = part(world.allocate(client, unpinned).expect("room"), 0);
    assert!(matches!(write_back(&mut world, part), PartMove::Moved));
    assert_eq!(clean(&world, "a"), Bytes::mib(4));
    // A later mapper says when it writes.
    assert_eq!(holds(&mut world, client, part), 0);
    world.write(client, part, 8);
    world.frame(client, ClientFrame::PinEnded { call: 9 });
    evict(&mut world, part);
    assert!(was_copied(&world, part));
}

#[test]
fn write_back_ordered_twice_is_copied_once() {
    let (mut world, _, part) = one_written();
    let calls = [0, 1].map(|_| world.start_operator(None, back(part.allocation)));
    world.run_until_idle();
    for call in calls {
        let told = moved(world.replies.remove(&call).expect("an answer"));
        assert!(matches!(told, PartMove::Moved), "{told:?}");
    }
    assert_eq!(clean_write_backs(&world, part), [true]);
}

#[test]
fn failed_backing_is_reported_and_the_part_goes_on() {
    let (mut world, client, part) = one_written();
    let problem = CreateError::OutOfHostMemory("no memory to lock".to_owned());
    world.fail_creates.push_back(Some(problem));
    let told = write_back(&mut world, part);
    assert!(
        matches!(told, PartMove::Refused { refusal } if matches!(*refusal, Refusal::TierExhausted { .. }))
    );
    assert_eq!((charged(&world), world.read(client, part)), (mib(4, 4), 7));
    assert!(matches!(write_back(&mut world, part), PartMove::Moved));
    // Where there are no bytes below none are taken from others.
    let mut world = tiers(16, 4);
    let client = world.open_pinning("a");
    let [first, second] =
        [0, 1].map(|_| world::revoking::part(world.allocate(client, spec(4)).expect("room"), 0));
    assert!(matches!(write_back(&mut world, first), PartMove::Moved));
    let told = write_back(&mut world, second);
    assert!(matches!(told, PartMove::Refused { refusal } if matches!(*refusal, Refusal::QuotaLimit { .. })));
}

#[test]
fn part_makes_room_for_a_waiter_once_it_has_backing() {
    let mut world = tiers(8, 4);
    let (a, b) = (world.open_pinning("a"), world.open_pinning("b"));
    let backed = world.allocate(a, spec(4)).expect("room");
    let part = part(world.allocate(a, spec(4)).expect("room"), 0);
    let told = write_back(&mut world, part);
    assert!(matches!(told, PartMove::Refused { .. }), "there is nothing below: {told:?}");
    world.call(a, ClientRequest::FreeBatch(vec![backed])).expect("freed");
    world.run_until_idle();
    assert!(matches!(write_back(&mut world, part), PartMove::Moved));
    let wait = std::time::Duration::from_secs(60);
    let waiting = world.start(b, None, ClientRequest::AllocateBatch { items: vec![spec(8)], wait });
    world.run_until_idle();
    assert!(matches!(world.replies.get(&waiting), Some(Ok(_))), "it has left");
    assert_eq!(tier(&world, part), Tier::Host);
}

#[test]
fn write_back_without_a_tier_below_is_refused_as_a_whole() {
    let (mut world, client, part) = one_written();
    let discardable = AllocationSpec { discardable: true, ..spec(4) };
    let discardable = world.allocate(client, discardable).expect("room");
    let refused = world.operate(back(discardable));
    assert!(matches!(refused, Err(Refusal::KindUnsupported { kind: "backed discardable" })), "{refused:?}");
    let mut without = World::new(8);
    let client = without.open_pinning("a");
    let id = without.allocate(client, persistent(4, "n")).expect("room");
    let refused = without.operate(back(id));
    assert!(matches!(refused, Err(Refusal::TierUnsupported { tier: Tier::Host })), "{refused:?}");
    assert!(matches!(write_back(&mut world, part), PartMove::Moved));
}

#[test]
fn write_back_is_shown_among_moves() {
    let (mut world, _, part, _) = under_way(2);
    let shown = world.broker.moves();
    assert_eq!((shown.len(), shown[0].part, shown[0].to), (1, part, Tier::Host));
    assert_eq!(shown[0].cause, broker_core::Cause::WriteBack);
    world.run_until_idle();
    assert_eq!(world.broker.moves(), []);
}
