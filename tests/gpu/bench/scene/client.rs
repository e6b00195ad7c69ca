//! A process that holds memory by the SDK: one command a line on its input, one line of JSON for each on its output. `holder.rs`
//! is the other side.

use std::{
    io::{self, Write as _},
    time::Instant,
};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use vramd_client::{Access, Allocation, AllocationRequest, Bytes, Client};

use super::Driver;
use crate::eye::Eye;

pub(crate) fn run(driver: Driver, bytes: u64, part: u64) -> Result<()> {
    let client = Client::connect()?;
    let eye = Eye::open(driver)?;
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
    let (mut pinned, seed) = match verb {
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
    let all = 0..pinned.len_bytes();
    if let Some(seed) = seed {
        eye.fill(&mut pinned, all.clone(), seed)?;
    }
    let sum = eye.sum(&pinned, all)?;
    Ok(json!({ "pinned_ns": u64::try_from(took.as_nanos())?, "sum": sum }))
}
