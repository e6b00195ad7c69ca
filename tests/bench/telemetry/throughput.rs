//! The throughput of 32 clients with telemetry and without, and the daemon's CPU time for each call.

use std::{
    io::{self, Write as _},
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use vramd_tests::{Daemon, MIB, RawSession, collector::Collector, http, proc::cpu_time, session::persistent};

use super::Amount;
use crate::{caller::Caller, load::wave, samples::Figures};

const PAIRS: usize = 15;
const PAIRS_QUICK: usize = 3;
const CLIENTS: usize = 32;
const CALLS: usize = 500;
const CALLS_QUICK: usize = 100;
/// The time between two scrapes, much shorter than Prometheus uses.
const SCRAPE_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Throughput {
    /// The time of a call with ordinary telemetry, divided by the time without.
    pub(super) cost: f64,
    pub(super) details: Value,
}

pub(super) fn run(sink: &Collector, quick: bool) -> Result<Throughput> {
    let (pairs, calls) = if quick { (PAIRS_QUICK, CALLS_QUICK) } else { (PAIRS, CALLS) };
    let usual = pairs_of(Amount::Usual, sink, pairs, calls)?;
    let everything = pairs_of(Amount::Everything, sink, pairs, calls)?;
    Ok(Throughput {
        cost: usual.time,
        details: json!({
            "clients": CLIENTS, "calls_each": calls,
            "on": usual.details, "all_calls_traced": everything.details,
        }),
    })
}

struct Pairs {
    time: f64,
    details: Value,
}

struct Side {
    daemon: Daemon,
    callers: Vec<Caller>,
    rates: Vec<f64>,
    /// Microseconds of the daemon's CPU time for each call.
    cpu: Vec<f64>,
    /// A session ends with its channel.
    _sessions: Vec<RawSession>,
}

impl Side {
    fn start(amount: Amount, sink: &Collector) -> Result<Self> {
        let daemon = Daemon::start(&amount.config(sink));
        let mut sessions: Vec<_> = (0..CLIENTS).map(|_| daemon.open()).collect();
        let allocation = sessions[0].allocate(persistent("bench", 4 * MIB)).allocation_id;
        let socket = daemon.sockets().join("vramd.sock");
        let callers = sessions.iter().map(|session| Caller::connect(&socket, session.id(), allocation));
        let callers = callers.collect::<Result<_>>()?;
        Ok(Self { daemon, callers, rates: Vec::new(), cpu: Vec::new(), _sessions: sessions })
    }

    fn take(&mut self, calls: usize) -> Result<()> {
        let before = cpu_time(self.daemon.pid());
        let wave = wave(&mut self.callers, calls)?;
        let took = cpu_time(self.daemon.pid()) - before;
        self.rates.push(wave.calls_per_second);
        // The warm-up calls are included, equally on both sides.
        let count = u32::try_from(CLIENTS * (calls + crate::load::WARM_UP))?;
        self.cpu.push(took.as_secs_f64() * 1e6 / f64::from(count));
        Ok(())
    }
}

fn pairs_of(amount: Amount, sink: &Collector, pairs: usize, calls: usize) -> Result<Pairs> {
    let (mut off, mut on) = (Side::start(Amount::Nothing, sink)?, Side::start(amount, sink)?);
    let metrics = metrics_of(&on.daemon)?;
    let end = AtomicBool::new(false);
    let taken = thread::scope(|scope| {
        let scraping = scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                http::get(metrics, "/metrics");
                thread::sleep(SCRAPE_EVERY);
            }
        });
        let taken = (0..pairs).try_for_each(|pair| {
            let (first, second) = if pair % 2 == 0 { (&mut off, &mut on) } else { (&mut on, &mut off) };
            first.take(calls)?;
            second.take(calls)
        });
        end.store(true, Ordering::Relaxed);
        scraping.join().expect("scraping does not panic");
        taken
    });
    taken?;
    let (time, cpu) = (Figures::ratios(&off.rates, &on.rates), Figures::ratios(&on.cpu, &off.cpu));
    let middle = |figures: &[f64]| Figures::new(figures.iter().copied()).median();
    writeln!(
        io::stdout(),
        "throughput    {}: {:.0} calls a second, off {:.0}; a call takes {} times as long, {} times the CPU time \
         ({:.1} us, off {:.1} us)",
        amount.name(),
        middle(&on.rates),
        middle(&off.rates),
        time.text(),
        cpu.text(),
        middle(&on.cpu),
        middle(&off.cpu),
    )?;
    let details = json!({
        "time_ratio_to_off": time.json(), "cpu_ratio_to_off": cpu.json(),
        "calls_per_second": on.rates, "calls_per_second_off": off.rates,
        "cpu_us_a_call": on.cpu, "cpu_us_a_call_off": off.cpu,
    });
    Ok(Pairs { time: time.median(), details })
}

/// Returns the address at which the daemon serves its metrics.
pub(super) fn metrics_of(daemon: &Daemon) -> Result<SocketAddr> {
    let log = daemon.log();
    let line = log.lines().rfind(|line| line.contains("metrics served")).context("metrics served")?;
    let address = line.split_once("address=").and_then(|(_, rest)| rest.split_whitespace().next());
    Ok(address.context("the log says where")?.parse()?)
}
