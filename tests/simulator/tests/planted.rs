//! The simulator finds what somebody might have broken. All planted bugs are looked for in CI; here, a few of each kind,
//! so that a simulator that has gone blind is noticed by `cargo test`.

use broker_core::Bug;
use simulator::{campaign::hunt, run::run, scenario::Plan, shrink::shrink, story::Story};

#[test]
fn planted_bugs_are_found_by_the_invariant_that_they_break() {
    for (bug, invariant) in [
        (Bug::WrongTenantCharged, "INV-LEDGER-3"),
        (Bug::GuaranteeIgnored, "INV-LEDGER-5"),
        (Bug::AnsweredTwice, "INV-CALL-1"),
        (Bug::TwoPacketsInFlight, "INV-FDS-2"),
        (Bug::NameNotFreed, "INV-NAME-1"),
    ] {
        let (_, failure) = hunt(bug, 20, 5_000).found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        assert_eq!(failure.invariant, invariant, "{bug:?}: {failure}");
    }
}

#[test]
fn a_shrunk_run_fails_in_the_same_way_and_is_shorter() {
    let plan = Plan { bug: Some(Bug::ReleasedWhileMapped), ..Plan::new(1, 5_000) };
    let failure = run(&plan, Story::Untold).failure.expect("it is found");
    let shrunk = shrink(&plan).expect("it fails");
    let again = run(&shrunk.plan, Story::last(100));
    assert_eq!(again.failure.map(|it| it.invariant), Some(failure.invariant));
    assert!(shrunk.plan.events <= failure.event && shrunk.acts.1 < shrunk.acts.0, "{shrunk:?}");
    assert!(again.story.lines().iter().any(|line| line.contains("does not hold")));
}
