//! Measures how long pinning host memory ahead of need takes, and what it saves: no case, but figures for the
//! reader of the report.

use std::{
    sync::{Arc, mpsc::Receiver},
    time::{Duration, Instant},
};

use broker_driver::{Completion, Driver, PinPace, Submission, contract::Harness};
use serde_json::{Value, json};
use vramd_types::{Bytes, DeviceIndex, ExtentId, HostNode};

const ALL: Bytes = Bytes::gib(4);
const PIECE: Bytes = Bytes::mib(256);
/// A size that no free memory fits.
const ODD: Bytes = Bytes::mib(254);
/// Zeroing is measured so often: it takes time.
const ZEROED: u64 = 2;
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// Returns an entry for the report, and a line for people.
pub(crate) fn measure(harness: &dyn Harness) -> Result<(Value, String), String> {
    let (driver, completions) = harness.open(Vec::new());
    let mut bench = Measured { node: driver.host_node(DeviceIndex(0)), driver, completions, last: 0 };
    let (free, pinning, problem) = bench.pin_ahead()?;
    let pieces = free.get() / PIECE.get();
    if pieces == 0 {
        return Err(format!("no piece could be pinned: {}", problem.unwrap_or_default()));
    }
    let reused = bench.create(pieces, PIECE, false)?;
    bench.release(pieces)?;
    let zeroed = bench.create(pieces.min(ZEROED), PIECE, true)?;
    bench.release(pieces.min(ZEROED))?;
    let odd = bench.create(1, ODD, false)?;
    bench.release(1)?;
    // Then nothing else is free, and the first create of a piece starts a rebuild while others follow.
    bench.create(pieces, ODD, false)?;
    bench.release(pieces)?;
    let missing = bench.create(1, PIECE, false)?;
    let during_rebuild = bench.create(pieces / 2, ODD, false)?;
    let text = format!(
        "pinned ahead: {} MiB in {:.3} s{}\na create of {} MiB takes: from free memory {:.3} ms (at most {:.3}), zeroed by the \
         CPU {:.2} ms; newly pinned {:.2} ms; without a free piece {:.2} ms, and of another size during the rebuild at \
         most {:.2} ms",
        free.get() >> 20,
        pinning.as_secs_f64(),
        problem.as_ref().map(|problem| format!(", then it stopped: {problem}")).unwrap_or_default(),
        PIECE.get() >> 20,
        median(&reused),
        reused.last().copied().unwrap_or_default(),
        median(&zeroed),
        median(&odd),
        median(&missing),
        during_rebuild.last().copied().unwrap_or_default(),
    );
    let value = json!({
        "pinned_mib": free.get() >> 20,
        "filling_seconds": pinning.as_secs_f64(),
        "problem": problem,
        "piece_mib": PIECE.get() >> 20,
        "create_kept_ms": median(&reused),
        "create_kept_zeroed_ms": median(&zeroed),
        "create_pinned_anew_ms": median(&odd),
        "create_lacking_ms": median(&missing),
        "create_while_rebuilt_max_ms": during_rebuild.last(),
    });
    Ok((value, text))
}

struct Measured {
    driver: Arc<dyn Driver>,
    node: HostNode,
    completions: Receiver<Completion>,
    last: u64,
}

impl Measured {
    fn pin_ahead(&self) -> Result<(Bytes, Duration, Option<String>), String> {
        let begun = Instant::now();
        self.driver.submit(Submission::PinAhead {
            node: self.node,
            size: ALL,
            piece: PIECE,
            pieces_max: usize::MAX,
            pace: PinPace::FromStart,
        });
        match self.next()? {
            Completion::PinnedAhead { free, problem, .. } => {
                Ok((free, begun.elapsed(), problem.map(|problem| problem.to_string())))
            }
            other => Err(format!("unexpected: {other:?}")),
        }
    }

    /// The milliseconds of each create, sorted.
    fn create(&mut self, count: u64, size: Bytes, zeroed: bool) -> Result<Vec<f64>, String> {
        let mut took = Vec::new();
        for _ in 0..count {
            self.last += 1;
            let (extent, begun) = (ExtentId::from_raw(self.last), Instant::now());
            self.driver.submit(Submission::CreateHost { extent, node: self.node, size, zeroed });
            match self.next()? {
                Completion::Created { result, .. } => drop(result.map_err(|error| error.to_string())?),
                other => return Err(format!("unexpected: {other:?}")),
            }
            took.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        took.sort_by(f64::total_cmp);
        Ok(took)
    }

    /// Releases the last extents.
    fn release(&self, count: u64) -> Result<(), String> {
        for raw in (self.last - count + 1)..=self.last {
            self.driver.submit(Submission::Release { extent: ExtentId::from_raw(raw) });
            self.next()?;
        }
        Ok(())
    }

    fn next(&self) -> Result<Completion, String> {
        self.completions.recv_timeout(ANSWER_MAX).map_err(|_| "the driver does not answer".to_owned())
    }
}

fn median(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}
