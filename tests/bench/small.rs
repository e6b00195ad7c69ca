//! Small allocations of an SDK pool beside jemalloc's, with the same trace, block for block.

use std::{
    hint::black_box,
    io::{self, Write as _},
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use vramd_client::{Bytes, Client, Pool, PoolBlock, PoolConfig};
use vramd_tests::{Config, Daemon};

use crate::{
    report::Results,
    samples::{Figures, Samples},
    trace::{Lifetimes, Step, Trace},
};

const TARGET_NS: f64 = 150.0;
const THREADS: usize = 2;
/// How many pairs of allocating and freeing are timed together. Reading the clock takes as long as a few pairs.
const TIMED_TOGETHER: usize = 500;

/// A source of blocks that are freed when they are dropped.
pub(crate) trait Allocator: Sync {
    type Block;

    fn alloc(&self, size: usize) -> Self::Block;
}

impl Allocator for Pool {
    type Block = PoolBlock;

    fn alloc(&self, size: usize) -> PoolBlock {
        Pool::alloc(self, Bytes::new(size as u64)).expect("the device has room for the trace")
    }
}

/// Runs the pool and jemalloc in turns.
#[cfg(feature = "jemalloc")]
pub(crate) fn run(quick: bool) -> Result<Results> {
    beside(&crate::jemalloc::Jemalloc, quick)
}

fn beside(jemalloc: &impl Allocator, quick: bool) -> Result<Results> {
    let daemon = Daemon::start(&Config::default());
    let client = Client::builder().socket_dir(daemon.sockets()).connect()?;
    let pool = client.pool(PoolConfig::default().idle_after(Duration::from_secs(3600)))?;
    let (pairs, steps) = if quick { (3, 20_000) } else { (9, 400_000) };
    let mut details =
        json!({ "target_ns": TARGET_NS, "pairs": pairs, "allocations": steps, "idle_after_s": 3600 });
    let mut keys = Vec::new();
    for (lifetimes, name) in [(Lifetimes::Random, "random"), (Lifetimes::Stack, "last_in_first_out")] {
        for threads in [1, THREADS] {
            let traces: Vec<_> = (0..threads as u64).map(|seed| Trace::new(lifetimes, seed, steps)).collect();
            let taken = alternate(&pool, jemalloc, &traces, pairs);
            let (ours, theirs, json) = taken.summarize(name, threads)?;
            if lifetimes == Lifetimes::Random && threads == 1 {
                keys = vec![("small_allocation_ns", ours), ("small_allocation_jemalloc_ns", theirs)];
            }
            details[format!("{name}_{threads}")] = json;
        }
    }
    ensure!(pool.chunk_bytes() > Bytes::ZERO, "nothing came from the daemon");
    Ok(Results { keys, name: "small", details })
}

struct Taken {
    ours: Vec<Samples>,
    theirs: Vec<Samples>,
}

/// Runs pairs in which the sides swap the first place. The first pair does not count.
fn alternate(pool: &Pool, jemalloc: &impl Allocator, traces: &[Trace], pairs: usize) -> Taken {
    let mut taken = Taken { ours: Vec::new(), theirs: Vec::new() };
    time_all(pool, traces);
    time_all(jemalloc, traces);
    for pair in 0..pairs {
        if pair % 2 == 0 {
            taken.ours.push(time_all(pool, traces));
            taken.theirs.push(time_all(jemalloc, traces));
        } else {
            taken.theirs.push(time_all(jemalloc, traces));
            taken.ours.push(time_all(pool, traces));
        }
    }
    taken
}

/// Replays each trace on its own thread, all at once.
fn time_all(allocator: &impl Allocator, traces: &[Trace]) -> Samples {
    let start = Barrier::new(traces.len());
    let times = thread::scope(|scope| {
        let threads: Vec<_> = traces
            .iter()
            .map(|trace| {
                scope.spawn(|| {
                    let mut live = trace.slots();
                    start.wait();
                    time(allocator, trace, &mut live)
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a trace does not panic")).collect()
    });
    Samples::new(times)
}

/// Returns how long each allocation took together with the freeing of another.
fn time<A: Allocator>(allocator: &A, trace: &Trace, live: &mut [Option<A::Block>]) -> Vec<Duration> {
    let timed = |steps: &[Step]| {
        let started = Instant::now();
        for step in steps {
            match *step {
                Step::Alloc { slot, size } => live[slot] = Some(black_box(allocator.alloc(size))),
                Step::Free { slot } => live[slot] = None,
            }
        }
        // Every step is one half of a pair.
        started.elapsed() * 2 / u32::try_from(steps.len()).unwrap_or(u32::MAX)
    };
    trace.steps.chunks_exact(2 * TIMED_TOGETHER).map(timed).collect()
}

impl Taken {
    fn summarize(&self, name: &str, threads: usize) -> Result<(f64, f64, Value)> {
        let nanos = |side: &[Samples]| -> Vec<f64> {
            side.iter().map(|block| block.median().as_secs_f64() * 1e9).collect()
        };
        let (ours, theirs) = (nanos(&self.ours), nanos(&self.theirs));
        let ratio = Figures::ratios(&ours, &theirs);
        let (ours, theirs) = (Figures::new(ours), Figures::new(theirs));
        let verdict = if ours.median() <= TARGET_NS { "within" } else { "MISSED" };
        writeln!(
            io::stdout(),
            "small  {name}, {threads} threads: {} ns, jemalloc {} ns, {} times it; target {TARGET_NS} ns: {verdict}",
            ours.text(),
            theirs.text(),
            ratio.text(),
        )?;
        let blocks = |side: &[Samples]| side.iter().map(Samples::json).collect::<Vec<_>>();
        let details = json!({
            "threads": threads, "timed_together": TIMED_TOGETHER,
            "ns": ours.json(), "jemalloc_ns": theirs.json(), "ratio_to_jemalloc": ratio.json(),
            "ours": blocks(&self.ours), "jemalloc": blocks(&self.theirs),
        });
        Ok((ours.median(), theirs.median(), details))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct System;

    impl Allocator for System {
        type Block = Vec<u8>;

        fn alloc(&self, size: usize) -> Vec<u8> {
            Vec::with_capacity(size)
        }
    }

    #[test]
    fn both_sides_are_timed_and_reported() {
        let results = beside(&System, true).unwrap();
        assert!(results.keys.iter().all(|(_, nanos)| *nanos > 0.0));
        assert_eq!(results.keys[0].0, "small_allocation_ns");
        let random = &results.details["random_1"];
        assert_eq!(random["ns"]["pairs"].as_array().unwrap().len(), 3);
        assert_eq!(random["jemalloc"].as_array().unwrap().len(), 3);
        assert!(results.details["last_in_first_out_2"].is_object());
    }
}
