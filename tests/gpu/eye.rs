//! Writers and readers of pinned memory: kernels, or the processor on a simulated device.

use std::ops::Range;

use anyhow::{Context as _, Result};
use vramd_client::Pinned;

use crate::{bench::Driver, content, cuda::Gpu};

pub(crate) enum Eye {
    Gpu(Gpu),
    Cpu,
}

impl Eye {
    pub(crate) fn open(driver: Driver) -> Result<Self> {
        Ok(match driver {
            Driver::Cuda => Self::Gpu(Gpu::open(None)?),
            Driver::Sim => Self::Cpu,
        })
    }

    /// Writes the content of a seed to a range of pinned memory.
    pub(crate) fn fill(&self, pinned: &mut Pinned, range: Range<u64>, seed: u64) -> Result<()> {
        match self {
            Self::Gpu(gpu) => {
                gpu.fill(pinned.as_device_ptr() + range.start, range.end - range.start, seed)?;
            }
            Self::Cpu => {
                let all = pinned.as_mut_slice()?;
                content::write(seed, all.get_mut(indexes(range)?).context("more than is pinned")?);
            }
        }
        Ok(())
    }

    /// Returns the memory's sum, like [`content::sum`].
    pub(crate) fn sum(&self, pinned: &Pinned, range: Range<u64>) -> Result<u64> {
        Ok(match self {
            Self::Gpu(gpu) => gpu.sum(pinned.as_device_ptr() + range.start, range.end - range.start)?,
            Self::Cpu => {
                content::sum_of(pinned.as_slice()?.get(indexes(range)?).context("more than is pinned")?)
            }
        })
    }

    /// Computes the sum of some lines of the pinned memory repeatedly, like [`content::sum_lines`].
    pub(crate) fn sum_lines(&self, pinned: &Pinned, every: u64, times: u64) -> Result<u64> {
        Ok(match self {
            Self::Gpu(gpu) => gpu.sum_lines(pinned.as_device_ptr(), pinned.len_bytes(), every, times)?,
            Self::Cpu => {
                let all = pinned.as_slice()?;
                (0..times).fold(0, |sum, _| sum.wrapping_add(content::sum_lines_of(all, every)))
            }
        })
    }
}

fn indexes(range: Range<u64>) -> Result<Range<usize>> {
    Ok(usize::try_from(range.start)?..usize::try_from(range.end)?)
}
