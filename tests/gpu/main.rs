//! The GPU suite: one program that tests and measures on real GPUs and needs no toolchain there.
//!
//! `e2e`, `hand-off`, `pins`, `copies`, `residency`, `tiers` and `leak` are stages. Each prints a line for each case or measure, writes its
//! results as JSON, and ends with status 1 on a failure. A missed target of a benchmark is reported and is no failure. The other commands
//! are the processes that stages start.
//!
//! The suite runs the daemon and tools beside this program, where `make gpu-bundle` puts them.

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
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// The end-to-end cases.
    E2e {
        #[command(flatten)]
        stage: Stage,
        /// Run only this case; may be repeated.
        #[arg(long = "case", value_name = "NAME")]
        cases: Vec<String>,
        /// `sim` runs the cases that need no GPU, on any machine.
        #[arg(long, value_enum, default_value = "cuda")]
        driver: bench::Driver,
    },
    /// The daemon's cost over a bare program.
    HandOff(Stage),
    /// The cost of revoking and pinning, and whether programs survive it.
    Pins(Stage),
    /// The cost of the driver's copies over plain ones.
    Copies(Stage),
    /// The cost of moving clients' memory to the host and back.
    Residency {
        #[command(flatten)]
        stage: Stage,
        /// `sim` runs with a few MiB on any machine.
        #[arg(long, value_enum, default_value = "cuda")]
        driver: bench::Driver,
        /// Answer only this question, without peers; may be repeated.
        #[arg(long = "ask", value_name = "NAME")]
        asked: Vec<String>,
    },
    /// The cost of the tiers below beside the plain disk, and waits under load.
    Tiers {
        #[command(flatten)]
        stage: Stage,
        /// `sim` runs with a few MiB on any machine's disk.
        #[arg(long, value_enum, default_value = "cuda")]
        driver: bench::Driver,
        /// Answer only this question; may be repeated.
        #[arg(long = "ask", value_name = "NAME")]
        asked: Vec<String>,
        /// An unused directory on the disk to measure [default: one in `/tmp`].
        #[arg(long, value_name = "PATH")]
        directory: Option<PathBuf>,
    },
    /// Leaks after killed sessions.
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
    match run(Command::parse().task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // If even this fails, the error has no receiver.
            let _ = writeln!(io::stderr(), "gpu-suite: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a stage. Returns true if nothing failed.
fn run(task: Task) -> Result<bool> {
    match task {
        Task::E2e { stage, cases, driver } => {
            e2e::run(driver, stage.quick, &cases, |report| stage.save(report))
        }
        Task::HandOff(stage) => bench::hand_off(stage.quick, |report| stage.save(report)),
        Task::Leak(stage) => {
            let (good, report) = bench::leak(stage.quick)?;
            stage.save(&report)?;
            Ok(good)
        }
        Task::Copies(stage) => bench::copies(stage.quick, |report| stage.save(report)),
        Task::Pins(stage) => bench::pins(stage.quick, |report| stage.save(report)),
        Task::Residency { stage, driver, asked } => {
            bench::residency(driver, &asked, stage.quick, |report| stage.save(report))
        }
        Task::Tiers { stage, driver, asked, directory } => {
            bench::tiers(driver, &asked, directory.as_deref(), stage.quick, |report| stage.save(report))
        }
        Task::Holder { driver, bytes, part } => bench::holder(driver, bytes, part).map(|()| true),
        Task::Neighbour { driver } => bench::neighbour(driver).map(|()| true),
        Task::Pinner => bench::pinner().map(|()| true),
        Task::Client => client::run().map(|()| true),
        Task::Turner { driver, parts, part, millis } => {
            client::turner(driver, parts, part, Duration::from_millis(millis)).map(|()| true)
        }
        Task::BareOwner { uuid } => bench::bare_owner(&uuid).map(|()| true),
        Task::Victim { steps } => bench::victim(steps).map(|()| true),
    }
}
