//! Turns: sessions whose working sets do not fit on a device together have it one after the other.

use std::time::Duration;

use crate::advised_order::{advise, reasons};
use crate::world::{
    Client, World, config,
    moving::{evict, parts, tier, tiers, to},
    revoking::part,
    set_quota, spec,
};
use broker_core::{
    AdvicePermission, AllocationSpec, ClientFrame, ClientRequest, Config, Event, EvictionPolicy,
    EvictionReason, Kind, Notice, OperatorRequest, PartRef, Refusal, Reply, Retention, StoredQuotas,
    TenantClass, Tier, TurnEnd, TurnLimits, TurnPhase, TurnState, WorkingSetSpec,
};
use vramd_types::{AllocationId, Bytes, Reason};

const QUANTUM: u64 = 30_000_000;
const OVERDUE: u64 = 10_000_000;

/// A client with a working set.
#[derive(Clone, Copy)]
struct Member {
    client: Client,
    allocation: AllocationId,
}

fn declare(world: &mut World, client: Client, number: u64, name: &str, allocations: &[AllocationId]) {
    let spec = WorkingSetSpec { name: name.to_owned(), allocations: allocations.to_vec() };
    world.frame(client, ClientFrame::WorkingSet { number, spec });
}

/// A session with a set `s` of so many MiB, which may lie in host memory.
fn member(world: &mut World, tenant: &str, mib: u32) -> Member {
    let client = world.open_pinning(tenant);
    let spec = AllocationSpec { unpinned: true, ..spec(mib) };
    let allocation = world.allocate(client, spec).expect("room");
    declare(world, client, 1, "s", &[allocation]);
    assert_eq!(world.set_answers[&(client.channel, 1)], None);
    Member { client, allocation }
}

fn request(world: &mut World, member: Member, turn: u64) {
    world.frame(member.client, ClientFrame::TurnRequested { turn, set: 1, wait: None });
    world.run_until_idle();
}

fn give_up(world: &mut World, member: Member, turn: u64) {
    world.frame(member.client, ClientFrame::TurnYielded { turn });
    world.run_until_idle();
}

fn states(world: &World, member: Member, turn: u64) -> Vec<TurnState> {
    world.turn_states.get(&(member.client.channel, turn)).cloned().unwrap_or_default()
}

fn is_granted(world: &World, member: Member, turn: u64) -> bool {
    states(world, member, turn).contains(&TurnState::Granted)
}

fn is_ending(world: &World, member: Member, turn: u64) -> bool {
    let is_ending = |state: &TurnState| matches!(state, TurnState::Ending { .. });
    states(world, member, turn).iter().any(is_ending)
}

fn refused(world: &World, member: Member, turn: u64) -> Option<Reason> {
    match states(world, member, turn).last() {
        Some(TurnState::Refused(refusal)) => Some(refusal.reason()),
        _ => None,
    }
}

fn phase(world: &World, member: Member) -> TurnPhase {
    let sets = world.broker.working_sets();
    sets.iter().find(|set| set.session == member.client.session).map_or(TurnPhase::Idle, |set| set.phase)
}

fn is_resident(world: &World, member: Member) -> bool {
    parts(world, member.allocation).into_iter().all(|part| {
        let view = world.broker.show(&broker_core::Target::Id(part.allocation)).expect("it is there");
        view.parts[usize::try_from(part.part.0).expect("small")].tier == Tier::Device
            && world.maps(member.client, part)
    })
}

/// Two sets of 12 MiB on a device of 16 MiB; the first one has the turn.
fn contended() -> (World, Member, Member) {
    let mut world = tiers(16, 64);
    let (a, b) = (member(&mut world, "a", 12), member(&mut world, "b", 12));
    request(&mut world, a, 1);
    assert!(is_granted(&world, a, 1) && is_resident(&world, a));
    request(&mut world, b, 1);
    assert_eq!(phase(&world, b), TurnPhase::Waiting);
    (world, a, b)
}

/// A client whose pin call of 8 MiB finds its memory below the device.
fn caller(world: &mut World) -> Client {
    let client = world.open_pinning("c");
    let id = world.allocate(client, AllocationSpec { unpinned: true, ..spec(8) }).expect("room below");
    let wanted = parts(world, id);
    world.pin_call(client, 1, &wanted);
    client
}

/// A set of 12 MiB in its turn on a device of 16 MiB, and a client whose pin call waits for room. A harvest has seen the
/// whole set pinned.
fn pinned_in_its_turn() -> (World, Member, Client) {
    let mut world = tiers(16, 64);
    let owner = member(&mut world, "a", 12);
    request(&mut world, owner, 1);
    for part in parts(&world, owner.allocation) {
        world.pin(owner.client, part);
        world.harvest(owner.client, part);
    }
    let caller = caller(&mut world);
    world.run_until_idle();
    (world, owner, caller)
}

fn pass(world: &mut World, micros: u64) {
    world.advance(micros);
    world.run_until_idle();
}

