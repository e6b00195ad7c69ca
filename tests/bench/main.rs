//! The benchmark of calls. `docs/benchmarks/rpc/README.md` says what is timed, and against what.
//!
//! `describe`, `batch`, `pins`, `small` and `telemetry` are benchmarks. Each prints a line for each measure and writes its results as JSON. A
//! missed target is reported and is no failure. The other commands are the bare processes that the daemon is compared with.
//!
//! The benchmark runs the daemon that lies beside this program: build both with `--release`.

mod bare;
mod batch;
mod caller;
mod describe;
mod echo;
#[cfg(feature = "jemalloc")]
mod jemalloc;
mod load;
mod ping_pong;
mod pins;
mod report;
mod samples;
#[cfg(any(feature = "jemalloc", test))]
mod small;
mod telemetry;
#[cfg(any(feature = "jemalloc", test))]
mod trace;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Measures the calls of vramd on the simulated driver")]
struct Command {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// `DescribeAllocation` beside a bare echo of the same messages: one call in flight, and 32 clients at once.
    Describe(Benchmark),
    /// A batch of 1,000 allocations, from the decoded request to the encoded reply.
    Batch(Benchmark),
    /// The cost of telemetry: instructions, throughput, a scrape, an idle daemon.
    Telemetry(Benchmark),
    /// Small blocks of an SDK pool, allocated and freed beside jemalloc.
    #[cfg(feature = "jemalloc")]
    Small(Benchmark),
    /// A pin and its unpin by the SDK: alone, and by eight threads at once.
    Pins(Benchmark),
    /// A tonic server that gives every `DescribeAllocation` the same answer.
    #[command(hide = true)]
    Echo { socket: PathBuf, answer: PathBuf },
    /// A process that sends back its input.
    #[command(hide = true)]
    PingPong { socket: PathBuf },
}

#[derive(Args)]
struct Benchmark {
    /// The report that receives the results. Its other entries stay.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Fewer calls and pairs, to show that it works and not how fast it is.
    #[arg(long)]
    quick: bool,
}

fn main() -> ExitCode {
    match run(Command::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-rpc: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<()> {
    match task {
        Task::Describe(benchmark) => measure(&benchmark, describe::run),
        Task::Batch(benchmark) => measure(&benchmark, batch::run),
        Task::Telemetry(benchmark) => measure(&benchmark, telemetry::run),
        #[cfg(feature = "jemalloc")]
        Task::Small(benchmark) => measure(&benchmark, small::run),
        Task::Pins(benchmark) => measure(&benchmark, pins::run),
        Task::Echo { socket, answer } => echo::serve(&socket, &answer),
        Task::PingPong { socket } => ping_pong::serve(&socket),
    }
}

fn measure(benchmark: &Benchmark, measure: fn(bool) -> Result<report::Results>) -> Result<()> {
    ensure!(!cfg!(debug_assertions), "a debug build says nothing about speed: build with --release");
    let results = measure(benchmark.quick)?;
    match &benchmark.json {
        Some(path) => report::write(path, results),
        None => Ok(()),
    }
}
