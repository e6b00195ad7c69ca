//! Runs many seeds on a few threads, each seed by itself.

use std::{
    collections::BTreeMap,
    iter::{self, Sum},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use broker_core::Bug;

use crate::{
    coverage::Coverage, digest::TraceDigest, failure::Failure, known_seeds::KNOWN, run::run, scenario::Plan,
    story::Story,
};

/// The result of running some plans.
#[derive(Debug, Default)]
pub struct Campaign {
    pub seeds: u64,
    pub events: u64,
    pub coverage: Coverage,
    /// By seed, in the order of the plans.
    pub failures: Vec<(u64, Failure)>,
}

impl Sum for Campaign {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), |mut all, part| {
            all.seeds += part.seeds;
            all.events += part.events;
            all.coverage.add(&part.coverage);
            all.failures.extend(part.failures);
            all
        })
    }
}

/// Calls `work` with each item on a few threads, and returns the results in the order of the items.
fn in_parallel<T: Sync, R: Send>(items: &[T], jobs: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let item = || {
            let at = next.fetch_add(1, Ordering::Relaxed);
            items.get(at).map(|item| (at, work(item)))
        };
        iter::from_fn(item).collect::<Vec<_>>()
    };
    let mut done: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker catches panics")).collect()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Runs each plan, and calls `report` with each failure as it is found. Returns what became of each plan.
pub fn run_each(plans: &[Plan], jobs: usize, report: impl Fn(u64, &Failure) + Sync) -> Vec<Campaign> {
    in_parallel(plans, jobs, |plan| {
        let ran = run(plan, Story::Silent);
        ran.failure.iter().for_each(|failure| report(plan.seed, failure));
        Campaign {
            seeds: 1,
            events: ran.events,
            coverage: ran.coverage,
            failures: ran.failure.into_iter().map(|failure| (plan.seed, failure)).collect(),
        }
    })
}

/// Runs every seed of `seeds`, and calls `report` with each failure as it is found.
pub fn run_all(
    seeds: std::ops::Range<u64>,
    events: u64,
    jobs: usize,
    report: impl Fn(u64, &Failure) + Sync,
) -> Campaign {
    let plans: Vec<_> = seeds.map(|seed| Plan::new(seed, events)).collect();
    run_each(&plans, jobs, report).into_iter().sum()
}

/// Digests the trace of every seed of `seeds`, in the order of the seeds.
pub fn digest_all(seeds: std::ops::Range<u64>, events: u64, jobs: usize) -> Vec<(u64, TraceDigest)> {
    let digest = |seed: &u64| match run(&Plan::new(*seed, events), Story::Digest(Box::default())).story {
        Story::Digest(digest) => (*seed, *digest),
        story => unreachable!("a run keeps the kind of its story: {story:?}"),
    };
    in_parallel(&seeds.collect::<Vec<_>>(), jobs, digest)
}

/// Number of first seeds that a hunt runs even after the bug is found, unless told otherwise: that it can be found
/// says nothing of how often it is.
pub const SEEDS_RATED: u64 = 12;

/// Which seeds a hunt runs: that of [`KNOWN`] first, then those from 0.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Number of first seeds that are run even after the bug is found.
    pub rated: u64,
    /// Most seeds to try, beside the known one.
    pub seeds_max: u64,
    pub events: u64,
}

impl Search {
    /// Until a seed finds the bug.
    pub const fn until_found(seeds_max: u64, events: u64) -> Self {
        Self { rated: 0, seeds_max, events }
    }
}

/// Which seed found a planted bug, how often it was found among the first seeds, and how.
#[derive(Debug)]
pub struct Hunt {
    pub bug: Bug,
    pub search: Search,
    /// The seed that found it first, of those in the order of the hunt.
    pub found: Option<(u64, Failure)>,
    pub hits: u64,
    /// How often each invariant was the first to be broken.
    pub by: BTreeMap<String, u64>,
}

impl Hunt {
    /// Whether the bug was found, and always by an invariant that it breaks. A panic or another failure does
    /// not count.
    pub fn is_good(&self) -> bool {
        self.found.is_some() && self.unexpected().next().is_none()
    }

    /// Whether the seed of [`KNOWN`] found it, as it should.
    pub fn is_by_known(&self) -> bool {
        self.is_good() && self.found.as_ref().map(|(seed, _)| *seed) == KNOWN.seed_of(self.bug)
    }

    /// Invariants that failed first although the bug does not break them.
    pub fn unexpected(&self) -> impl Iterator<Item = &str> {
        self.by.keys().map(String::as_str).filter(|by| !self.bug.breaks().contains(by))
    }
}

/// Plants a bug and looks for it, seed after seed: until it is found, and in the first ones that are rated.
pub fn hunt(bug: Bug, search: Search) -> Hunt {
    let mut hunt = Hunt { bug, search, found: None, hits: 0, by: BTreeMap::new() };
    let known = KNOWN.seed_of(bug);
    let others = (0..search.seeds_max).filter(|seed| Some(*seed) != known);
    for seed in known.into_iter().chain(others) {
        if seed >= search.rated && hunt.found.is_some() {
            break;
        }
        let plan = Plan { bug: Some(bug), ..Plan::new(seed, search.events) };
        if let Some(failure) = run(&plan, Story::Silent).failure {
            hunt.hits += u64::from(seed < search.rated);
            *hunt.by.entry(failure.invariant.clone()).or_default() += 1;
            hunt.found.get_or_insert((seed, failure));
        }
    }
    hunt
}

/// Hunts these planted bugs, on a few threads.
pub fn hunt_all(bugs: &[Bug], search: Search, jobs: usize, report: impl Fn(&Hunt) + Sync) -> Vec<Hunt> {
    in_parallel(bugs, jobs, |bug| {
        let hunt = hunt(*bug, search);
        report(&hunt);
        hunt
    })
}
