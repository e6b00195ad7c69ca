//! Declared sequences: the daemon works ahead of a client that says in which order it will use its parts.

use crate::advised_order::reasons;
use crate::world::{
    Client, World,
    moving::{evict, tier, tiers},
    revoking::{answer, part},
    set_quota, spec,
};
use broker_core::{
    AllocationSpec, ClientFrame, ClientRequest, EvictionReason, Notice, OperatorRequest, PartRange, PartRef,
    PrefetchEnd, SequenceSpec, SequenceState, SequenceWindow, Tier,
};
use vramd_types::{Bytes, PartIndex, Reason};

fn one(world: &mut World, client: Client, mib: u32) -> PartRef {
    let spec = AllocationSpec { part_size: Some(Bytes::mib(mib)), ..spec(mib) };
    part(world.allocate(client, spec).expect("room"), 0)
}

/// Makes parts of 4 MiB, all of them in host memory.
fn below(world: &mut World, client: Client, count: usize) -> Vec<PartRef> {
    let parts = (0..count).map(|_| {
        let part = one(world, client, 4);
        evict(world, part);
        assert_eq!(tier(world, part), Tier::Host);
        part
    });
    parts.collect()
}

fn range(part: PartRef) -> PartRange {
    PartRange { allocation: part.allocation, first: part.part, count: 1 }
}

fn steps(steps: &[&[PartRef]], passes: u64) -> SequenceSpec {
    SequenceSpec {
        steps: steps.iter().map(|step| step.iter().copied().map(range).collect()).collect(),
        passes,
    }
}

/// One part a step.
fn each(parts: &[PartRef], passes: u64) -> SequenceSpec {
    steps(&parts.chunks(1).collect::<Vec<_>>(), passes)
}

fn declare(world: &mut World, client: Client, number: u64, spec: SequenceSpec) {
    world.frame(client, ClientFrame::Sequence { number, spec });
}

fn begin(world: &mut World, client: Client, number: u64, step: u64) {
    world.frame(client, ClientFrame::SequenceStepBegun { number, step });
}

/// The states that the client was told, without the bytes that stay.
fn told(world: &World, client: Client, number: u64) -> Vec<SequenceState> {
    let states = world.sequence_states.get(&(client.channel, number)).into_iter().flatten();
    let without_kept = |state: &SequenceState| match state {
        SequenceState::Window(window) => {
            SequenceState::Window(SequenceWindow { kept: Bytes::ZERO, ..*window })
        }
        other => other.clone(),
    };
    states.map(without_kept).collect()
}

fn last(world: &World, client: Client, number: u64) -> SequenceState {
    told(world, client, number).pop().expect("it was told")
}

fn window(steps: u32, mib: u32, shortened: bool) -> SequenceState {
    SequenceState::Window(SequenceWindow { steps, bytes: Bytes::mib(mib), shortened, kept: Bytes::ZERO })
}

fn reason(state: &SequenceState) -> Option<Reason> {
    match state {
        SequenceState::Refused(refusal) => Some(refusal.reason()),
        _ => None,
    }
}

fn fetches(world: &World) -> usize {
    let fetched = |it: &&Notice| matches!(it, Notice::Moved { tier: Tier::Device, .. });
    world.notices.iter().filter(fetched).count()
}

fn ends(world: &World, end: PrefetchEnd) -> usize {
    let is_one = |it: &&Notice| matches!(it, Notice::PrefetchEnded { end: found, .. } if *found == end);
    world.notices.iter().filter(is_one).count()
}

/// The program uses a part for a moment. Returns whether it was mapped when it wanted it.
fn use_now(world: &mut World, client: Client, part: PartRef) -> bool {
    if !world.maps(client, part) {
        return false;
    }
    world.pin(client, part);
    world.harvest(client, part);
    world.advance(1_000);
    world.run_until_idle();
    assert_eq!(tier(world, part), Tier::Device, "it is pinned");
    world.unpin(client, part);
    true
}

