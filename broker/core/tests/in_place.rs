//! Memory that is accessed in place: it is mapped where it lies in host memory, and is not fetched.

use crate::world::{
    Client, World, config,
    moving::{charged, fill, mib, parts, three_tiers, tier, tiers, to},
    named,
    revoking::{ANSWER, answer, part, revoke},
    spec,
};
use broker_core::{
    Advice, AllocationSpec, ClientFrame, ClientRequest, Command, Completion, Event, OperatorRequest, PartRef,
    PartUse, Refusal, StoredQuotas, Target, Tier, WordsOutcome,
};
use vramd_types::{AllocationId, Bytes, DeviceIndex, PartIndex};

fn advise(world: &mut World, client: Client, id: AllocationId, advice: Advice) {
    world.call(client, ClientRequest::Advise(id, advice)).expect("it is its owner's");
    world.run_until_idle();
}

/// Pins by a call that has ended, and leaves it unpinned.
fn look(world: &mut World, client: Client, call: u64, set: &[PartRef]) {
    world.pin_call(client, call, set);
    world.run_until_idle();
    assert_eq!(answer(world, client, call), Some(&None));
    world.frame(client, ClientFrame::PinEnded { call });
    world.run_until_idle();
}

fn unpinned(mib: u32) -> AllocationSpec {
    AllocationSpec { unpinned: true, ..spec(mib) }
}

/// Its owner and a reader that pins it by its word both map it in host memory. Then it is to be fetched.
fn two_map_it_there_still() -> (World, [Client; 2], PartRef) {
    let mut world = tiers(8, 8);
    let (owner, reader) = (world.open_pinning("a"), world.open_pinning("a"));
    let part = part(world.sealed(owner, named(4, "w")), 0);
    world.call(reader, ClientRequest::Attach(Target::Name("w".to_owned()))).expect("it is there");
    world.run_until_idle();
    advise(&mut world, owner, part.allocation, Advice::SetAccessedBy);
    world.operate(to(part.allocation, Tier::Host)).expect("it goes");
    look(&mut world, owner, 1, &[part]);
    look(&mut world, reader, 1, &[part]);
    world.pin(reader, part);
    assert_eq!(tier(&world, part), Tier::Host);

    advise(&mut world, owner, part.allocation, Advice::UnsetAccessedBy);
    assert!(world.maps(owner, part) && world.maps(reader, part), "one pins it");
    look(&mut world, owner, 2, &[part]);
    assert!(world.maps(owner, part) && tier(&world, part) == Tier::Host, "no session waits for the other");
    (world, [owner, reader], part)
}

fn comes_with_the_next_pin(mut world: World, owner: Client, part: PartRef) {
    assert!(!world.maps(owner, part), "it was told to unmap it");
    look(&mut world, owner, 9, &[part]);
    assert_eq!(tier(&world, part), Tier::Device);
}

#[test]
fn unadvised_part_is_unmapped_when_no_session_pins_it() {
    let (mut world, [owner, reader], part) = two_map_it_there_still();
    world.unpin(reader, part);
    world.harvest(reader, part);
    world.run_until_idle();
    assert!(!world.maps(reader, part));
    comes_with_the_next_pin(world, owner, part);
}

/// A harvest comes from time to time: a session that was seen to pin the part may have unpinned since.
#[test]
fn unadvised_part_is_asked_for_though_its_last_harvest_saw_a_pin() {
    let mut world = tiers(8, 8);
    let owner = world.open_pinning("a");
    let part = part(world.allocate(owner, unpinned(4)).expect("room"), 0);
    advise(&mut world, owner, part.allocation, Advice::SetAccessedBy);
    world.operate(to(part.allocation, Tier::Host)).expect("it goes");
    look(&mut world, owner, 1, &[part]);
    world.pin(owner, part);
    world.harvest(owner, part);
    world.unpin(owner, part);
    advise(&mut world, owner, part.allocation, Advice::UnsetAccessedBy);
    comes_with_the_next_pin(world, owner, part);
}

#[test]
fn unadvised_part_is_asked_for_when_its_pinning_session_ends() {
    let (mut world, [owner, reader], part) = two_map_it_there_still();
    world.end_process(reader);
    world.run_until_idle();
    comes_with_the_next_pin(world, owner, part);
}

