//! What is tried and measured on real GPUs, as one program that needs no toolchain where it runs.
//!
//! `e2e`, `hand-off`, `pins`, `copies`, `residency`, `tiers` and `leak` are stages: each prints a line a case or measure, writes
//! what it has seen as JSON, and ends with status 1 if something is not as it should be. A benchmark that misses its target says
//! so and is none of these. The other commands are the processes that stages start.
//!
//! The daemon and the tools are those that lie beside this program: `make gpu-bundle` puts them there.

mod bench;
mod bundle;
mod client;
mod content;
mod cuda;
mod e2e;
mod eye;
mod machine;
mod nvml;

use std::{
    fs,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};
use serde_json::Value;

#[derive(Parser)]
#[command(about = "Tries and measures vramd on the GPUs of this machine")]
struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The whole path, case by case.
    E2e {
        #[command(flatten)]
        stage: Stage,
        /// Only this case; may be given several times.
        #[arg(long = "case", value_name = "NAME")]
        cases: Vec<String>,
        /// `sim` plays those that need no GPU, on any machine.
        #[arg(long, value_enum, default_value = "cuda")]
        driver: bench::Driver,
    },
    /// What the daemon costs over a bare program.
    HandOff(Stage),
    /// What it costs to revoke and to pin, and whether programs bear it.
    Pins(Stage),
    /// What the driver's copies cost over plain ones.
    Copies(Stage),
    /// What it costs to move what clients hold, to the host and back.
    Residency {
        #[command(flatten)]
        stage: Stage,
        /// `sim` asks the same of a few MiB on any machine.
        #[arg(long, value_enum, default_value = "cuda")]
        driver: bench::Driver,
        /// Only this question, and no peers; may be given several times.
        #[arg(long = "ask", value_name = "NAME")]
        asked: Vec<String>,
    },
    /// What the tiers below cost beside the plain disk, and what waits for whom.
    Tiers {
        #[command(flatten)]
        stage: Stage,
        /// `sim` asks the same of a few MiB on any machine, of its disk.
        #[arg(long, value_enum, default_value = "cuda")]
        driver: bench::Driver,
        /// Only this question; may be given several times.
        #[arg(long = "ask", value_name = "NAME")]
        asked: Vec<String>,
        /// Nobody else's, on the disk that is meant; without it that of `/tmp`.
        #[arg(long, value_name = "PATH")]
        directory: Option<PathBuf>,
    },
    /// Whether killed sessions leave anything behind.
    Leak(Stage),
    /// A client of the cases.
    #[command(hide = true)]
    Client,
    /// A client that owns more than the device.
    #[command(hide = true)]
    Turner { driver: bench::Driver, parts: u32, part: u64, millis: u64 },
    /// The other process of the bare program.
    #[command(hide = true)]
    BareOwner { uuid: String },
    /// A client of the benchmark of pins.
    #[command(hide = true)]
    Pinner,
    /// A client of the benchmarks of residency and tiers.
    #[command(hide = true)]
    Holder { driver: bench::Driver, bytes: u64, part: u64 },
    /// A process beside it that computes.
    #[command(hide = true)]
    Neighbour { driver: bench::Driver },
    /// A client that is to be killed.
    #[command(hide = true)]
    Victim {
        #[arg(long)]
        steps: Option<usize>,
    },
}

#[derive(Args)]
struct Stage {
    /// Where to write what was seen.
    #[arg(long)]
    json: PathBuf,
    /// Fewer rounds.
    #[arg(long)]
    quick: bool,
}

impl Stage {
    fn save(&self, report: &Value) -> Result<()> {
        fs::write(&self.json, format!("{report:#}\n"))
            .with_context(|| format!("{} cannot be written", self.json.display()))
    }
}

fn main() -> ExitCode {
    match run(Command::parse().what) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // Nobody is left to tell if even this fails.
            let _ = writeln!(io::stderr(), "gpu-suite: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// True if all is as it should be.
fn run(what: What) -> Result<bool> {
    match what {
        What::E2e { stage, cases, driver } => {
            e2e::run(driver, stage.quick, &cases, |report| stage.save(report))
        }
        What::HandOff(stage) => bench::hand_off(stage.quick, |report| stage.save(report)),
        What::Leak(stage) => {
            let (good, report) = bench::leak(stage.quick)?;
            stage.save(&report)?;
            Ok(good)
        }
        What::Copies(stage) => bench::copies(stage.quick, |report| stage.save(report)),
        What::Pins(stage) => bench::pins(stage.quick, |report| stage.save(report)),
        What::Residency { stage, driver, asked } => {
            bench::residency(driver, &asked, stage.quick, |report| stage.save(report))
        }
        What::Tiers { stage, driver, asked, directory } => {
            bench::tiers(driver, &asked, directory.as_deref(), stage.quick, |report| stage.save(report))
        }
        What::Holder { driver, bytes, part } => bench::holder(driver, bytes, part).map(|()| true),
        What::Neighbour { driver } => bench::neighbour(driver).map(|()| true),
        What::Pinner => bench::pinner().map(|()| true),
        What::Client => client::run().map(|()| true),
        What::Turner { driver, parts, part, millis } => {
            client::turner(driver, parts, part, Duration::from_millis(millis)).map(|()| true)
        }
        What::BareOwner { uuid } => bench::bare_owner(&uuid).map(|()| true),
        What::Victim { steps } => bench::victim(steps).map(|()| true),
    }
}
