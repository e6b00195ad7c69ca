//! `simulator`: runs seeds, replays one, shrinks it, and looks for planted bugs.
#![allow(clippy::print_stdout, reason = "a tool of developers, which talks to them")]

mod report;

use std::{fs, num::NonZero, path::PathBuf, process::ExitCode, sync::LazyLock, thread};

use anyhow::{Context as _, bail};
use broker_core::Bug;
use clap::{Args, Parser, Subcommand};
use simulator::{
    campaign::{self, Hunt, SEEDS_RATED, Search},
    failure::Failure,
    known_seeds::KNOWN,
    run::run,
    scenario::{Fault, Plan},
    shrink::shrink,
    story::Story,
};

/// Number of seeds that together must take every legal transition.
const SEEDS_FOR_COVERAGE: u64 = 100;

/// Run the real core in virtual time, in worlds drawn from seeds.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run a range of seeds and report every broken invariant. Exits 1 if there is any, or if a legal
    /// transition was never taken.
    Run(Range),
    /// Run one seed and print the last lines of its trace: those before the failure, or the end of the run.
    Replay {
        #[command(flatten)]
        one: One,
        /// Number of lines to print.
        #[arg(long, default_value_t = 60)]
        lines: usize,
    },
    /// Print the whole trace of one seed.
    Trace(One),
    /// Print two digests of each seed's trace: of the trace as it is, and of its shape without names.
    Digest(Range),
    /// Find a shorter run that fails in the same way, and print its trace.
    Shrink(One),
    /// Plant each bug and look for it, beginning with the seed that tests/simulator/known_seeds.txt has for it.
    /// Exits 1 if one is not found.
    Bugs {
        /// Stop at the first find.
        #[arg(long, conflicts_with = "rated")]
        quick: bool,
        /// Write the seeds that found bugs to this file. A bug that was not found keeps its seed.
        #[arg(long, value_name = "FILE", requires = "quick", conflicts_with = "events")]
        save: Option<PathBuf>,
        /// First seeds to run even after the bug is found, to say how often it is.
        #[arg(long, default_value_t = SEEDS_RATED)]
        rated: u64,
        /// Most seeds to try for each bug.
        #[arg(long, default_value_t = 1000)]
        seeds_max: u64,
        /// Events before the faults stop.
        #[arg(long, default_value_t = 10_000)]
        events: u64,
        /// Number of threads: without it, of cores.
        #[arg(long, default_value_t = cores())]
        jobs: usize,
    },
    /// Run the seeds, hunt all planted bugs, and write a report as JSON.
    Report {
        /// The file to write.
        out: PathBuf,
        #[command(flatten)]
        range: Range,
    },
}

#[derive(Clone, Debug, Args)]
struct Range {
    /// Seeds to run, as `A..B`; B is not run.
    #[arg(long, default_value = "0..200", value_parser = parse_seeds)]
    seeds: std::ops::Range<u64>,
    /// Events before the faults stop.
    #[arg(long, default_value_t = 10_000)]
    events: u64,
    /// Number of threads: without it, of cores.
    #[arg(long, default_value_t = cores())]
    jobs: usize,
}

#[derive(Clone, Debug, Args)]
struct One {
    /// The seed to run.
    seed: u64,
    /// Events before the faults stop.
    #[arg(long, default_value_t = 10_000)]
    events: u64,
    /// Plant this bug in the core.
    #[arg(long, value_parser = parse_bug)]
    bug: Option<Bug>,
    /// Faults to leave out, by name.
    #[arg(long, value_delimiter = ',', value_parser = parse_fault)]
    without: Vec<Fault>,
    /// Seats whose processes do nothing; 100 is that of the operators.
    #[arg(long, value_delimiter = ',')]
    idle: Vec<usize>,
    /// Acts to leave out, by number.
    #[arg(long, value_delimiter = ',')]
    skip: Vec<u64>,
}

