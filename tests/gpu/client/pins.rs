//! The pins of an actor.

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use vramd_client::{Access, Pinned};

use super::memory::Memory;
use crate::cuda::{Gpu, Graph, Mode};

/// `hold`, `unpin`, `pin read|write`, `unpin`, `unpin-after aside|captured`; `None` is another command.
pub(super) fn answer(
    command: &str,
    words: &[&str],
    memory: &mut Memory,
    pinned: &mut Option<Pinned>,
    gpu: Option<&Gpu>,
) -> Result<Option<Value>> {
    match command {
        "hold" => memory.repin()?,
        "unhold" => memory.unpin()?,
        "pin" => {
            let access = match words.first() {
                Some(&"read") => Access::Read,
                Some(&"write") => Access::Write,
                _ => bail!("to `read` or to `write`"),
            };
            let guard = pinned.insert(memory.pin(access)?);
            return Ok(Some(json!({ "address": guard.as_device_ptr(), "bytes": guard.len_bytes() })));
        }
        "unpin" => drop(pinned.take().context("nothing is pinned")?),
        "unpin-after" => {
            let gpu = gpu.context("no GPU is open")?;
            let stream = if words.first() == Some(&"captured") { gpu.captured() } else { gpu.aside() };
            if let Err(failed) = pinned.take().context("nothing is pinned")?.unpin_after(&[stream]) {
                *pinned = Some(*failed.pinned);
                return Err(failed.error.into());
            }
        }
        _ => return Ok(None),
    }
    Ok(Some(json!({})))
}

/// Begins a capture of one kernel that writes to the memory, or ends and runs it.
pub(super) fn capture(gpu: &Gpu, memory: &Memory, seed: Option<u64>) -> Result<Value> {
    match seed {
        Some(seed) => {
            gpu.begin_capture(Mode::Global)?;
            gpu.begin_fill(memory.address()?, memory.bytes(), seed)?;
        }
        None => gpu.run(&gpu.end_capture()?)?,
    }
    Ok(json!({}))
}

/// Captures a graph of one kernel that writes to the memory, to be run any number of times.
pub(super) fn graph(gpu: &Gpu, memory: &Memory, seed: u64) -> Result<Graph> {
    gpu.begin_capture(Mode::Global)?;
    gpu.begin_fill(memory.address()?, memory.bytes(), seed)?;
    Ok(gpu.end_capture()?)
}