#[test]
fn sets_that_fit_together_take_no_turns() {
    let mut world = tiers(32, 64);
    let (a, b) = (member(&mut world, "a", 12), member(&mut world, "b", 12));
    for it in [a, b] {
        request(&mut world, it, 1);
        assert!(is_granted(&world, it, 1));
    }
    pass(&mut world, 10 * QUANTUM);
    assert!(!is_ending(&world, a, 1) && !is_ending(&world, b, 1), "no other turn waits");
    assert!(is_resident(&world, a) && is_resident(&world, b));
}

#[test]
fn sets_that_do_not_fit_alternate_and_are_resident_at_the_grant() {
    let (mut world, mut owner, mut next) = contended();
    let mut turns = (1, 1);
    for _ in 0..6 {
        assert!(!is_ending(&world, owner, turns.0), "its quantum has not ended");
        pass(&mut world, QUANTUM);
        assert!(is_ending(&world, owner, turns.0) && !is_granted(&world, next, turns.1));
        give_up(&mut world, owner, turns.0);
        assert!(is_granted(&world, next, turns.1) && is_resident(&world, next));
        request(&mut world, owner, turns.0 + 1);
        (owner, next, turns) = (next, owner, (turns.1, turns.0 + 1));
    }
}

#[test]
fn owner_keeps_its_turn_while_no_other_waits_and_until_its_quantum_ends() {
    let mut world = tiers(16, 64);
    let (a, b) = (member(&mut world, "a", 12), member(&mut world, "b", 12));
    request(&mut world, a, 1);
    pass(&mut world, 5 * QUANTUM);
    assert_eq!(phase(&world, a), TurnPhase::Owned);
    request(&mut world, b, 1);
    assert_eq!(phase(&world, a), TurnPhase::Ending, "its quantum was over before the other one came");
    assert_eq!(states(&world, a, 1).len(), 2);
    pass(&mut world, OVERDUE / 2);
    give_up(&mut world, a, 1);
    assert!(is_granted(&world, b, 1));
    let ended = |notice: &Notice| matches!(notice, Notice::TurnEnded { end: TurnEnd::Yielded, .. });
    assert!(world.notices.iter().any(ended));
}

#[test]
fn no_part_of_an_owner_leaves_for_others() {
    let (mut world, a, b) = contended();
    let other = caller(&mut world);
    world.run_until_idle();
    assert!(is_resident(&world, a), "the call waits");
    pass(&mut world, QUANTUM);
    give_up(&mut world, a, 1);
    world.run_until_idle();
    assert!(
        world.pin_answers.get(&(other.channel, 1)).is_some_and(Option::is_none),
        "it came before the turn"
    );
    world.frame(other, ClientFrame::PinEnded { call: 1 });
    world.run_until_idle();
    assert!(is_granted(&world, b, 1) && is_resident(&world, b));
}

#[test]
fn second_turn_of_a_session_is_refused() {
    let (mut world, a, b) = contended();
    for (it, turn) in [(a, 2), (b, 2)] {
        request(&mut world, it, turn);
        assert_eq!(refused(&world, it, turn), Some(Reason::TurnHeld));
        let text = match states(&world, it, turn).remove(0) {
            TurnState::Refused(refusal) => refusal.to_string(),
            other => panic!("{other:?}"),
        };
        assert!(text.contains("could wait for itself"), "{text}");
    }
    assert_eq!((phase(&world, a), phase(&world, b)), (TurnPhase::Owned, TurnPhase::Waiting));
}

/// How many parts of a set are on the device, or on their way to it.
fn coming(world: &World, member: Member) -> usize {
    let moves = world.broker.moves();
    let view = world.broker.show(&broker_core::Target::Id(member.allocation)).expect("it is there");
    let comes = |index| {
        let part = PartRef { allocation: member.allocation, part: index };
        moves.iter().any(|it| it.part == part && it.to == Tier::Device)
    };
    view.parts.iter().filter(|part| part.tier == Tier::Device || comes(part.index)).count()
}

#[test]
fn set_whose_turn_is_next_comes_to_free_room() {
    let mut world = tiers(32, 128);
    let members = ["a", "b", "c"].map(|tenant| member(&mut world, tenant, 20));
    for it in members {
        world.operate(to(it.allocation, Tier::Host)).expect("there is room in the host");
        world.run_until_idle();
    }
    assert_eq!(members.map(|it| coming(&world, it)), [0; 3]);
    for it in members {
        request(&mut world, it, 1);
    }
    let [a, b, c] = members;
    assert!(is_granted(&world, a, 1) && is_resident(&world, a));
    assert_eq!(phase(&world, b), TurnPhase::Waiting);
    // 8 of 12 MiB that are free: with all of them cold parts would have to leave.
    assert_eq!([coming(&world, b), coming(&world, c)], [2, 0]);

    give_up(&mut world, a, 1);
    assert!(is_granted(&world, b, 1) && is_resident(&world, b));
    // Three parts of the set before still fit and stay, and there is no room for the next one.
    assert_eq!([coming(&world, a), coming(&world, c)], [3, 0]);
}

