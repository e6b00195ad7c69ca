//! The simulator finds bugs planted in the core. CI hunts all of them; here are a few of each kind, so that
//! `cargo test` notices a simulator that has gone blind. A hunt begins with the seed of `known_seeds.txt`.

use std::{collections::BTreeSet, thread};

use broker_core::{
    Bug, Forced, MapEvent, MapState, SessionEvent, SessionState, Transition, invariants::REGISTRY,
};
use simulator::{
    campaign::{Hunt, Search, hunt_all},
    failure::Failure,
    forced::force,
    known_seeds::{KNOWN, KnownSeeds},
    run::run,
    scenario::Plan,
    shrink::shrink,
    story::Story,
};

const FEW: &[Bug] = &[
    // Ledger, calls, descriptors, moves, settings and files.
    Bug::SettleSkipped,
    Bug::WrongTenantCharged,
    Bug::GuaranteeIgnored,
    Bug::AnsweredTwice,
    Bug::TwoPacketsInFlight,
    Bug::NameNotFreed,
    Bug::CachedToAnotherTenant,
    Bug::RefusedThoughCached,
    Bug::EvictedThoughPinned,
    Bug::SlotReused,
    Bug::EvictedStaysAway,
    Bug::UnmappableLost,
    Bug::OwnerKeepsFreed,
    Bug::CopyTruncated,
    Bug::HostChargedToAnother,
    Bug::SentFromOldExtent,
    Bug::SourceReleasedEarly,
    Bug::HandedOverUnread,
    Bug::LevelWithoutHysteresis,
    Bug::HotEvicted,
    Bug::CopiedWhileMappedInPlace,
    Bug::DamageIgnored,
    Bug::SettingsAppliedLate,
    Bug::SettingsHalfApplied,
    Bug::SharesUnreported,
    Bug::ClassInverted,
    Bug::FileCharged,
    Bug::CopiedToFile,
    Bug::FileForgotten,
    Bug::FileLeaked,
    Bug::UnreadSealed,
    Bug::PiecesFromTheStart,
    // Orders, turns and efforts show only where several clients wait.
    Bug::WriteBackNotRaised,
    Bug::EveryCopyUrgent,
    Bug::FullDevicePassed,
    Bug::SplitBatchStays,
    Bug::AnswererServedFirst,
    Bug::LeavingUncounted,
    Bug::EvictedInVain,
    // A part must stay on a full device for long, unused, while no waiter makes room.
    Bug::CachedUnderPressure,
    Bug::ColdStays,
    // One world in three has lanes, and not all of these have enough competing copies.
    Bug::PrefetchBeforeDemand,
    Bug::ShareLentForEver,
    Bug::ShareSavedUp,
    Bug::FullWantsNothing,
    Bug::FullLacksItsShare,
    Bug::SharedOnlyVetoes,
    Bug::OthersNotHeldBack,
];

#[test]
fn planted_bugs_are_found_by_the_invariant_that_they_break() {
    let jobs = thread::available_parallelism().map_or(2, usize::from);
    let hunts = hunt_all(FEW, Search::until_found(300, 10_000), jobs, |_| ());
    let missed: Vec<_> = hunts.iter().filter(|hunt| !hunt.is_good()).collect();
    assert!(missed.is_empty(), "{missed:#?}");
    assert_eq!(hunts.len(), FEW.len());
}

/// The list has at least 16 bugs, and each names invariants that exist.
#[test]
fn each_planted_bug_names_invariants_that_exist() {
    assert!(Bug::ALL.len() >= 16);
    for bug in Bug::ALL {
        let known = |id: &&str| REGISTRY.iter().any(|row| row.id == *id);
        assert!(!bug.breaks().is_empty() && bug.breaks().iter().all(known), "{bug:?}: {:?}", bug.breaks());
    }
}

/// A hunt for the bug that found it by this seed and invariant, or did not find it.
fn hunt_of(bug: Bug, found: Option<(u64, &str)>) -> Hunt {
    let failure =
        |invariant: &str| Failure { event: 1, invariant: invariant.to_owned(), detail: String::new() };
    Hunt {
        bug,
        search: Search::until_found(1, 10_000),
        found: found.map(|(seed, invariant)| (seed, failure(invariant))),
        hits: 0,
        by: found.into_iter().map(|(_, invariant)| (invariant.to_owned(), 1)).collect(),
    }
}

#[test]
fn a_panic_does_not_count_as_a_find() {
    assert!(hunt_of(Bug::DoubleRelease, Some((1, Bug::DoubleRelease.breaks()[0]))).is_good());
    assert!(!hunt_of(Bug::DoubleRelease, Some((1, "panic"))).is_good());
}

#[test]
fn each_planted_bug_has_a_line_in_order_with_a_seed_that_found_it() {
    let missing: Vec<_> = Bug::ALL.iter().filter(|bug| KNOWN.seed_of(**bug).is_none()).collect();
    assert!(missing.is_empty(), "known_seeds.txt lacks a line `BUG SEED` for {missing:?}");
    assert_eq!(KNOWN.text_with(&[]), include_str!("../known_seeds.txt"));
}

#[test]
fn seeds_of_bugs_that_were_not_found_as_they_should_be_stay() {
    let (release, hot, cold, inverted) =
        (Bug::DoubleRelease, Bug::HotEvicted, Bug::ColdStays, Bug::ClassInverted);
    let before = KnownSeeds::parse("# head\nDoubleRelease 1\nHotEvicted 2\nColdStays 3\nNoMore 4\n");
    let hunts = [
        hunt_of(release, Some((70, release.breaks()[0]))),
        hunt_of(hot, None),
        hunt_of(cold, Some((71, "panic"))),
        hunt_of(inverted, Some((5, inverted.breaks()[0]))),
    ];
    let after = before.text_with(&hunts);
    let lines: BTreeSet<_> = after.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines, ["ClassInverted 5", "ColdStays 3", "DoubleRelease 70", "HotEvicted 2"].into());
}

#[test]
fn a_shrunk_run_fails_in_the_same_way_and_is_shorter() {
    let plan = Plan { bug: Some(Bug::ReleasedWhileMapped), ..Plan::new(1, 5_000) };
    let failure = run(&plan, Story::Silent).failure.expect("it is found");
    let shrunk = shrink(&plan).expect("it fails");
    let again = run(&shrunk.plan, Story::last(100));
    assert_eq!(again.failure.map(|it| it.invariant), Some(failure.invariant));
    assert!(shrunk.plan.events <= failure.event && shrunk.acts.1 < shrunk.acts.0, "{shrunk:?}");
    assert!(again.story.lines().iter().any(|line| line.contains("does not hold")));
}

#[test]
fn a_forced_legal_step_is_taken_without_a_report() {
    let step = Transition::Mapping { from: MapState::Offered, event: MapEvent::Mapped, legal: true };
    assert_eq!(force(step), Forced { state_unchanged: false, reported: false });
    let step = Transition::Session { from: SessionState::Live, event: SessionEvent::Overdue, legal: true };
    assert_eq!(force(step), Forced { state_unchanged: false, reported: false });
}
