//! The seeds that every change runs, and those that once found a bug.

use std::thread;

use simulator::{
    campaign::{Campaign, run_each},
    scenario::Plan,
};

/// As many as must take every legal transition, see `SEEDS_FOR_COVERAGE` of the program.
const SEEDS: std::ops::Range<u64> = 0..100;
const EVENTS: u64 = 10_000;

/// `SEED EVENTS  # what it found`, line by line.
const KEPT: &str = include_str!("../seeds.txt");

/// The plans of the kept seeds.
fn kept() -> Vec<Plan> {
    let lines = KEPT.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let plan = |line: &str| {
        let mut words = line.split_whitespace().map_while(|word| word.parse::<u64>().ok());
        let (seed, events) = (words.next().expect("a seed"), words.next().expect("events"));
        assert!(line.contains('#'), "why is seed {seed} kept?");
        Plan::new(seed, events)
    };
    lines.map(plan).collect()
}

/// All run on the same threads, so that no processor waits for the other. CI runs 200 more seeds.
#[test]
fn first_and_kept_seeds_pass_and_the_first_take_all_legal_transitions() {
    let kept = kept();
    assert!(!kept.is_empty(), "seeds.txt has no seed");
    let plans: Vec<_> = SEEDS.map(|seed| Plan::new(seed, EVENTS)).chain(kept).collect();
    let jobs = thread::available_parallelism().map_or(2, usize::from);
    let mut first = run_each(&plans, jobs, |seed, failure| eprintln!("seed {seed}: {failure}"));
    let kept: Campaign = first.split_off(SEEDS.count()).into_iter().sum();
    let first: Campaign = first.into_iter().sum();
    let failed: Vec<_> = first.failures.iter().chain(&kept.failures).map(|(seed, _)| seed).collect();
    assert!(failed.is_empty(), "replay with `cargo run -p simulator -- replay SEED`: {failed:?}");
    assert_eq!(first.coverage.never_taken(), []);
    assert_eq!(first.coverage.not_refused(), []);
    assert!(first.events >= (SEEDS.end - SEEDS.start) * EVENTS, "{} events only", first.events);
}