impl One {
    fn plan(self) -> Plan {
        Plan {
            bug: self.bug,
            without: self.without.into_iter().collect(),
            idle: self.idle.into_iter().collect(),
            skip: self.skip.into_iter().collect(),
            ..Plan::new(self.seed, self.events)
        }
    }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

fn parse_seeds(text: &str) -> anyhow::Result<std::ops::Range<u64>> {
    let (from, to) = text.split_once("..").context("seeds must be given as `A..B`, for example 0..200")?;
    Ok(from.parse()?..to.parse()?)
}

fn parse_bug(text: &str) -> anyhow::Result<Bug> {
    let named = Bug::ALL.iter().find(|bug| bug.name() == text).copied();
    named.with_context(|| {
        format!("no bug is named {text}; the names are {}", names(Bug::ALL.iter().map(|bug| bug.name())))
    })
}

fn parse_fault(text: &str) -> anyhow::Result<Fault> {
    let named = Fault::ALL.iter().find(|fault| fault.name() == text).copied();
    named.with_context(|| {
        format!("no fault is named {text}; the names are {}", names(Fault::ALL.iter().map(|it| it.name())))
    })
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

fn main() -> anyhow::Result<ExitCode> {
    // A panic at a bad line is reported only before the next line.
    LazyLock::force(&KNOWN);
    // A panic of the core is a failure like others and reported as one.
    std::panic::set_hook(Box::new(|_| {}));
    let fine = match Cli::parse().command {
        Task::Run(range) => run_seeds(&range)?,
        Task::Replay { one, lines } => replay(&one.plan(), lines),
        Task::Trace(one) => {
            let ran = run(&one.plan(), Story::Whole(Vec::new()));
            ran.story.lines().iter().for_each(|line| println!("{line}"));
            ran.failure.is_none()
        }
        Task::Digest(range) => {
            let digests = campaign::digest_all(range.seeds, range.events, range.jobs);
            for (seed, digest) in &digests {
                println!("{seed} {digest}");
            }
            true
        }
        Task::Shrink(one) => shrink_one(&one.plan())?,
        Task::Bugs { quick, save, rated, seeds_max, events, jobs } => {
            let search = match quick {
                true => Search::until_found(seeds_max, events),
                false => Search { rated, seeds_max, events },
            };
            let hunts = campaign::hunt_all(Bug::ALL, search, jobs, print_hunt);
            let found = hunts.iter().filter(|hunt| hunt.is_good()).count();
            println!("{found} of {} planted bugs found", hunts.len());
            let known = hunts.iter().filter(|hunt| hunt.is_by_known()).count();
            println!("{known} of them by the seed of known_seeds.txt");
            if let Some(file) = save {
                fs::write(&file, KNOWN.text_with(&hunts))
                    .with_context(|| format!("write {}", file.display()))?;
            }
            found == hunts.len()
        }
        Task::Report { out, range } => report::write(&out, range.seeds, range.events, range.jobs)?,
    };
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_failure(seed: u64, failure: &Failure) {
    println!("seed {seed}: {failure}");
}

fn print_hunt(hunt: &Hunt) {
    let name = hunt.bug.name();
    match &hunt.found {
        Some((seed, failure)) if hunt.search.rated == 0 => {
            println!("{name}: found by seed {seed}, by {failure}")
        }
        Some((seed, failure)) => {
            println!(
                "{name}: found by seed {seed}, and by {} of the first {}, by {failure}",
                hunt.hits, hunt.search.rated
            );
        }
        None => println!("{name}: NOT FOUND"),
    }
    for by in hunt.unexpected() {
        println!("{name}: found by {by}, WHICH IT DOES NOT BREAK: {:?}", hunt.by);
    }
}

fn run_seeds(range: &Range) -> anyhow::Result<bool> {
    if range.seeds.is_empty() {
        bail!("the range {:?} has no seeds", range.seeds);
    }
    let all = campaign::run_all(range.seeds.clone(), range.events, range.jobs, print_failure);
    println!("{} seeds, {} events, {} failures", all.seeds, all.events, all.failures.len());
    let never = all.coverage.never_taken();
    for row in &never {
        println!("never taken: {} {}", row.table, row.cell);
    }
    let not_refused = all.coverage.not_refused();
    for row in &not_refused {
        println!("not refused: {} {}", row.table, row.cell);
    }
    let rows = all.coverage.rows();
    let illegal = rows.iter().filter(|row| !row.legal);
    let (refused, tried): (Vec<_>, Vec<_>) = illegal.map(|row| (row.refused, row.count)).unzip();
    println!(
        "{} legal transitions, {} never taken; {} illegal ones, {} refused when forced, {} in runs {} times",
        rows.len() - refused.len(),
        never.len(),
        refused.len(),
        refused.iter().filter(|refused| **refused).count(),
        tried.iter().filter(|count| **count > 0).count(),
        tried.iter().sum::<u64>(),
    );
    let complete = never.is_empty() || all.seeds < SEEDS_FOR_COVERAGE;
    Ok(all.failures.is_empty() && complete && not_refused.is_empty())
}

fn replay(plan: &Plan, lines: usize) -> bool {
    let ran = run(plan, Story::last(lines));
    ran.story.lines().iter().for_each(|line| println!("{line}"));
    match &ran.failure {
        Some(failure) => println!("\n{failure}"),
        None => println!("\nseed {}: {} events, no invariant broken", plan.seed, ran.events),
    }
    ran.failure.is_none()
}

fn shrink_one(plan: &Plan) -> anyhow::Result<bool> {
    let shrunk = shrink(plan).context("the run breaks no invariant, so there is nothing to shrink")?;
    replay(&shrunk.plan, usize::MAX);
    println!(
        "\nafter {} tries {} of {} acts are left; run it again with:",
        shrunk.tries, shrunk.acts.1, shrunk.acts.0
    );
    println!("{}", command_of(&shrunk.plan));
    Ok(false)
}

fn command_of(plan: &Plan) -> String {
    let mut command =
        format!("cargo run -p simulator -- replay {} --events {} --lines 10000", plan.seed, plan.events);
    let mut add = |name: &str, values: Vec<String>| {
        if !values.is_empty() {
            command += &format!(" --{name} {}", values.join(","));
        }
    };
    add("bug", plan.bug.iter().map(|bug| bug.name().to_owned()).collect());
    add("without", plan.without.iter().map(|fault| fault.name().to_owned()).collect());
    add("idle", plan.idle.iter().map(ToString::to_string).collect());
    add("skip", plan.skip.iter().map(ToString::to_string).collect());
    command
}
