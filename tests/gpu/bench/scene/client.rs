//! A process that has memory through the SDK. It reads one command a line and answers each with one line of JSON. `holder.rs` is the other
//! side.

use std::{
    io::{self, Write as _},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use vramd_client::{Access, Advice, Allocation, AllocationRequest, Bytes, Client, Reason};

use super::Driver;
use crate::eye::Eye;

pub(crate) fn run(driver: Driver, bytes: u64, part: u64) -> Result<()> {
    let client = Client::connect()?;
    let eye = Eye::open(driver)?;
    let request = AllocationRequest::new(Bytes::new(bytes)).part_size(Bytes::new(part));
    let mut memory = client.allocate(request)?;
    memory.unpin()?;
    writeln!(io::stdout(), "{}", json!({ "allocation": memory.id().get() }))?;
    for line in io::stdin().lines() {
        let answer = answer(&line?, &memory, &eye);
        let answer = answer.unwrap_or_else(|error| json!({ "problem": format!("{error:#}") }));
        writeln!(io::stdout(), "{answer}")?;
    }
    memory.free()?;
    Ok(())
}

/// Runs a command. `fill SEED` writes all memory, `read` pins and checks all of it, `pin INDEX` pins one part. `scan EVERY TIMES` pins all of
/// it and reads some of its lines repeatedly. `advise` advises access in place.
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
        "scan" => {
            let (every, times) = number.split_once(' ').context("two numbers")?;
            return scan(every.parse()?, times.parse()?, memory, eye);
        }
        "advise" => return advise(memory),
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

fn scan(every: u64, times: u64, memory: &Allocation, eye: &Eye) -> Result<Value> {
    let begun = Instant::now();
    let memory = memory.pin(Access::Read)?;
    let pinned = begun.elapsed();
    let sum = eye.sum_lines(&memory, every, times)?;
    let scanned = begun.elapsed();
    let [pinned, scanned] = [pinned, scanned].map(|time| u64::try_from(time.as_nanos()));
    Ok(json!({ "pinned_ns": pinned?, "scanned_ns": scanned?, "sum": sum }))
}

fn advise(memory: &Allocation) -> Result<Value> {
    let advised = match memory.advise(Advice::SetAccessedBy) {
        Err(error) if error.reason() == Some(Reason::TierUnsupported) => false,
        outcome => outcome.map(|()| true)?,
    };
    Ok(json!({ "advised": advised }))
}
