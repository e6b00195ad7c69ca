//! Peers in the same run: managed memory, which the driver moves, and `torch_memory_saver`, which pauses and resumes
//! tensors. Each in turns with plain copies of as many bytes.

mod managed;
mod saver;

use std::io::{self, Write as _};

use anyhow::Result;
use serde_json::{Value, json};

use crate::{
    bench::{measure::Measure, plain::Plain},
    cuda::Gpu,
};

/// Managed memory and buffers that are made again each time are so slow that a part of the bytes must do.
const LESS: usize = 8;

/// Returns true if each peer ran and kept its bytes. A peer that the machine lacks is reported as absent.
pub(super) fn run(
    gpu: &Gpu,
    plain: &mut Plain<'_>,
    parts: usize,
    part: usize,
    pairs: usize,
    report: &mut Value,
) -> Result<bool> {
    let mut less = Plain::new(gpu, parts / LESS, part)?;
    let mut good = true;
    for (name, found) in [
        ("managed_memory", managed::ask(gpu, &mut less, parts / LESS * part, pairs)),
        ("torch_memory_saver_kept", saver::ask(gpu, plain, (parts, part), true, pairs)),
        ("torch_memory_saver", saver::ask(gpu, &mut less, (parts / LESS, part), false, pairs)),
    ] {
        report["peers"][name] = match found {
            Ok(found) => found,
            Err(error) => {
                good = false;
                writeln!(io::stdout(), "peer {name} FAILED: {error:#}")?;
                json!({ "problem": format!("{error:#}") })
            }
        };
    }
    Ok(good)
}

/// Prints the result, and returns what the report keeps.
fn report(name: &str, measure: &Measure, bytes: usize) -> Result<Value> {
    writeln!(io::stdout(), "peer {}", measure.line(name))?;
    Ok(measure.json_of(bytes))
}