#[test]
fn unadvised_part_is_asked_for_when_its_pin_call_ends() {
    let mut world = three_tiers(8, 32, 32);
    let client = world.open_pinning("a");
    let here = part(world.allocate(client, unpinned(4)).expect("room"), 0);
    let last = part(world.allocate(client, unpinned(4)).expect("room"), 0);
    advise(&mut world, client, here.allocation, Advice::SetAccessedBy);
    world.operate(to(here.allocation, Tier::Host)).expect("it goes");
    world.operate(to(last.allocation, Tier::Disk)).expect("it goes");
    look(&mut world, client, 1, &[here]);
    let other = world.open_pinning("b");
    fill(&mut world, other, spec(8));
    world.pin_call(client, 2, &[here, last]);
    world.run_until_idle();
    assert_eq!(answer(&world, client, 2), None, "there is no room for the last");
    advise(&mut world, client, here.allocation, Advice::UnsetAccessedBy);
    assert!(world.maps(client, here), "the call is on it");
    world.advance(ANSWER);
    world.run_until_idle();
    world.frame(client, ClientFrame::PinEnded { call: 2 });
    world.run_until_idle();
    assert!(!world.maps(client, here), "it is on it no more");
}

#[test]
fn unadvised_part_is_asked_for_when_an_overdue_session_answers() {
    let (mut world, [owner, reader], part) = two_map_it_there_still();
    advise(&mut world, owner, part.allocation, Advice::SetAccessedBy);
    world.unpin(reader, part);
    world.harvest(reader, part);
    let other = world.sealed(owner, named(4, "o"));
    world.call(reader, ClientRequest::Attach(Target::Name("o".to_owned()))).expect("it is there");
    world.run_until_idle();
    world.stopped.insert(reader.channel);
    world.start_operator(None, revoke(other, false));
    world.run_until_idle();
    world.advance(2 * ANSWER);
    world.run_until_idle();
    advise(&mut world, owner, part.allocation, Advice::UnsetAccessedBy);
    assert!(world.maps(owner, part) && world.maps(reader, part), "a silent session unmaps nothing");
    world.stopped.remove(&reader.channel);
    world.run_until_idle();
    assert!(!world.maps(reader, part));
    comes_with_the_next_pin(world, owner, part);
}

/// A session whose word was found pinned may have ended before the report: no harvest will see it unpin.
#[test]
fn ended_session_does_not_count_as_pinning_in_place() {
    let (mut world, [owner, reader], part) = two_map_it_there_still();
    world.unpin(reader, part);
    world.event(Event::PartsUsed(vec![PartUse {
        session: reader.session,
        part,
        pinned: false,
        written: false,
    }]));
    let asked = |command: &Command| matches!(command, Command::RevokeWords { part: of, .. } if *of == part);
    assert!(world.work.iter().any(asked), "they are asked");
    world.work.retain(|command| !asked(command));
    world.event(Event::ProcessEnded { channel: reader.channel });
    let outcome = WordsOutcome::Pinned { by: vec![reader.session] };
    world.event(Event::Completion(Completion::WordsRevoked { part, outcome }));
    assert!(world.work.iter().any(asked), "and again");
    world.run_until_idle();
    comes_with_the_next_pin(world, owner, part);
}

#[test]
fn ended_session_does_not_keep_a_part_on_its_device() {
    let mut world = tiers(8, 32);
    let (owner, reader) = (world.open_pinning("a"), world.open_pinning("a"));
    let part = part(world.sealed(owner, named(8, "w")), 0);
    world.call(reader, ClientRequest::Attach(Target::Name("w".to_owned()))).expect("it is there");
    world.run_until_idle();
    world.start_operator(None, to(part.allocation, Tier::Host));
    let asked = |command: &Command| matches!(command, Command::RevokeWords { .. });
    assert!(world.work.iter().any(asked), "they are asked");
    world.work.retain(|command| !asked(command));
    world.event(Event::ProcessEnded { channel: reader.channel });
    for part in parts(&world, part.allocation) {
        let outcome = WordsOutcome::Pinned { by: vec![reader.session] };
        world.event(Event::Completion(Completion::WordsRevoked { part, outcome }));
    }
    world.run_until_idle();
    let other = world.open_pinning("b");
    let id = world.allocate(other, unpinned(8)).expect("room below");
    let set = parts(&world, id);
    look(&mut world, other, 1, &set);
    assert_eq!(tier(&world, set[0]), Tier::Device, "it has left for it");
}