#[test]
fn session_end_and_channel_end_are_yields() {
    for ends in [true, false] {
        let (mut world, a, b) = contended();
        match ends {
            true => world.event(Event::ProcessEnded { channel: a.client.channel }),
            false => world.event(Event::ChannelEnded { channel: a.client.channel }),
        }
        world.run_until_idle();
        assert_eq!(phase(&world, a), TurnPhase::Idle);
        let ended = |notice: &Notice| matches!(notice, Notice::TurnEnded { end: TurnEnd::SessionEnded, .. });
        assert!(world.notices.iter().any(ended));
        // Its mappings stand until the process ends.
        if !ends {
            assert_eq!(phase(&world, b), TurnPhase::HandOver);
            world.end_process(a.client);
        }
        assert!(is_granted(&world, b, 1) && is_resident(&world, b));
    }
}

#[test]
fn end_of_a_session_in_the_hand_over_lets_the_next_one_have_the_turn() {
    let (mut world, a, b) = contended();
    let c = member(&mut world, "c", 12);
    request(&mut world, c, 1);
    world.frame(a.client, ClientFrame::TurnYielded { turn: 1 });
    assert_eq!(phase(&world, b), TurnPhase::HandOver);
    world.end_process(b.client);
    assert!(is_granted(&world, c, 1) && is_resident(&world, c));
}

#[test]
fn wait_ends_with_its_deadline_or_by_its_client() {
    let (mut world, a, b) = contended();
    let c = member(&mut world, "c", 12);
    let wait = Some(Duration::from_secs(2));
    world.frame(c.client, ClientFrame::TurnRequested { turn: 1, set: 1, wait });
    pass(&mut world, 1_000_000);
    assert_eq!(refused(&world, c, 1), None);
    pass(&mut world, 1_000_000);
    assert_eq!(refused(&world, c, 1), Some(Reason::Deadline));
    give_up(&mut world, b, 1);
    assert_eq!(phase(&world, b), TurnPhase::Idle);
    pass(&mut world, 2 * QUANTUM);
    assert!(!is_ending(&world, a, 1), "no other turn waits");
    request(&mut world, b, 2);
    assert!(is_ending(&world, a, 1));
}

fn set_tenant(world: &mut World, tenant: &str, class: Option<TenantClass>, weight: Option<u32>) {
    let request = OperatorRequest::SetTenant { tenant: tenant.to_owned(), class, weight, advice: None };
    world.operate(request).expect("valid");
}

#[test]
fn higher_class_comes_first_and_waits_for_the_shortest_quantum_alone() {
    let (mut world, a, b) = contended();
    set_tenant(&mut world, "c", Some(TenantClass::Interactive), None);
    let c = member(&mut world, "c", 12);
    request(&mut world, c, 1);
    assert!(!is_ending(&world, a, 1), "its shortest quantum is not over");
    pass(&mut world, 1_000_000);
    assert!(is_ending(&world, a, 1), "its shortest quantum is over");
    give_up(&mut world, a, 1);
    assert!(is_granted(&world, c, 1) && !is_granted(&world, b, 1));
}

#[test]
fn tenants_share_time_and_not_the_number_of_turns() {
    // Three sessions, so that two wait whenever one yields.
    let mut world = tiers(16, 128);
    let short = [member(&mut world, "a", 12), member(&mut world, "a", 12)];
    let long = member(&mut world, "b", 12);
    let mut turn = [1, 1, 1];
    let all = [short[0], short[1], long];
    for (member, turn) in all.iter().zip(turn) {
        request(&mut world, *member, turn);
    }
    let mut held = [0u64, 0];
    for _ in 0..120 {
        let at = (0..3).find(|at| is_granted(&world, all[*at], turn[*at])).expect("one has the turn");
        let seconds = if at == 2 { 20 } else { 5 };
        pass(&mut world, seconds * 1_000_000);
        held[usize::from(at == 2)] += seconds;
        give_up(&mut world, all[at], turn[at]);
        turn[at] += 1;
        request(&mut world, all[at], turn[at]);
    }
    assert!(held[0].abs_diff(held[1]) <= 40, "{held:?}");
    assert!(turn[0].abs_diff(turn[1]) <= 1, "the sessions of a tenant take turns: {turn:?}");
}

#[test]
fn weights_divide_the_time() {
    let mut world = tiers(16, 128);
    set_tenant(&mut world, "a", None, Some(300));
    let (mut turn, mut held) = ([1; 4], [0u64, 0]);
    let all = ["a", "a", "b", "b"].map(|tenant| member(&mut world, tenant, 12));
    for (member, turn) in all.iter().zip(turn) {
        request(&mut world, *member, turn);
    }
    for _ in 0..200 {
        let at = (0..4).find(|at| is_granted(&world, all[*at], turn[*at])).expect("one has the turn");
        pass(&mut world, 4_000_000);
        held[at / 2] += 4;
        give_up(&mut world, all[at], turn[at]);
        turn[at] += 1;
        request(&mut world, all[at], turn[at]);
    }
    assert!((580..=620).contains(&held[0]) && held[0] + held[1] == 800, "{held:?}");
}

