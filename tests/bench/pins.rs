//! The cost of a pin and its unpin: with a guard that borrows its handle and with one that does not, on one thread and on eight at once.

use std::{
    hint::black_box,
    io::{self, Write as _},
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use vramd_client::{Access, Allocation, AllocationRequest, Bytes, Client};
use vramd_tests::{Config, Daemon};

use crate::{
    report::Results,
    samples::{Figures, micros},
};

const TARGET_NS: f64 = 50.0;
const THREADS: u32 = 8;

/// How many pins a run makes.
#[derive(Clone, Copy, Debug)]
struct Extent {
    blocks: usize,
    /// Pins of each thread in each block.
    pins: u32,
}

const FULL: Extent = Extent { blocks: 15, pins: 2_000_000 };
const QUICK: Extent = Extent { blocks: 3, pins: 100_000 };

/// The parts that a thread pins.
#[derive(Clone, Copy, Debug)]
struct Target<'a> {
    allocation: &'a Allocation,
    part: u32,
}

/// The form of the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    Borrows,
    Owns,
}

pub(crate) fn run(quick: bool) -> Result<Results> {
    let extent = if quick { QUICK } else { FULL };
    let daemon = Daemon::start(&Config::default());
    let client = Client::builder().socket_dir(daemon.sockets()).connect()?;
    let parts = |count: u32| AllocationRequest::new(Bytes::mib(2 * count)).part_size(Bytes::mib(2));
    let one = client.allocate(parts(1))?;
    let wide = client.allocate(parts(THREADS))?;
    let apart = client.allocate_batch((0..THREADS).map(|_| parts(1)))?;
    ensure!(wide.info().parts.len() == THREADS as usize, "{} parts", wide.info().parts.len());

    let whole = |allocation| Target { allocation, part: 0 };
    let cases = [
        ("one thread, one part", vec![whole(&one)]),
        ("8 threads, one part", vec![whole(&one); THREADS as usize]),
        (
            "8 threads, 8 parts of one allocation",
            (0..THREADS).map(|part| Target { allocation: &wide, part }).collect(),
        ),
        ("8 threads, 8 allocations", apart.iter().map(whole).collect()),
    ];
    let mut table = Vec::new();
    let mut alone = f64::INFINITY;
    for (name, targets) in &cases {
        for guard in [Guard::Borrows, Guard::Owns] {
            // The first block warms up.
            let blocks: Result<Vec<f64>> =
                (0..=extent.blocks).map(|_| block(targets, guard, extent.pins)).collect();
            let figures = Figures::new(blocks?.into_iter().skip(1));
            writeln!(io::stdout(), "{name}, {}: {} ns a pin and unpin", guard.name(), figures.text())?;
            if targets.len() == 1 && guard == Guard::Borrows {
                alone = figures.median();
            }
            table.push(row(name, guard, targets.len(), &figures));
        }
    }
    let verdict = if alone < TARGET_NS { "within" } else { "ABOVE" };
    writeln!(io::stdout(), "alone {alone:.1} ns, {verdict} the target of {TARGET_NS} ns")?;
    Ok(Results {
        keys: vec![("pin_unpin_ns", alone)],
        name: "pins",
        details: json!({
            "target_ns": TARGET_NS, "blocks": extent.blocks, "pins_a_block_and_thread": extent.pins, "table": table,
        }),
    })
}

fn row(name: &str, guard: Guard, threads: usize, figures: &Figures) -> Value {
    json!({ "what": name, "guard": guard.name(), "threads": threads, "median_ns": figures.median(), "all_ns": figures.text() })
}

/// Returns the nanoseconds that a pin and its unpin take on one of the threads, all of which start at once.
fn block(targets: &[Target<'_>], guard: Guard, pins: u32) -> Result<f64> {
    let start = Barrier::new(targets.len());
    let times: Result<Vec<Duration>> = thread::scope(|scope| {
        let threads: Vec<_> =
            targets.iter().map(|target| scope.spawn(|| target.time(guard, &start, pins))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread that pins")).collect()
    });
    let times = times?;
    let mean = times.iter().sum::<Duration>() / u32::try_from(times.len())?;
    Ok(micros(mean) * 1e3 / f64::from(pins))
}

impl Guard {
    const fn name(self) -> &'static str {
        match self {
            Self::Borrows => "a guard that borrows its handle",
            Self::Owns => "a guard that may outlive its handle",
        }
    }
}

impl Target<'_> {
    fn time(self, guard: Guard, start: &Barrier, pins: u32) -> Result<Duration> {
        let parts = || self.part..self.part + 1;
        start.wait();
        let started = Instant::now();
        match guard {
            Guard::Borrows => {
                for _ in 0..pins {
                    drop(black_box(self.allocation.pin_ref(parts(), Access::Write)?));
                }
            }
            Guard::Owns => {
                for _ in 0..pins {
                    drop(black_box(self.allocation.pin_parts(parts(), Access::Write)?));
                }
            }
        }
        Ok(started.elapsed())
    }
}