#[test]
fn freed_allocation_cannot_be_advised() {
    let mut world = tiers(8, 8);
    let (owner, reader) = (world.open_pinning("a"), world.open_pinning("a"));
    let id = world.sealed(owner, named(4, "w"));
    world.call(reader, ClientRequest::Attach(Target::Name("w".to_owned()))).expect("it is there");
    world.run_until_idle();
    world.call(owner, ClientRequest::FreeBatch(vec![id])).expect("it is its own");
    let refused = world.call(owner, ClientRequest::Advise(id, Advice::SetAccessedBy));
    assert!(matches!(refused, Err(Refusal::AllocationNotFound { .. })), "{refused:?}");
}

#[test]
fn arriving_part_counts_as_needing_room() {
    let mut world = three_tiers(8, 32, 32);
    let client = world.open_pinning("a");
    let id = world.allocate(client, AllocationSpec { part_size: Some(mib8()), ..unpinned(8) }).expect("room");
    let last = part(world.allocate(client, unpinned(4)).expect("room"), 0);
    world.operate(to(id, Tier::Host)).expect("it goes");
    world.operate(to(last.allocation, Tier::Disk)).expect("it goes");
    let all = part(id, 0);
    world.pin_call(client, 1, &[all]);
    world.frame(client, ClientFrame::PinEnded { call: 1 });
    world.call(client, ClientRequest::Advise(id, Advice::SetAccessedBy)).expect("it is its own");
    world.pin_call(client, 2, &[all, last]);
    assert!(matches!(answer(&world, client, 2), Some(Some(Refusal::DeviceFull { .. }))));
}

fn mib8() -> Bytes {
    Bytes::mib(8)
}

#[test]
fn in_place_part_needs_no_room() {
    let mut world = tiers(8, 32);
    let client = world.open_pinning("a");
    let id = world.allocate(client, unpinned(16)).expect("room below");
    let set = parts(&world, id);
    world.pin_call(client, 1, &set);
    let is_full = |world: &World, call| matches!(answer(world, client, call), Some(Some(Refusal::DeviceFull { requested: asked, .. })) if *asked == Bytes::mib(16));
    assert!(is_full(&world, 1), "it would come");
    advise(&mut world, client, id, Advice::SetAccessedBy);
    look(&mut world, client, 2, &set);
    assert_eq!(charged(&world), mib(8, 16), "a part on the device stays there");
    advise(&mut world, client, id, Advice::UnsetAccessedBy);
    world.pin_call(client, 3, &set);
    assert!(is_full(&world, 3));
}

#[test]
fn waiter_is_refused_when_unadvised_parts_no_longer_fit() {
    let mut world = three_tiers(8, 32, 32);
    let client = world.open_pinning("a");
    let id = world.allocate(client, unpinned(8)).expect("room");
    let last = part(world.allocate(client, unpinned(4)).expect("room"), 0);
    advise(&mut world, client, id, Advice::SetAccessedBy);
    world.operate(to(id, Tier::Host)).expect("it goes");
    world.operate(to(last.allocation, Tier::Disk)).expect("it goes");
    let other = world.open_pinning("b");
    fill(&mut world, other, spec(8));
    let set = [parts(&world, id), vec![last]].concat();
    world.pin_call(client, 1, &set);
    world.run_until_idle();
    assert_eq!(answer(&world, client, 1), None, "there is no room for the last");
    advise(&mut world, client, id, Advice::UnsetAccessedBy);
    assert!(matches!(answer(&world, client, 1), Some(Some(Refusal::DeviceFull { .. }))));
}

fn asks(command: &Command) -> bool {
    matches!(command, Command::RevokeWords { .. })
}