fn with_limits(turns: TurnLimits) -> (World, Member, Member) {
    let mut config: Config = config(&[Bytes::mib(16)]);
    config.devices[0].host = Bytes::mib(64);
    config.limits.turns = turns;
    let mut world = World::with(config, StoredQuotas::default());
    let (a, b) = (member(&mut world, "a", 12), member(&mut world, "b", 12));
    request(&mut world, a, 1);
    request(&mut world, b, 1);
    (world, a, b)
}

#[test]
fn overdue_turn_is_reported_and_its_process_killed_where_configured() {
    for end_after in [0, 20] {
        let end_after = Duration::from_secs(end_after);
        let (mut world, a, b) = with_limits(TurnLimits { end_after, ..TurnLimits::default() });
        pass(&mut world, QUANTUM);
        assert!(is_ending(&world, a, 1));
        let is_overdue = |notice: &&Notice| matches!(notice, Notice::TurnOverdue { .. });
        assert_eq!(world.notices.iter().filter(is_overdue).count(), 0);
        pass(&mut world, OVERDUE);
        assert_eq!(world.notices.iter().filter(is_overdue).count(), 1);
        assert_eq!((phase(&world, a), world.killed.len()), (TurnPhase::Overdue, 0));
        pass(&mut world, OVERDUE);
        if end_after.is_zero() {
            pass(&mut world, 100 * OVERDUE);
            assert_eq!((world.killed.len(), phase(&world, b)), (0, TurnPhase::Waiting));
            give_up(&mut world, a, 1);
        } else {
            assert_eq!(world.killed, [a.client.channel]);
            let killed = |notice: &Notice| matches!(notice, Notice::SessionKilled { reason, .. } if reason.contains("yield"));
            assert!(world.notices.iter().any(killed));
            world.end_process(a.client);
        }
        assert!(is_granted(&world, b, 1) && is_resident(&world, b));
        assert_eq!(world.notices.iter().filter(is_overdue).count(), 1, "it is reported once");
    }
}

#[test]
fn operator_asks_an_owner_to_yield() {
    let (mut world, a, b) = contended();
    let ask = |it: Member, set: &str| OperatorRequest::YieldTurn {
        session: it.client.session,
        set: set.to_owned(),
    };
    let refused = |world: &mut World, request| world.operate(request).expect_err("refused").reason();
    assert_eq!(refused(&mut world, ask(a, "other")), Reason::TurnNotFound);
    assert_eq!(refused(&mut world, ask(b, "s")), Reason::TurnNotFound);
    for _ in 0..2 {
        assert!(matches!(world.operate(ask(a, "s")), Ok(Reply::TurnAsked)));
        assert_eq!(states(&world, a, 1).len(), 2, "the client is asked once");
    }
    assert_eq!(phase(&world, a), TurnPhase::Ending);
    give_up(&mut world, a, 1);
    assert!(is_granted(&world, b, 1));
}

#[test]
fn sets_are_refused_for_a_clear_reason() {
    let mut config = config(&[Bytes::mib(64), Bytes::mib(64)]);
    config.devices[0].makes_fixed = true;
    let mut world = World::with(config, StoredQuotas::default());
    let (a, other) = (world.open_pinning("a"), world.open_pinning("a"));
    let own = world.allocate(a, spec(4)).expect("room");
    let foreign = world.allocate(other, spec(4)).expect("room");
    let elsewhere = AllocationSpec { device: Some("1".to_owned()), ..spec(4) };
    let elsewhere = world.allocate(a, elsewhere).expect("room");
    let fixed = world.allocate(a, AllocationSpec { kind: Kind::Fixed, ..spec(4) }).expect("room");
    let managed = world.allocate(a, AllocationSpec { kind: Kind::Managed, ..spec(4) }).expect("room");
    declare(&mut world, a, 1, "s", &[own]);
    let cases: [(&str, &[AllocationId], Reason); 8] = [
        ("s", &[own], Reason::RequestInvalid),
        ("", &[own], Reason::NameInvalid),
        ("t", &[], Reason::RequestInvalid),
        ("t", &[own, own], Reason::RequestInvalid),
        ("t", &[own, elsewhere], Reason::RequestInvalid),
        ("t", &[own, foreign], Reason::AllocationNotFound),
        ("t", &[fixed], Reason::KindUnsupported),
        ("t", &[managed], Reason::KindUnsupported),
    ];
    for (number, (name, allocations, reason)) in (2..).zip(cases) {
        declare(&mut world, a, number, name, allocations);
        let refusal = world.set_answers[&(a.channel, number)].as_ref().map(Refusal::reason);
        assert_eq!(refusal, Some(reason), "{name} {allocations:?}");
    }
    world.frame(a, ClientFrame::TurnRequested { turn: 1, set: 2, wait: None });
    let member = Member { client: a, allocation: own };
    assert_eq!(refused(&world, member, 1), Some(Reason::RequestInvalid), "the set was refused");
    assert_eq!(world.broker.working_sets().len(), 1);
}

