//! An unrelated process that computes. It reads one command a line, `KIND MILLISECONDS`, and answers each with the mean time of a batch of
//! kernels.

use std::{
    io::{self, Write as _},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::{bench::Driver, content, cuda::Gpu};

/// The memory that kernels write and read, and how often in a batch.
struct Work {
    bytes: u64,
    times: u64,
}

/// The kinds of kernels. `memory` uses device memory. `cache` stays in the cache and needs arithmetic only.
const KINDS: [(&str, Work); 2] =
    [("memory", Work { bytes: 2 << 30, times: 2 }), ("cache", Work { bytes: 32 << 20, times: 64 })];

enum Computer {
    Gpu { gpu: Gpu, address: u64 },
    Cpu,
}

pub(crate) fn run(driver: Driver) -> Result<()> {
    let largest = KINDS.iter().map(|(_, work)| work.bytes).max().unwrap_or_default();
    let computer = match driver {
        Driver::Cuda => {
            let gpu = Gpu::open(None)?;
            let address = gpu.alloc(usize::try_from(largest)?)?;
            Computer::Gpu { gpu, address }
        }
        Driver::Sim => Computer::Cpu,
    };
    writeln!(io::stdout(), "{}", json!({}))?;
    for line in io::stdin().lines() {
        let line = line?;
        let (kind, span) = line.split_once(' ').context("KIND MILLISECONDS")?;
        let work = KINDS.iter().find(|(name, _)| *name == kind);
        let (_, work) = work.with_context(|| format!("`{kind}` is no work"))?;
        let mean = computer.mean_batch(work, Duration::from_millis(span.parse()?))?;
        writeln!(io::stdout(), "{}", json!({ "batch_ns": u64::try_from(mean.as_nanos())? }))?;
    }
    Ok(())
}

impl Computer {
    fn mean_batch(&self, work: &Work, span: Duration) -> Result<Duration> {
        let (begun, mut batches) = (Instant::now(), 0);
        while begun.elapsed() < span {
            self.batch(work)?;
            batches += 1;
        }
        Ok(begun.elapsed() / batches)
    }

    fn batch(&self, work: &Work) -> Result<()> {
        match self {
            Self::Gpu { gpu, address } => gpu.compute(*address, work.bytes, work.times)?,
            Self::Cpu => {
                // A page is enough for a processor.
                let content = content::bytes(work.times, 4096);
                ensure!(content::sum_of(&content) == content::sum(work.times, 4096), "it computes wrongly");
            }
        }
        Ok(())
    }
}