#[test]
fn pinning_session_is_not_asked_at_every_survey() {
    let (mut world, [_, reader], part) = two_map_it_there_still();
    let (device, unbrokered, host_missing) = (DeviceIndex(0), Bytes::ZERO, Bytes::ZERO);
    world.event(Event::Completion(Completion::Surveyed { device, unbrokered, contexts: 0, host_missing }));
    assert!(!world.work.iter().any(asks), "its pins would take the long way");
    world.unpin(reader, part);
    world.harvest(reader, part);
    assert!(world.work.iter().any(asks), "it is seen to unpin it");
}

#[test]
fn pinning_session_is_not_asked_when_another_unmaps() {
    let (mut world, [owner, reader], part) = two_map_it_there_still();
    world.harvest(reader, part);
    world.pin(owner, part);
    world.harvest(owner, part);
    world.unpin(owner, part);
    world.harvest(owner, part);
    look(&mut world, owner, 3, &[part]);
    assert!(!world.work.iter().any(asks), "the reader pins it still");
    world.unpin(reader, part);
    world.harvest(reader, part);
    assert!(world.work.iter().any(asks));
}

#[test]
fn many_unadvised_parts_are_unmapped_some_at_a_time() {
    let mut config = config(&[Bytes::mib(1040)]);
    (config.devices[0].host, config.part_size) = (Bytes::mib(1040), Bytes::mib(2));
    let mut world = World::with(config, StoredQuotas::default());
    let client = world.open_pinning("a");
    let id = world.allocate(client, unpinned(1040)).expect("room");
    world.operate(to(id, Tier::Host)).expect("it goes");
    advise(&mut world, client, id, Advice::SetAccessedBy);
    let set = parts(&world, id);
    look(&mut world, client, 1, &set);
    world.start(client, None, ClientRequest::Advise(id, Advice::UnsetAccessedBy));
    let asked = |world: &World| world.work.iter().filter(|command| asks(command)).count();
    assert_eq!(asked(&world), 512);
    world.event(Event::Tick);
    assert_eq!(asked(&world), 520, "a moment later, and others were not kept waiting");
    world.run_until_idle();
    assert!(!set.iter().any(|part| world.maps(client, *part)));
}

#[test]
fn in_place_bytes_are_counted_while_the_part_lies_there() {
    let mut world = tiers(8, 32);
    let client = world.open_pinning("a");
    let id = world.allocate(client, unpinned(8)).expect("room");
    let counted = |world: &World| world.broker.counts().in_place.into_values().collect::<Vec<_>>();
    let mib = |mib| vec![Bytes::mib(mib)];
    advise(&mut world, client, id, Advice::SetAccessedBy);
    assert_eq!(counted(&world), [], "it lies on its device");
    world.operate(to(id, Tier::Host)).expect("it goes");
    assert_eq!(counted(&world), mib(8));
    advise(&mut world, client, id, Advice::UnsetAccessedBy);
    assert_eq!(counted(&world), []);
    advise(&mut world, client, id, Advice::SetAccessedBy);
    assert_eq!(counted(&world), mib(8));
    let (target, parts) = (Target::Id(id), vec![PartIndex(1)]);
    world.operate(OperatorRequest::MoveParts { target, parts, tier: Tier::Device }).expect("there is room");
    assert_eq!(counted(&world), mib(4));
    world.call(client, ClientRequest::FreeBatch(vec![id])).expect("it is its own");
    world.run_until_idle();
    assert_eq!(counted(&world), []);
}

/// After every event the counts are checked: see [`World::event`].
#[test]
fn part_freed_during_its_copy_counts_nowhere() {
    for tier in [Tier::Disk, Tier::Device] {
        let mut world = three_tiers(8, 32, 32);
        let client = world.open_pinning("a");
        let id = world.allocate(client, unpinned(4)).expect("room");
        advise(&mut world, client, id, Advice::SetAccessedBy);
        world.operate(to(id, Tier::Host)).expect("it goes");
        world.start_operator(None, to(id, tier));
        while !world.work.iter().any(|command| matches!(command, Command::Copy { .. })) {
            assert!(world.work_once(), "it is copied");
        }
        world.start(client, None, ClientRequest::FreeBatch(vec![id]));
        world.run_until_idle();
        assert_eq!(world.broker.node().allocations, 0);
    }
}