#[test]
fn set_larger_than_its_device_and_set_that_was_freed_are_refused() {
    let mut world = tiers(16, 64);
    let large = member(&mut world, "a", 24);
    request(&mut world, large, 1);
    assert_eq!(refused(&world, large, 1), Some(Reason::DeviceFull));
    let freed = member(&mut world, "b", 4);
    world.call(freed.client, ClientRequest::FreeBatch(vec![freed.allocation])).expect("freed");
    request(&mut world, freed, 1);
    assert_eq!(refused(&world, freed, 1), Some(Reason::AllocationNotFound));
}

#[test]
fn free_in_the_hand_over_refuses_the_turn() {
    let (mut world, a, b) = contended();
    world.frame(a.client, ClientFrame::TurnYielded { turn: 1 });
    assert_eq!(phase(&world, b), TurnPhase::HandOver);
    world.call(b.client, ClientRequest::FreeBatch(vec![b.allocation])).expect("freed");
    world.run_until_idle();
    assert_eq!(refused(&world, b, 1), Some(Reason::AllocationNotFound));
    request(&mut world, a, 2);
    assert!(is_granted(&world, a, 2));
}

#[test]
fn end_of_the_set_ends_its_turn_and_its_wait() {
    let (mut world, a, b) = contended();
    let c = member(&mut world, "c", 12);
    request(&mut world, c, 1);
    for it in [b, a] {
        world.frame(it.client, ClientFrame::WorkingSetEnded { number: 1 });
        world.run_until_idle();
    }
    assert!(is_granted(&world, c, 1) && !is_granted(&world, b, 1));
    assert_eq!(world.broker.working_sets().len(), 1);
}

#[test]
fn numbers_that_no_honest_client_sends_close_the_channel() {
    let frames: [fn(AllocationId) -> ClientFrame; 6] = [
        |id| {
            let spec = WorkingSetSpec { name: "t".to_owned(), allocations: vec![id] };
            ClientFrame::WorkingSet { number: 1, spec }
        },
        |_| ClientFrame::TurnRequested { turn: 1, set: 2, wait: None },
        |_| ClientFrame::TurnRequested { turn: 1 << 63, set: 1, wait: None },
        |_| ClientFrame::TurnYielded { turn: 1 },
        |_| ClientFrame::WorkingSetEnded { number: 2 },
        |id| ClientFrame::Pin { call: 1 << 63, parts: vec![part(id, 0)], write: false, wait: None },
    ];
    for frame in frames {
        let mut world = tiers(16, 64);
        let a = member(&mut world, "a", 4);
        world.frame(a.client, frame(a.allocation));
        assert!(world.closed.contains(&a.client.channel), "{:?}", frame(a.allocation));
        assert!(world.broker.working_sets().is_empty());
    }
}

#[test]
fn shared_allocations_count_once() {
    let mut world = tiers(16, 64);
    let owner = world.open_pinning("a");
    let id = world.sealed(owner, spec(12));
    let readers = [world.open_pinning("a"), world.open_pinning("a")];
    for reader in readers {
        let attach = ClientRequest::AttachUnpinned(broker_core::Target::Id(id));
        world.call(reader, attach).expect("attached");
        declare(&mut world, reader, 1, "s", &[id]);
        let it = Member { client: reader, allocation: id };
        request(&mut world, it, 1);
        assert!(is_granted(&world, it, 1));
    }
}

#[test]
fn hand_over_that_finds_no_room_has_owners_asked_after_a_quantum() {
    let mut world = tiers(32, 64);
    let (a, b) = (member(&mut world, "a", 12), member(&mut world, "b", 12));
    request(&mut world, a, 1);
    // This memory is in use, which no sum of sets shows.
    let other = world.open_pinning("c");
    let id = world.allocate(other, spec(12)).expect("room");
    parts(&world, id).into_iter().for_each(|part| world.pin(other, part));
    request(&mut world, b, 1);
    assert_eq!(phase(&world, b), TurnPhase::HandOver);
    assert!(!is_ending(&world, a, 1));
    pass(&mut world, QUANTUM);
    assert!(is_ending(&world, a, 1));
    give_up(&mut world, a, 1);
    assert!(is_granted(&world, b, 1) && is_resident(&world, b));
}

#[test]
fn pin_call_beside_a_turn_is_not_aborted_as_stalled() {
    let (mut world, a, _) = contended();
    let other = world.open_pinning("c");
    let held: PartRef = part(world.allocate(other, spec(4)).expect("room"), 0);
    world.pin(other, held);
    world.harvest(other, held);
    let wanted = world.allocate(other, AllocationSpec { unpinned: true, ..spec(4) }).expect("room below");
    world.pin_call(other, 1, &[part(wanted, 0)]);
    pass(&mut world, 5_000_000);
    assert_eq!(world.pin_answers.get(&(other.channel, 1)), None, "the owner will yield");
    give_up(&mut world, a, 1);
    assert_eq!(world.pin_answers.get(&(other.channel, 1)), Some(&None));
}

