//! `core-bench OUT.json`: measures the core, prints a table, and writes the report.

use std::{fs, io, path::PathBuf};

use anyhow::Result;
use clap::Parser;
use core_bench::{
    curve, memory, moves,
    report::{Planning, Report},
    throughput,
};
use serde_json::Value;

#[derive(Parser)]
#[command(
    about = "Measures how fast the core is, how much memory it takes, and how its costs grow with the number of allocations."
)]
struct Arguments {
    /// Run fewer allocations and rounds: seconds rather than minutes.
    #[arg(long)]
    quick: bool,
    /// Measure only the planning of moves, and keep the rest of the report.
    #[arg(long)]
    moves: bool,
    /// The file to write the report to.
    out: PathBuf,
}

/// How much of everything a run does.
struct Plan {
    memory: u64,
    /// The figure of the first counts.
    throughput: &'static [usize],
    slices: usize,
    slice_events: u64,
    curve: &'static [usize],
    rounds: u32,
    moves: u64,
}

/// Number of parts, most of which lie in host memory, and of pins that wait for one at a time.
const PARTS: u32 = 100_000;
const WAITING: [usize; 3] = [1, 32, 1_000];
/// Parts that an operator moves by one call.
const AT_ONCE: u32 = 50_000;

const FULL: Plan = Plan {
    memory: 1_000_000,
    throughput: &[10_000, 1_000, 100_000, 1_000_000],
    slices: 11,
    slice_events: 200_000,
    curve: &[1_000, 10_000, 100_000, 1_000_000],
    rounds: 20_000,
    moves: 20_000,
};
const QUICK: Plan = Plan {
    memory: 100_000,
    throughput: &[10_000],
    slices: 7,
    slice_events: 100_000,
    curve: &[1_000, 10_000, 100_000],
    rounds: 4_000,
    moves: 4_000,
};

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let plan = if arguments.quick { QUICK } else { FULL };
    if arguments.moves {
        let planning = planning(&plan);
        planning.print(&mut io::stdout().lock())?;
        let mut report: Value = serde_json::from_str(&fs::read_to_string(&arguments.out)?)?;
        report["moves"] = planning.json();
        return Ok(fs::write(&arguments.out, format!("{report:#}\n"))?);
    }
    // Memory comes first: freed memory would be reused without a trace.
    let growth = memory::measure(plan.memory)?;
    let throughput = plan
        .throughput
        .iter()
        .map(|live| (*live, throughput::measure(*live, plan.slices, plan.slice_events)))
        .collect();
    let curve = plan.curve.iter().map(|live| curve::measure(*live, plan.rounds)).collect();
    let planning = planning(&plan);
    let report = Report { quick: arguments.quick, growth, throughput, curve, planning };
    report.print(&mut io::stdout().lock())?;
    fs::write(&arguments.out, format!("{:#}\n", report.json()))?;
    Ok(())
}

fn planning(plan: &Plan) -> Planning {
    let planned = |waiting| (waiting, moves::measure(PARTS, waiting, plan.slices, plan.moves));
    let planned = WAITING.map(planned).to_vec();
    Planning { parts: PARTS, planned, at_once: moves::measure_at_once(AT_ONCE) }
}
