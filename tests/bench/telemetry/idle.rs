//! CPU time and memory of an idle daemon.

use std::{
    io::{self, Write as _},
    thread,
    time::Duration,
};

use anyhow::Result;
use serde_json::{Value, json};
use vramd_tests::{
    Daemon,
    collector::Collector,
    proc::{cpu_time, resident_bytes},
};

use super::Amount;

/// How long the daemon's start may take before the measurement begins.
const SETTLE: Duration = Duration::from_secs(3);
const WATCH: Duration = Duration::from_secs(30);
const WATCH_QUICK: Duration = Duration::from_secs(10);

pub(super) fn run(sink: &Collector, quick: bool) -> Result<Value> {
    let watch = if quick { WATCH_QUICK } else { WATCH };
    Ok(json!({ "off": of(Amount::Nothing, sink, watch)?, "on": of(Amount::Usual, sink, watch)? }))
}

fn of(amount: Amount, sink: &Collector, watch: Duration) -> Result<Value> {
    let daemon = Daemon::start(&amount.config(sink));
    thread::sleep(SETTLE);
    let before = cpu_time(daemon.pid());
    thread::sleep(watch);
    let cores = (cpu_time(daemon.pid()) - before).as_secs_f64() / watch.as_secs_f64();
    let resident = resident_bytes(daemon.pid());
    let verdict = if cores < 0.005 && resident < 60 << 20 { "within" } else { "MISSED" };
    writeln!(
        io::stdout(),
        "idle          {}: {:.2} % of a core, {} MiB resident; targets 0.5 % and 60 MiB: {verdict}",
        amount.name(),
        cores * 100.0,
        resident >> 20,
    )?;
    Ok(json!({ "seconds": watch.as_secs(), "share_of_a_core": cores, "resident_bytes": resident }))
}