#[test]
fn evicted_set_comes_back_for_its_turn() {
    let mut world = tiers(16, 64);
    let a = member(&mut world, "a", 4);
    request(&mut world, a, 1);
    world.write(a.client, part(a.allocation, 0), 7);
    give_up(&mut world, a, 1);
    evict(&mut world, part(a.allocation, 0));
    assert_eq!(tier(&world, part(a.allocation, 0)), Tier::Host);
    request(&mut world, a, 2);
    assert!(is_granted(&world, a, 2) && is_resident(&world, a));
    assert_eq!(world.read(a.client, part(a.allocation, 0)), 7);
    let view = &world.broker.working_sets()[0];
    assert_eq!((view.turns, view.bytes, view.allocations, &*view.name), (2, Bytes::mib(4), 1, "s"));
}

/// Has two members take turns: each yields once it is asked, or after its own time, and requests the next at once.
/// Returns the seconds that each held.
fn share(world: &mut World, members: [Member; 2], own: [Option<u64>; 2], seconds: u64) -> [u64; 2] {
    let (mut turn, mut held, mut since) = ([1, 1], [0, 0], 0);
    members.iter().for_each(|member| request(world, *member, 1));
    for second in 0..seconds {
        let at = (0..2).find(|at| is_granted(world, members[*at], turn[*at])).expect("one has the turn");
        if is_ending(world, members[at], turn[at]) || own[at].is_some_and(|own| second - since >= own) {
            give_up(world, members[at], turn[at]);
            turn[at] += 1;
            request(world, members[at], turn[at]);
            since = second;
        }
        let at = (0..2).find(|at| is_granted(world, members[*at], turn[*at])).expect("one has the turn");
        pass(world, 1_000_000);
        held[at] += 1;
    }
    held
}

#[test]
fn weights_divide_the_time_of_two_sessions() {
    let mut world = tiers(16, 64);
    set_tenant(&mut world, "a", None, Some(300));
    let members = ["a", "b"].map(|tenant| member(&mut world, tenant, 12));
    let held = share(&mut world, members, [None, None], 2400);
    assert!((1750..=1850).contains(&held[0]), "{held:?}");
}

#[test]
fn equal_tenants_have_equal_time_and_no_double_turns() {
    let mut world = tiers(16, 64);
    let members = ["a", "b"].map(|tenant| member(&mut world, tenant, 12));
    let held = share(&mut world, members, [None, None], 600);
    assert!(held[0].abs_diff(held[1]) <= 30, "{held:?}");
}

#[test]
fn program_with_short_turns_keeps_its_place_before_those_with_long_ones() {
    let mut world = tiers(16, 128);
    let short = member(&mut world, "a", 12);
    let long = [member(&mut world, "b", 12), member(&mut world, "c", 12)];
    request(&mut world, short, 1);
    long.iter().for_each(|it| request(&mut world, *it, 1));
    let mut turn = [1, 1, 1];
    let all = [short, long[0], long[1]];
    let mut order = Vec::new();
    for _ in 0..13 {
        let at = (0..3).find(|at| is_granted(&world, all[*at], turn[*at])).expect("one has the turn");
        order.push(at);
        pass(&mut world, if at == 0 { 1_000_000 } else { QUANTUM });
        give_up(&mut world, all[at], turn[at]);
        turn[at] += 1;
        request(&mut world, all[at], turn[at]);
    }
    // The short program asks again at once. After a turn of each, it comes first whenever a long turn ends.
    assert_eq!(order[..3], [0, 1, 2]);
    let is_short: Vec<bool> = order[3..].iter().map(|at| *at == 0).collect();
    assert_eq!(is_short, [true, false].repeat(5), "{order:?}");
}

#[test]
fn owner_yields_to_the_first_waiter_of_the_line_too() {
    let mut world = tiers(16, 64);
    let a = member(&mut world, "a", 12);
    request(&mut world, a, 1);
    let other = caller(&mut world);
    pass(&mut world, QUANTUM / 2);
    assert!(!is_ending(&world, a, 1));
    pass(&mut world, QUANTUM);
    assert!(is_ending(&world, a, 1), "the line has waited for a quantum, and no other turn waits");
    give_up(&mut world, a, 1);
    assert_eq!(world.pin_answers.get(&(other.channel, 1)), Some(&None));
}

#[test]
fn program_that_asks_again_at_once_passes_no_earlier_waiter() {
    let (mut world, a, other) = pinned_in_its_turn();
    pass(&mut world, QUANTUM);
    assert!(is_ending(&world, a, 1));
    // No harvest has seen that these pins are over.
    parts(&world, a.allocation).into_iter().for_each(|part| world.unpin(a.client, part));
    world.frame(a.client, ClientFrame::TurnYielded { turn: 1 });
    world.frame(a.client, ClientFrame::TurnRequested { turn: 2, set: 1, wait: None });
    world.run_until_idle();
    assert_eq!(world.pin_answers.get(&(other.channel, 1)), Some(&None), "the call came first");
    assert_eq!(phase(&world, a), TurnPhase::HandOver);
    world.frame(other, ClientFrame::PinEnded { call: 1 });
    world.run_until_idle();
    assert!(is_granted(&world, a, 2) && is_resident(&world, a));
}

