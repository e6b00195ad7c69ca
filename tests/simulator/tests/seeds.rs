//! The seeds that every change runs, and those that once found a bug.

use std::thread;

use simulator::{campaign::run_all, run::run, scenario::Plan, story::Story};

const SEEDS: std::ops::Range<u64> = 0..200;
const EVENTS: u64 = 10_000;

/// `SEED EVENTS  # what it found`, line by line.
const KEPT: &str = include_str!("../seeds.txt");

/// CI runs more of them beside these.
#[test]
fn first_seeds_pass_and_take_every_legal_transition() {
    let jobs = thread::available_parallelism().map_or(2, usize::from);
    let all = run_all(SEEDS, EVENTS, jobs, |seed, failure| eprintln!("seed {seed}: {failure}"));
    assert!(all.failures.is_empty(), "replay with `cargo run -p simulator -- replay {}`", all.failures[0].0);
    assert_eq!(all.coverage.never_taken(), []);
    assert_eq!(all.coverage.not_refused(), []);
    assert!(all.events >= (SEEDS.end - SEEDS.start) * EVENTS, "{} events only", all.events);
}

#[test]
fn seeds_that_found_bugs_pass() {
    let lines = KEPT.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut kept = 0;
    for line in lines {
        let mut words = line.split_whitespace().map_while(|word| word.parse::<u64>().ok());
        let (seed, events) = (words.next().expect("a seed"), words.next().expect("events"));
        assert!(line.contains('#'), "why is seed {seed} kept?");
        let ran = run(&Plan::new(seed, events), Story::Silent);
        assert_eq!(ran.failure, None, "{line}");
        kept += 1;
    }
    assert!(kept > 0, "seeds.txt has no seed");
}
