//! `core-counts check`: counts the core's instructions, and compares them with the committed counts.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand};
use core_bench::counts::{
    comparison::{Counts, Difference, Steep, compare, faster_than_logarithm, growing, percent, times},
    measure,
    workload::Workload,
};
use dev_kit::{machine, output_of, repository};
use serde_json::{Value, json};

#[derive(Parser)]
#[command(about = "Counts the instructions of the core, and compares them with the committed counts.")]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Fail if a count grew by more than 3 %, or grows with the number of queued requests.
    Check {
        /// Run the long workloads too: 10,000 queued requests, and each kind of event over 100,000 live allocations.
        #[arg(long)]
        whole: bool,
    },
    /// Count, and write the file of committed counts.
    Update {
        /// Why the counts change. It is committed with them.
        why: String,
    },
    /// Count, and write a report.
    Report {
        /// The file to write.
        out: PathBuf,
    },
    /// Run one workload; the other actions run it under Valgrind.
    #[command(hide = true)]
    Run { workload: String },
}

/// The fewest kinds of events of which the growth is known.
const KINDS_MIN: usize = 18;
/// A prefetch request may take so many times the instructions of an `Attach`.
const PREFETCH_TO_ATTACH_MAX: f64 = 2.0;
/// The committed counts.
const COMMITTED: &str = "tests/core-bench/counts.json";

fn main() -> Result<ExitCode> {
    let committed = repository().join(COMMITTED);
    match Arguments::parse().action {
        Action::Run { workload } => run(&workload)?,
        Action::Check { whole } => return check(&committed, whole),
        Action::Update { why } => {
            let counts = count(&Workload::COMMITTED)?;
            if committed.exists() {
                print_beside(&read(&committed)?, &counts)?;
            }
            write(&committed, &json!({ "why": why, "rustc": rustc(), "counts": counts }))?;
        }
        Action::Report { out } => {
            let counts = count(&Workload::COMMITTED)?;
            print_beside(&read(&committed)?, &counts)?;
            let report = json!({
                "instructions": counts,
                "machine": machine(),
                "commit": output_of("git", &["rev-parse", "HEAD"]),
                "changed_since": output_of("git", &["status", "--porcelain"]).is_none_or(|text| !text.is_empty()),
                "rustc": rustc(),
                "valgrind": output_of("valgrind", &["--version"]),
                "at": output_of("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
                "command": "tests/core-bench/count report OUT.json",
            });
            write(&out, &report)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a workload, and prints what it did: name, region and number.
fn run(workload: &str) -> Result<()> {
    let workload = Workload::find(workload).context("there is no workload of this name")?;
    for unit in workload.run() {
        writeln!(io::stdout(), "{}\t{}\t{}", unit.name, unit.region, unit.times)?;
    }
    Ok(())
}

fn check(committed: &Path, whole: bool) -> Result<ExitCode> {
    let (left_out, counted): (Vec<_>, Vec<_>) =
        Workload::COMMITTED.into_iter().partition(|workload| workload.is_long() && !whole);
    let (mut before, counts) = (read(committed)?, count(&counted)?);
    before.retain(|name, _| !left_out.iter().any(|workload| workload.name() == name));
    print_beside(&before, &counts)?;
    let found = compare(&before, &counts);
    let mut out = io::stdout();
    for difference in &found {
        writeln!(out, "{difference}")?;
    }
    let many = match whole {
        true => measure::counts(&[Workload::KindsOverMany])?,
        false => Counts::new(),
    };
    ensure!(!whole || many.len() >= KINDS_MIN, "only {} kinds of events were seen over many", many.len());
    let growing = growing(&counts, &many);
    for (name, few, many) in &growing {
        writeln!(
            out,
            "GROWS  {name}: {few} instructions over few live allocations, {many} over ten times as many"
        )?;
    }
    let steep = steep(&counts);
    for count in &steep {
        writeln!(out, "{count}")?;
    }
    let prefetch = times(&counts, Workload::Prefetches.name(), "Attach");
    writeln!(
        out,
        "a prefetch request takes {prefetch:.2} times an Attach; at most {PREFETCH_TO_ATTACH_MAX}"
    )?;
    // A ratio that is not a number fails as well.
    let is_cheap = prefetch <= PREFETCH_TO_ATTACH_MAX;
    let fails = found.iter().any(Difference::fails) || !growing.is_empty() || !steep.is_empty() || !is_cheap;
    if !found.is_empty() {
        writeln!(
            out,
            "If this change is meant to do that: tests/core-bench/count update 'why', and commit {COMMITTED}."
        )?;
        let used: Value = serde_json::from_str(&fs::read_to_string(committed)?)?;
        if used["rustc"] != json!(rustc()) {
            writeln!(out, "The committed counts are of {}, these of {}.", used["rustc"], json!(rustc()))?;
        }
    }
    Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The counts that grow faster than the logarithm of the number of queued requests.
fn steep(counts: &Counts) -> Vec<Steep> {
    let of_work = |work: [(Workload, u32); 3]| {
        let named = work.map(|(workload, queued)| (workload.name(), queued));
        faster_than_logarithm(counts, &named)
    };
    Workload::queued().into_iter().flat_map(of_work).collect()
}

fn count(workloads: &[Workload]) -> Result<Counts> {
    ensure!(
        !cfg!(debug_assertions),
        "this build has checks that the daemon has not; use tests/core-bench/count"
    );
    measure::counts(workloads)
}

fn print_beside(before: &Counts, now: &Counts) -> Result<()> {
    let mut out = io::stdout();
    for (name, count) in now {
        match before.get(name) {
            Some(before) => {
                writeln!(
                    out,
                    "{name:<45} {before:>12.1} {count:>12.1} {:>+7.1} %",
                    percent(*before, *count)
                )?;
            }
            None => writeln!(out, "{name:<45} {:>12} {count:>12.1}", "-")?,
        }
    }
    Ok(())
}

fn read(committed: &Path) -> Result<Counts> {
    let text = fs::read_to_string(committed).with_context(|| format!("{COMMITTED} cannot be read"))?;
    let mut value: Value = serde_json::from_str(&text)?;
    serde_json::from_value(value["counts"].take()).context("counts by name")
}

fn write(path: &Path, value: &Value) -> Result<()> {
    Ok(fs::write(path, format!("{value:#}\n"))?)
}

fn rustc() -> Option<String> {
    output_of("rustc", &["--version"])
}