#[test]
fn loop_larger_than_its_device_never_waits_and_keeps_what_fits() {
    let mut world = tiers(16, 64);
    let a = world.open_pinning("a");
    let parts = below(&mut world, a, 8);
    declare(&mut world, a, 1, each(&parts, 0));
    assert_eq!(told(&world, a, 1), [window(2, 8, false)]);
    world.run_until_idle();
    assert!(world.maps(a, parts[0]) && world.maps(a, parts[1]), "a pin finds them mapped");
    let mut before = 0;
    for step in 0..80 {
        if step == 24 {
            before = fetches(&world);
        }
        begin(&mut world, a, 1, step);
        let part = parts[usize::try_from(step).unwrap() % 8];
        assert!(use_now(&mut world, a, part), "{step} waits");
    }
    // A part in use and two on their way leave one for Belady's choice: every seventh step finds its part there.
    let fetched = fetches(&world) - before;
    assert!(fetched <= 49, "{fetched} of 56 steps");
    assert_eq!([PrefetchEnd::Wasted, PrefetchEnd::Dropped].map(|end| ends(&world, end)), [0, 0]);
    let last = reasons(&world).last().map(|(_, reason)| *reason);
    assert_eq!(last, Some(EvictionReason::Sequence));
}

#[test]
fn parts_that_stay_are_spread_over_a_pass() {
    let mut world = tiers(28, 64);
    let a = world.open_pinning("a");
    let parts = below(&mut world, a, 12);
    declare(&mut world, a, 1, each(&parts, 0));
    world.run_until_idle();
    for step in 0..48 {
        if step == 36 {
            world.notices.clear();
        }
        begin(&mut world, a, 1, step);
        assert!(use_now(&mut world, a, parts[usize::try_from(step).unwrap() % 12]), "{step} waits");
    }
    // Of 28 MiB the step in use and two ahead have 12, but for their parts that stay.
    let kept = world.broker.sequences()[0].window.kept;
    assert_eq!(kept.get() / (1 << 20), 21);
    let is_fetched = |part: &PartRef| {
        let of_it =
            |it: &Notice| matches!(it, Notice::Moved { tier: Tier::Device, part: of, .. } if of == part);
        world.notices.iter().any(of_it)
    };
    let stays: Vec<_> = (0..12).filter(|at| !is_fetched(&parts[*at])).collect();
    assert_eq!(stays, [2, 4, 6, 9, 11]);
}

#[test]
fn window_is_longer_where_copies_are_slow_and_as_short_as_room_demands() {
    for (device, steps) in [(64, 12), (24, 5)] {
        let mut world = tiers(device, 128);
        let a = world.open_pinning("a");
        let parts = below(&mut world, a, 16);
        declare(&mut world, a, 1, each(&parts, 0));
        // A copy takes ten times as long as a step.
        let mut shortened = false;
        for step in 0..16 {
            begin(&mut world, a, 1, step);
            for _ in 0..4 {
                world.advance(200);
                world.work_once();
            }
            if let SequenceState::Window(window) = last(&world, a, 1) {
                shortened = window.shortened;
            }
            world.advance(1);
        }
        let view = &world.broker.sequences()[0];
        assert!(u64::from(view.window.steps) <= steps, "{view:?}");
        assert_eq!(shortened, view.window.shortened);
    }
}

#[test]
fn window_is_shortened_and_told() {
    let mut world = tiers(16, 64);
    let a = world.open_pinning("a");
    let parts = below(&mut world, a, 8);
    world.operate(set_quota("a", 0, 8)).expect("it has less");
    declare(&mut world, a, 1, each(&parts, 0));
    world.run_until_idle();
    begin(&mut world, a, 1, 0);
    assert_eq!(told(&world, a, 1), [window(2, 8, false), window(1, 4, true)]);
    world.run_until_idle();
    for step in 1..9 {
        begin(&mut world, a, 1, step);
        world.run_until_idle();
        let ahead = usize::try_from(step + 1).unwrap() % 8;
        assert_eq!(tier(&world, parts[ahead]), Tier::Device, "{step}");
    }
    assert_eq!(told(&world, a, 1).len(), 2, "only changes are told");
}

