//! `policy-bench OUT.json`: plays generated traces with each eviction policy of the core, and requests with deadlines with
//! the core itself. Prints two tables, and writes the report and pictures of it. docs/benchmarks/order/README.md says what is counted.

mod bounds;
mod deadlines;
mod dice;
mod play;
mod plots;
mod report;
mod traces;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use broker_core::EvictionPolicy;
use clap::Parser;
use play::{Sight, Victims};
use report::{Report, Row};
use serde_json::Value;
use traces::Trace;

/// Each trace and each load is drawn with each of these seeds, and the bytes or requests are added up.
const SEEDS: [u64; 3] = [1, 2, 3];

/// The figures of a stream, and their keys in its report.
const STREAM_FIGURES: [(&str, &str); 4] = [
    ("stream_ratio", "stream_ratio"),
    ("overlap", "overlap"),
    ("idle_share", "idle_share"),
    ("stream_gpu", "gpu"),
];

#[derive(Parser)]
#[command(
    about = "Measures the eviction policies and the order of prefetches of the core on generated work."
)]
struct Arguments {
    /// The file to write the report to.
    out: PathBuf,

    /// The report of a stream that was measured on a GPU. Its figures go into this report.
    #[arg(long)]
    stream: Option<PathBuf>,

    /// The folder to draw the results in.
    #[arg(long)]
    plots: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let stream = arguments.stream.map(|file| read_stream(&file)).transpose()?;
    let rows = traces::GENERATORS.iter().map(|generator| measure(&SEEDS.map(generator)));
    let report = Report { rows: rows.collect(), deadlines: deadlines::measure() };
    report.print(&mut io::stdout().lock())?;
    let mut json = report.json();
    for (figure, key) in STREAM_FIGURES.iter().filter(|_| stream.is_some()) {
        json[figure] = stream.as_ref().map_or(Value::Null, |stream| stream[key].clone());
    }
    fs::write(arguments.out, format!("{json:#}\n"))?;
    if let Some(folder) = arguments.plots {
        plots::write(&folder, &report, stream.as_ref())?;
    }
    Ok(())
}

/// A stream's report with all its figures.
fn read_stream(file: &Path) -> Result<Value> {
    let text = fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let report: Value = serde_json::from_str(&text)?;
    for (_, key) in STREAM_FIGURES {
        report.get(key).with_context(|| format!("{} has no {key}", file.display()))?;
    }
    Ok(report)
}

/// Measures one trace, drawn with several seeds.
fn measure(traces: &[Trace]) -> Row {
    let sum = |of: &dyn Fn(&Trace) -> u64| traces.iter().map(of).sum();
    let played = |sight: Sight, victims: Victims| {
        let missed = |policy| sum(&|trace| play::missed(trace, policy, sight, victims));
        EvictionPolicy::ALL.map(|policy| (policy, missed(policy))).to_vec()
    };
    Row {
        name: traces[0].name,
        uses: sum(&Trace::counted_uses),
        requested: sum(&Trace::counted_granules),
        is_exact: traces.iter().all(bounds::is_exact),
        bound: sum(&bounds::furthest_next_use),
        best_static: sum(&bounds::best_static_set),
        policies: played(Sight::Each, Victims::Any),
        harvested: played(Sight::Harvested, Victims::Any),
        settled: played(Sight::Each, Victims::Settled),
    }
}
