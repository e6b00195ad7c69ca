//! How fast a call is: `docs/benchmarks/rpc/README.md` says what is timed, and against what.
//!
//! `describe`, `batch`, `pins`, `small` and `telemetry` are benchmarks: each prints a line a measure and writes what it has seen as JSON. One that
//! misses its target says so and is no failure. The other commands are the processes that ours is compared with.
//!
//! The daemon is the one that lies beside this program: build both with `--release`.

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
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// `DescribeAllocation` beside a bare echo of the same messages: one call in flight, and 32 clients at once.
    Describe(Benchmark),
    /// A batch of 1,000 allocations, from the decoded request to the encoded reply.
    Batch(Benchmark),
    /// What telemetry costs: instructions, throughput, a scrape, an idle daemon.
    Telemetry(Benchmark),
    /// Allocating and freeing small blocks out of parts, beside jemalloc.
    #[cfg(feature = "jemalloc")]
    Small(Benchmark),
    /// A pin and its unpin by the SDK: alone, and by eight threads at once.
    Pins(Benchmark),
    /// A tonic server that answers every `DescribeAllocation` alike.
    #[command(hide = true)]
    Echo { socket: PathBuf, answer: PathBuf },
    /// A process that sends back what it gets.
    #[command(hide = true)]
    PingPong { socket: PathBuf },
}

#[derive(Args)]
struct Benchmark {
    /// The report that the results go into; what else it holds stays.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Fewer calls and pairs: to see that it works, not how fast it is.
    #[arg(long)]
    quick: bool,
}

fn main() -> ExitCode {
    match run(Command::parse().what) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-rpc: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(what: What) -> Result<()> {
    match what {
        What::Describe(benchmark) => measure(&benchmark, describe::run),
        What::Batch(benchmark) => measure(&benchmark, batch::run),
        What::Telemetry(benchmark) => measure(&benchmark, telemetry::run),
        #[cfg(feature = "jemalloc")]
        What::Small(benchmark) => measure(&benchmark, small::run),
        What::Pins(benchmark) => measure(&benchmark, pins::run),
        What::Echo { socket, answer } => echo::serve(&socket, &answer),
        What::PingPong { socket } => ping_pong::serve(&socket),
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