#[test]
fn end_releases_all_that_it_holds() {
    type End = fn(&mut World, Client, PartRef);
    let ends: [(&str, End); 5] = [
        ("client", |world, a, _| world.frame(a, ClientFrame::SequenceEnded { number: 1 })),
        ("operator", |world, a, _| {
            let number = world.broker.prefetches()[0].number;
            let cancel = OperatorRequest::CancelPrefetch { session: a.session, number };
            world.operate(cancel).expect("it is there");
        }),
        ("freed", |world, a, part| {
            world.call(a, ClientRequest::FreeBatch(vec![part.allocation])).expect("freed");
        }),
        ("silent", |world, a, _| world.event(broker_core::Event::ChannelEnded { channel: a.channel })),
        ("gone", |world, a, _| world.end_process(a)),
    ];
    for (name, end) in ends {
        let mut world = tiers(16, 64);
        let a = world.open_pinning("a");
        let parts = below(&mut world, a, 4);
        declare(&mut world, a, 1, each(&parts, 0));
        assert_eq!(world.broker.prefetches().len(), 2, "{name}");
        end(&mut world, a, parts[3]);
        world.run_until_idle();
        assert_eq!((world.broker.prefetches(), world.broker.sequences()), (vec![], vec![]), "{name}");
        match name {
            "client" => assert_eq!(last(&world, a, 1), SequenceState::Ended { by_operator: false }),
            "operator" => assert_eq!(last(&world, a, 1), SequenceState::Ended { by_operator: true }),
            "freed" => assert_eq!(reason(&last(&world, a, 1)), Some(Reason::AllocationNotFound)),
            _ => assert_eq!(told(&world, a, 1).len(), 1, "{name}"),
        }
    }
}

#[test]
fn sequence_that_cannot_be_served_is_refused() {
    let mut world = tiers(16, 64);
    let a = world.open_pinning("a");
    let b = world.open_pinning("b");
    let parts = below(&mut world, a, 5);
    let other = below(&mut world, b, 1);
    let range = range(parts[0]);
    let cases = [
        (steps(&[&parts], 0), Reason::DeviceFull),
        (steps(&[], 0), Reason::RequestInvalid),
        (steps(&[&parts[..1], &[]], 0), Reason::RequestInvalid),
        (steps(&[&[parts[0], parts[0]]], 0), Reason::RequestInvalid),
        (each(&other, 0), Reason::AllocationNotFound),
        (
            SequenceSpec { steps: vec![vec![PartRange { count: 2, ..range }]], passes: 1 },
            Reason::AllocationNotFound,
        ),
        (
            SequenceSpec { steps: vec![vec![PartRange { count: 0, ..range }]], passes: 1 },
            Reason::RequestInvalid,
        ),
    ];
    for (number, (spec, expected)) in (1..).zip(cases) {
        declare(&mut world, a, number, spec.clone());
        assert_eq!(reason(&last(&world, a, number)), Some(expected), "{spec:?}");
    }
    assert_eq!(world.broker.sequences(), []);
}

