//! Runs many seeds on a few threads, each seed by itself.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use broker_core::Bug;

use crate::{
    coverage::Coverage, digest::TraceDigest, failure::Failure, run::run, scenario::Plan, story::Story,
};

/// The result of running a range of seeds.
#[derive(Debug, Default)]
pub struct Campaign {
    pub seeds: u64,
    pub events: u64,
    pub coverage: Coverage,
    /// By seed, in order.
    pub failures: Vec<(u64, Failure)>,
}

/// Runs every seed of `seeds`, and calls `report` with each failure as it is found.
pub fn run_all(
    seeds: std::ops::Range<u64>,
    events: u64,
    jobs: usize,
    report: impl Fn(u64, &Failure) + Sync,
) -> Campaign {
    let next = AtomicU64::new(seeds.start);
    let parts = thread::scope(|scope| {
        let worker = || {
            let mut part = Campaign::default();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds.end {
                    return part;
                }
                let ran = run(&Plan::new(seed, events), Story::Silent);
                part.seeds += 1;
                part.events += ran.events;
                part.coverage.add(&ran.coverage);
                if let Some(failure) = ran.failure {
                    report(seed, &failure);
                    part.failures.push((seed, failure));
                }
            }
        };
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker catches panics")).collect::<Vec<_>>()
    });
    let mut all = Campaign::default();
    for part in parts {
        all.seeds += part.seeds;
        all.events += part.events;
        all.coverage.add(&part.coverage);
        all.failures.extend(part.failures);
    }
    all.failures.sort_by_key(|(seed, _)| *seed);
    all
}

/// Digests the trace of every seed of `seeds`, in the order of the seeds.
pub fn digest_all(seeds: std::ops::Range<u64>, events: u64, jobs: usize) -> BTreeMap<u64, TraceDigest> {
    let next = AtomicU64::new(seeds.start);
    let worker = || {
        let seed = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < seeds.end);
        let digest = |seed| match run(&Plan::new(seed, events), Story::Digest(Box::default())).story {
            Story::Digest(digest) => (seed, *digest),
            story => unreachable!("a run keeps the kind of its story: {story:?}"),
        };
        std::iter::from_fn(seed).map(digest).collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker catches panics")).collect()
    })
}

/// Number of first seeds that a hunt runs even after the bug is found, unless told otherwise: how often a bug is
/// found is as good to know as how soon.
pub const SEEDS_RATED: u64 = 12;

/// After how many seeds a planted bug was found, how often among the first ones, and how.
#[derive(Debug)]
pub struct Hunt {
    pub bug: Bug,
    /// Number of first seeds that were run even after the bug was found.
    pub rated: u64,
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

    /// Invariants that failed first although the bug does not break them.
    pub fn unexpected(&self) -> impl Iterator<Item = &str> {
        self.by.keys().map(String::as_str).filter(|by| !self.bug.breaks().contains(by))
    }
}

/// Plants a bug and looks for it, seed after seed: in the first `rated` ones and until it is found.
pub fn hunt(bug: Bug, rated: u64, seeds_max: u64, events: u64) -> Hunt {
    let mut hunt = Hunt { bug, rated, found: None, hits: 0, by: BTreeMap::new() };
    for seed in 0..seeds_max {
        if seed >= rated && hunt.found.is_some() {
            break;
        }
        let plan = Plan { bug: Some(bug), ..Plan::new(seed, events) };
        if let Some(failure) = run(&plan, Story::Silent).failure {
            hunt.hits += u64::from(seed < rated);
            *hunt.by.entry(failure.invariant.clone()).or_default() += 1;
            hunt.found.get_or_insert((seed + 1, failure));
        }
    }
    hunt
}

/// Hunts these planted bugs, on a few threads.
pub fn hunt_all(
    bugs: &[Bug],
    rated: u64,
    seeds_max: u64,
    events: u64,
    jobs: usize,
    report: impl Fn(&Hunt) + Sync,
) -> Vec<Hunt> {
    let next = AtomicU64::new(0);
    let mut hunts = thread::scope(|scope| {
        let worker = || {
            let mut hunts = Vec::new();
            while let Ok(at) = usize::try_from(next.fetch_add(1, Ordering::Relaxed))
                && let Some(bug) = bugs.get(at)
            {
                let hunt = hunt(*bug, rated, seeds_max, events);
                report(&hunt);
                hunts.push(hunt);
            }
            hunts
        };
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("a worker catches panics"))
            .collect::<Vec<_>>()
    });
    hunts.sort_by_key(|hunt| hunt.bug);
    hunts
}
