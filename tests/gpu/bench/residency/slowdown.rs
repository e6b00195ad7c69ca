//! Kernels of an unrelated process, alone and while two clients' memory changes places without a pause. And the same beside plain copies in
//! both directions, which no mover of as many bytes can avoid.

use std::{
    cell::RefCell,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde_json::json;
use vramd_tests::{Probe, wait::soon};

use super::{bare::Bare, duplex::Exchange};
use crate::bench::{
    measure::{Measure, WARM_UP},
    scene::{Answer, Driver, Scene},
};

/// The target: less than 2 % slower.
const TARGET: f64 = 1.02;
/// How long the process computes at a time.
const SPAN: Duration = Duration::from_millis(300);
const SPAN_ON_SIM: Duration = Duration::from_millis(20);

/// Returns the slower of both kinds.
pub(super) fn ask(scene: &Scene, bare: &mut dyn Bare) -> Result<Answer> {
    let mut exchange = Exchange::ready(scene, None)?;
    let neighbour = RefCell::new(Neighbour::start(scene));
    let mut answer = Answer { figures: Vec::new(), samples: json!({}), lines: Vec::new() };
    let (mut slowest, mut plainly) = (0.0_f64, 0.0_f64);
    for (kind, label) in [("memory", "neighbour_memory"), ("cache", "neighbour_cache")] {
        let mut speeds = Vec::new();
        let ours = || {
            let (batch, speed) = beside_moves(scene, &mut exchange, || neighbour.borrow_mut().batch(kind))?;
            speeds.push(speed);
            Ok((batch, vec![]))
        };
        let measure = Measure::take(TARGET, scene.pairs, ours, || neighbour.borrow_mut().batch(kind))?;
        slowest = slowest.max(measure.median());
        answer.lines.push(measure.line(label));
        answer.samples[kind] = measure.json();
        answer.samples[kind]["moved_gb_per_s"] = json!(speeds.split_off(WARM_UP));
        let beside = || Ok((beside_copies(bare, &mut neighbour.borrow_mut(), kind)?, vec![]));
        let measure = Measure::take(None, scene.pairs, beside, || neighbour.borrow_mut().batch(kind))?;
        plainly = plainly.max(measure.median());
        answer.lines.push(measure.line(&format!("{label}_beside_plain_copies")));
        answer.samples[kind]["beside_plain_copies"] = measure.json();
    }
    answer.figures.push(("neighbour_slowdown", slowest));
    answer.figures.push(("neighbour_slowdown_by_plain_copies", plainly));
    exchange.end()?;
    neighbour.into_inner().process.leave();
    Ok(answer)
}

/// Measures the process while memory moves. Also returns the GB/s in both directions in sum.
fn beside_moves(
    scene: &Scene,
    exchange: &mut Exchange,
    look: impl FnOnce() -> Result<Duration>,
) -> Result<(Duration, f64)> {
    let (over, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    let begun = Instant::now();
    let (seen, moved) = thread::scope(|scope| {
        let mover = scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                exchange.swap(scene)?;
                swaps.fetch_add(1, Ordering::Release);
            }
            anyhow::Ok(begun.elapsed())
        });
        let started = soon("memory moves", || swaps.load(Ordering::Acquire) > 0 || mover.is_finished());
        let seen = started.and_then(|()| look());
        over.store(true, Ordering::Release);
        (seen, mover.join().expect("a mover does not panic"))
    });
    let bytes = swaps.into_inner() as f64 * 2.0 * scene.bytes() as f64;
    Ok((seen?, bytes / 1e9 / moved?.as_secs_f64()))
}

/// Measures the process beside plain copies in both directions.
fn beside_copies(bare: &mut dyn Bare, neighbour: &mut Neighbour, kind: &str) -> Result<Duration> {
    thread::scope(|scope| {
        let seen = scope.spawn(|| neighbour.batch(kind));
        while !seen.is_finished() {
            bare.copy(true, true)?;
        }
        seen.join().expect("a look does not panic")
    })
}

struct Neighbour {
    process: Probe,
    span: Duration,
}

impl Neighbour {
    fn start(scene: &Scene) -> Self {
        let words = ["neighbour", scene.driver.name()];
        let mut process = Probe::start_program("gpu-suite", &words, &scene.daemon.sockets(), None);
        process.listen("its start");
        let simulated = scene.driver == Driver::Sim;
        Self { process, span: if simulated { SPAN_ON_SIM } else { SPAN } }
    }

    /// Returns the mean time of a batch of its kernels.
    fn batch(&mut self, kind: &str) -> Result<Duration> {
        let answer = self.process.answer(&format!("{kind} {}", self.span.as_millis()));
        let batch = answer["batch_ns"].as_u64().with_context(|| format!("no time in {answer}"))?;
        Ok(Duration::from_nanos(batch))
    }
}