#[test]
fn frames_that_no_honest_client_sends_end_in_quarantine() {
    type Lie = fn(&mut World, Client, &[PartRef]);
    let lies: [(&str, Lie); 6] = [
        ("step back", |world, a, _| begin(world, a, 1, 1)),
        ("beyond the end", |world, a, _| begin(world, a, 1, 6)),
        ("unknown step", |world, a, _| begin(world, a, 2, 0)),
        ("unknown end", |world, a, _| world.frame(a, ClientFrame::SequenceEnded { number: 2 })),
        ("old number", |world, a, parts| declare(world, a, 1, each(parts, 0))),
        ("too large", |world, a, parts| {
            let range = PartRange { count: 65_537, first: PartIndex(0), ..range(parts[0]) };
            declare(world, a, 2, SequenceSpec { steps: vec![vec![range]], passes: 0 });
        }),
    ];
    for (name, lie) in lies {
        let mut world = tiers(16, 64);
        let a = world.open_pinning("a");
        let parts = below(&mut world, a, 3);
        declare(&mut world, a, 1, each(&parts, 2));
        begin(&mut world, a, 1, 1);
        assert!(!world.closed.contains(&a.channel), "{name}");
        lie(&mut world, a, &parts);
        assert!(world.closed.contains(&a.channel), "{name}");
        assert_eq!(world.broker.sequences(), [], "{name}");
    }
}

#[test]
fn nearer_part_stays_and_the_farthest_leaves() {
    let mut world = tiers(16, 64);
    let a = world.open_pinning("a");
    let parts = below(&mut world, a, 4);
    declare(&mut world, a, 1, each(&parts, 0));
    world.run_until_idle();
    for step in 0..4 {
        begin(&mut world, a, 1, step);
        assert!(use_now(&mut world, a, parts[usize::try_from(step).unwrap()]));
    }
    // The device has all of them. Step 3 is begun, so 0 and 1 are in the window, and 2 is needed last.
    let other = one(&mut world, a, 4);
    assert_eq!(
        [0, 1, 2, 3].map(|at| tier(&world, parts[at])),
        [Tier::Device, Tier::Device, Tier::Host, Tier::Device]
    );
    // A pin takes room even so, from parts outside all sequences first.
    let second = one(&mut world, a, 4);
    assert_eq!([other, second].map(|part| tier(&world, part)), [Tier::Host, Tier::Device]);
}

#[test]
fn skipped_step_is_wasted_and_a_late_one_is_copied_as_demand() {
    let mut world = tiers(32, 64);
    let a = world.open_pinning("a");
    let parts = below(&mut world, a, 6);
    declare(&mut world, a, 1, each(&parts, 1));
    world.run_until_idle();
    begin(&mut world, a, 1, 1);
    assert_eq!(ends(&world, PrefetchEnd::Wasted), 1, "step 0 has its part, and is skipped");
    // Nothing was copied yet for step 2.
    begin(&mut world, a, 1, 2);
    world.run_until_idle();
    assert_eq!(ends(&world, PrefetchEnd::Late), 1);
    assert!(world.maps(a, parts[2]), "it is mapped all the same");
    assert_eq!(tier(&world, parts[4]), Tier::Device);
    // At the end of the last pass nothing is ahead.
    begin(&mut world, a, 1, 5);
    world.run_until_idle();
    assert_eq!(last(&world, a, 1), window(0, 0, false));
    world.frame(a, ClientFrame::SequenceEnded { number: 1 });
    assert_eq!(last(&world, a, 1), SequenceState::Ended { by_operator: false });
}

#[test]
fn pins_out_of_order_are_served() {
    let mut world = tiers(16, 64);
    let a = world.open_pinning("a");
    let parts = below(&mut world, a, 8);
    declare(&mut world, a, 1, each(&parts, 0));
    world.run_until_idle();
    begin(&mut world, a, 1, 0);
    for (call, at) in (1..).zip([6, 3, 7, 0, 5]) {
        world.pin_call(a, call, &[parts[at]]);
        world.run_until_idle();
        assert_eq!(answer(&world, a, call), Some(&None), "{at}");
        world.frame(a, ClientFrame::PinEnded { call });
        world.run_until_idle();
    }
    begin(&mut world, a, 1, 1);
    world.run_until_idle();
    assert_eq!([1, 2, 3].map(|at| tier(&world, parts[at])), [Tier::Device; 3]);
}
