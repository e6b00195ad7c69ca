//! Managed memory of a plain process: to the device by the page faults of a kernel that reads it, or by one prefetch; to the
//! host by one prefetch.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::report;
use crate::{
    bench::{
        measure::{Beside, Measure},
        plain::Plain,
    },
    cuda::{Gpu, Managed},
};

struct Subject<'a> {
    gpu: &'a Gpu,
    memory: Managed,
    seed: u64,
}

type Way<'a> = fn(&mut Subject<'a>) -> Result<(Duration, Beside)>;

pub(super) fn ask(gpu: &Gpu, plain: &mut Plain<'_>, bytes: usize, pairs: usize) -> Result<Value> {
    let mut subject = Subject { gpu, memory: gpu.managed(bytes)?, seed: 0 };
    let ways: [(&str, bool, Way<'_>); 3] = [
        ("faults_in", false, Subject::fault_in),
        ("prefetch_in", false, Subject::prefetch_in),
        ("prefetch_out", true, Subject::prefetch_out),
    ];
    let mut found = json!({});
    for (name, out, way) in ways {
        let measure = Measure::take(None, pairs, || way(&mut subject), || plain.copy(out, !out))?;
        found[name] = report(name, &measure, bytes)?;
    }
    Ok(found)
}

impl Subject<'_> {
    fn fault_in(&mut self) -> Result<(Duration, Beside)> {
        let sum = self.fill()?;
        self.gpu.prefetch_out(&self.memory)?;
        let begun = Instant::now();
        self.check(sum)?;
        Ok((begun.elapsed(), vec![]))
    }

    fn prefetch_in(&mut self) -> Result<(Duration, Beside)> {
        let sum = self.fill()?;
        self.gpu.prefetch_out(&self.memory)?;
        let begun = Instant::now();
        self.gpu.prefetch_in(&self.memory)?;
        let took = begun.elapsed();
        self.check(sum)?;
        Ok((took, vec![]))
    }

    fn prefetch_out(&mut self) -> Result<(Duration, Beside)> {
        let sum = self.fill()?;
        let begun = Instant::now();
        self.gpu.prefetch_out(&self.memory)?;
        let took = begun.elapsed();
        self.gpu.prefetch_in(&self.memory)?;
        self.check(sum)?;
        Ok((took, vec![]))
    }

    /// Writes new random content on the device and returns its sum.
    fn fill(&mut self) -> Result<u64> {
        self.seed += 1;
        self.gpu.prefetch_in(&self.memory)?;
        self.gpu.fill(self.memory.address(), self.memory.bytes(), self.seed)?;
        Ok(self.gpu.sum(self.memory.address(), self.memory.bytes())?)
    }

    fn check(&self, sum: u64) -> Result<()> {
        let found = self.gpu.sum(self.memory.address(), self.memory.bytes())?;
        ensure!(found == sum, "the sum is {found}, and {sum} was written");
        Ok(())
    }
}