#[test]
fn part_that_is_pinned_at_the_yield_stays_until_a_harvest() {
    let (mut world, a, other) = pinned_in_its_turn();
    give_up(&mut world, a, 1);
    assert!(is_resident(&world, a), "the words say that it is pinned");
    assert_eq!(world.pin_answers.get(&(other.channel, 1)), None);
    for part in parts(&world, a.allocation) {
        world.unpin(a.client, part);
        world.harvest(a.client, part);
    }
    world.run_until_idle();
    assert_eq!(world.pin_answers.get(&(other.channel, 1)), Some(&None));
}

#[test]
fn limit_of_a_tenant_holds_back_its_own_turns_alone() {
    let mut world = tiers(64, 128);
    let (first, second) = (member(&mut world, "a", 8), member(&mut world, "a", 8));
    world.operate(set_quota("a", 0, 10)).expect("set");
    let others = [member(&mut world, "b", 12), member(&mut world, "c", 12)];
    request(&mut world, others[0], 1);
    request(&mut world, first, 1);
    request(&mut world, second, 1);
    assert!(is_granted(&world, first, 1) && phase(&world, second) == TurnPhase::Waiting);
    request(&mut world, others[1], 1);
    assert!(is_granted(&world, others[1], 1), "the limit of another tenant does not hold it back");
    pass(&mut world, 2 * QUANTUM);
    assert!(others.iter().all(|it| !is_ending(&world, *it, 1)), "their yield would help no one");
    assert!(is_ending(&world, first, 1));
    give_up(&mut world, first, 1);
    assert!(is_granted(&world, second, 1));
}

#[test]
fn owner_is_no_longer_asked_once_no_turn_needs_it() {
    let (overdue_after, end_after) = (Duration::from_secs(10), Duration::from_secs(20));
    let (mut world, a, b) = with_limits(TurnLimits { overdue_after, end_after, ..TurnLimits::default() });
    pass(&mut world, QUANTUM);
    assert_eq!(phase(&world, a), TurnPhase::Ending);
    give_up(&mut world, b, 1);
    assert_eq!(phase(&world, a), TurnPhase::Owned, "no other turn waits");
    pass(&mut world, 10 * OVERDUE);
    assert_eq!((phase(&world, a), world.killed.len()), (TurnPhase::Owned, 0));
    request(&mut world, b, 2);
    assert_eq!(phase(&world, a), TurnPhase::Ending, "the daemon asks anew");
    pass(&mut world, OVERDUE);
    assert_eq!((phase(&world, a), world.killed.len()), (TurnPhase::Overdue, 0));
    pass(&mut world, OVERDUE);
    assert_eq!(world.killed, [a.client.channel]);
}

#[test]
fn request_of_an_operator_kills_no_process_by_itself() {
    let end_after = Duration::from_secs(20);
    let (mut world, a, b) = with_limits(TurnLimits { end_after, ..TurnLimits::default() });
    give_up(&mut world, b, 1);
    let ask = OperatorRequest::YieldTurn { session: a.client.session, set: "s".to_owned() };
    world.operate(ask).expect("asked");
    pass(&mut world, 10 * OVERDUE);
    assert_eq!((phase(&world, a), world.killed.len()), (TurnPhase::Overdue, 0));
    request(&mut world, b, 2);
    pass(&mut world, 2 * OVERDUE);
    assert_eq!(world.killed, [a.client.channel], "a turn waits for it");
}

#[test]
fn owners_are_asked_only_if_their_leaving_makes_room() {
    let mut world = tiers(16, 128);
    let small = member(&mut world, "a", 2);
    let large = member(&mut world, "b", 12);
    request(&mut world, small, 1);
    pass(&mut world, 1_000_000);
    request(&mut world, large, 1);
    let next = member(&mut world, "c", 14);
    request(&mut world, next, 1);
    pass(&mut world, QUANTUM);
    assert!(is_ending(&world, large, 1));
    assert!(!is_ending(&world, small, 1), "the set of the next one fits beside it");
    // The rest of a hand-over has no room beside it, whatever the small one does.
    world.frame(large.client, ClientFrame::TurnYielded { turn: 1 });
    assert_eq!(phase(&world, next), TurnPhase::HandOver);
    request(&mut world, large, 2);
    pass(&mut world, QUANTUM / 2);
    assert!(!is_ending(&world, small, 1));
}

#[test]
fn member_that_was_freed_no_longer_counts() {
    let mut world = tiers(16, 64);
    let client = world.open_pinning("a");
    let allocate = |world: &mut World| {
        world.allocate(client, AllocationSpec { unpinned: true, ..spec(6) }).expect("room")
    };
    let (kept, freed) = (allocate(&mut world), allocate(&mut world));
    declare(&mut world, client, 1, "s", &[kept, freed]);
    let (a, b) = (Member { client, allocation: kept }, member(&mut world, "b", 8));
    request(&mut world, a, 1);
    request(&mut world, b, 1);
    assert_eq!(phase(&world, b), TurnPhase::Waiting);
    world.call(client, ClientRequest::FreeBatch(vec![freed])).expect("freed");
    world.run_until_idle();
    pass(&mut world, 1_000_000);
    assert!(is_granted(&world, b, 1) && is_granted(&world, a, 1));
    assert!(!is_ending(&world, a, 1));
}

