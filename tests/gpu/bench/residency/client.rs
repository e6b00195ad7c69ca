//! A process that holds memory by the SDK: one command a line on its input, one line of JSON for each on its output. `holder.rs`
//! is the other side.

use std::{
    io::{self, Write as _},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use vramd_client::{Access, Allocation, AllocationRequest, Bytes, Client, Pinned};

use super::scene::Driver;
use crate::{content, cuda::Gpu};

/// What looks at memory.
enum Eye {
    Gpu(Gpu),
    Cpu,
}

pub(crate) fn run(driver: Driver, bytes: u64, part: u64) -> Result<()> {
    let client = Client::connect()?;
    let eye = match driver {
        Driver::Cuda => Eye::Gpu(Gpu::open(None)?),
        Driver::Sim => Eye::Cpu,
    };
    let request = AllocationRequest::new(Bytes::new(bytes)).part_size(Bytes::new(part));
    let mut memory = client.allocate(request)?;
    memory.unhold()?;
    writeln!(io::stdout(), "{}", json!({ "allocation": memory.id().get() }))?;
    for line in io::stdin().lines() {
        let answer = answer(&line?, &memory, &eye);
        let answer = answer.unwrap_or_else(|error| json!({ "problem": format!("{error:#}") }));
        writeln!(io::stdout(), "{answer}")?;
    }
    memory.free()?;
    Ok(())
}

/// `fill SEED` writes all of it, `read` pins all of it and looks, `pin INDEX` pins one part.
fn answer(command: &str, memory: &Allocation, eye: &Eye) -> Result<Value> {
    let (verb, number) = command.split_once(' ').unwrap_or((command, ""));
    let begun = Instant::now();
    let (pinned, seed) = match verb {
        "fill" => (memory.pin(Access::Write)?, Some(number.parse()?)),
        "read" => (memory.pin(Access::Read)?, None),
        "pin" => {
            let index: u32 = number.parse()?;
            let pinned = memory.pin_parts(index..index + 1, Access::Write)?;
            let took = begun.elapsed();
            drop(pinned);
            return Ok(json!({ "pinned_ns": u64::try_from(took.as_nanos())? }));
        }
        other => bail!("`{other}` is no command"),
    };
    let took = begun.elapsed();
    let sum = eye.look(pinned, seed).context("what is pinned cannot be looked at")?;
    Ok(json!({ "pinned_ns": u64::try_from(took.as_nanos())?, "sum": sum }))
}

impl Eye {
    /// The sum of what is there, after new content was written if there is a seed.
    fn look(&self, mut pinned: Pinned, seed: Option<u64>) -> Result<u64> {
        let (address, bytes) = (pinned.as_device_ptr(), pinned.len_bytes());
        match self {
            Self::Gpu(gpu) => {
                if let Some(seed) = seed {
                    gpu.fill(address, bytes, seed)?;
                }
                Ok(gpu.sum(address, bytes)?)
            }
            Self::Cpu => {
                if let Some(seed) = seed {
                    pinned.as_mut_slice()?.copy_from_slice(&content::bytes(seed, bytes));
                }
                Ok(content::sum_of(pinned.as_slice()?))
            }
        }
    }
}