#[test]
fn owner_of_a_higher_class_is_not_asked_for_a_lower_one() {
    let (mut world, a, b) = contended();
    set_tenant(&mut world, "a", Some(TenantClass::Interactive), None);
    pass(&mut world, 10 * QUANTUM);
    assert!(!is_ending(&world, a, 1));
    set_tenant(&mut world, "a", Some(TenantClass::Initiated), None);
    assert!(is_ending(&world, a, 1));
    give_up(&mut world, a, 1);
    assert!(is_granted(&world, b, 1));
}

/// Three sets on a device of 18 MiB: `b` and `c` lie on it, `c` has the turn, and `a` waits before `b`.
fn three(class_of_b: TenantClass) -> (World, [Member; 3]) {
    let mut world = tiers(18, 128);
    set_tenant(&mut world, "b", Some(class_of_b), None);
    let mut set = |tenant: &str, mib: u32| {
        let client = world.open_pinning(tenant);
        let spec = AllocationSpec { unpinned: true, part_size: Some(Bytes::mib(2)), ..spec(mib) };
        let allocation = world.allocate(client, spec).expect("room");
        declare(&mut world, client, 1, "s", &[allocation]);
        Member { client, allocation }
    };
    let (b, c, a) = (set("b", 10), set("c", 8), set("a", 12));
    request(&mut world, b, 1);
    give_up(&mut world, b, 1);
    request(&mut world, c, 1);
    assert_eq!((coming(&world, a), coming(&world, b), coming(&world, c)), (0, 5, 4));
    request(&mut world, a, 1);
    request(&mut world, b, 2);
    (world, [a, b, c])
}

#[test]
fn set_whose_turn_comes_last_leaves_first() {
    let (mut world, [a, b, c]) = three(TenantClass::Initiated);
    pass(&mut world, QUANTUM);
    give_up(&mut world, c, 1);
    assert!(is_granted(&world, a, 1));
    // The policy would have taken the set that was used earlier. It is needed next.
    assert_eq!((coming(&world, b), coming(&world, c)), (3, 0));
    let of_c: Vec<_> = reasons(&world).into_iter().filter(|(it, _)| it.allocation == c.allocation).collect();
    assert!(of_c.len() == 4 && of_c.iter().all(|(_, reason)| *reason == EvictionReason::Turn), "{of_c:?}");
}

/// The check after each event looks at the order of a tenant whose advice is forbidden.
#[test]
fn forbidden_advice_changes_nothing_where_turns_order_the_parts() {
    let mut world = tiers(24, 128);
    let (earlier, later) = (member(&mut world, "b", 4), member(&mut world, "b", 8));
    let (owner, first) = (member(&mut world, "a", 10), member(&mut world, "d", 16));
    for it in [earlier, later] {
        request(&mut world, it, 1);
        pass(&mut world, QUANTUM / 10);
        give_up(&mut world, it, 1);
    }
    request(&mut world, owner, 1);
    advise(&mut world, earlier.client, part(earlier.allocation, 0), Retention::Importance(Some(100)));
    let advice = Some(AdvicePermission::Forbidden);
    let forbid = OperatorRequest::SetTenant { tenant: "b".to_owned(), class: None, weight: None, advice };
    world.operate(forbid).expect("valid");
    request(&mut world, first, 1);
    request(&mut world, earlier, 2);
    assert_eq!((phase(&world, first), phase(&world, earlier)), (TurnPhase::Waiting, TurnPhase::Waiting));
    assert!(coming(&world, earlier) > 0 && coming(&world, later) > 0);
    // The policy would take the set that was used earlier. It is needed, and the other one is not.
    give_up(&mut world, owner, 1);
    assert!(is_granted(&world, first, 1));
    let of_later: Vec<_> =
        reasons(&world).into_iter().filter(|(it, _)| it.allocation == later.allocation).collect();
    assert!(!of_later.is_empty() && of_later.iter().all(|(_, reason)| *reason == EvictionReason::Turn));
    assert!(reasons(&world).iter().all(|(it, _)| it.allocation != earlier.allocation), "it stays");
}

#[test]
fn turns_change_no_order_between_classes() {
    let (mut world, [a, b, c]) = three(TenantClass::Background);
    pass(&mut world, QUANTUM);
    give_up(&mut world, c, 1);
    assert!(is_granted(&world, a, 1));
    assert_eq!((coming(&world, b), coming(&world, c)), (0, 3));
    // The lower class leaves first, some of it for pressure. It has one set, so turns do not order its parts.
    let mut of_b = reasons(&world);
    of_b.retain(|(part, reason)| part.allocation == b.allocation && *reason != EvictionReason::Cold);
    let by_policy = EvictionReason::Policy(EvictionPolicy::Lru);
    assert!(!of_b.is_empty() && of_b.iter().all(|(_, reason)| *reason == by_policy), "{of_b:?}");
}
