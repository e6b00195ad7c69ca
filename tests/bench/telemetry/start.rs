//! The time from the start of a daemon until it is ready.

use std::{
    io::{self, Write as _},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use vramd_tests::{Config, Daemon, Home, http, wait::PATIENCE};

use crate::samples::{Samples, micros};

const STARTS: usize = 20;
const STARTS_QUICK: usize = 5;
/// The time between two probes.
const PROBE_EVERY: Duration = Duration::from_millis(2);

pub(super) fn run(quick: bool) -> Result<Value> {
    let starts = if quick { STARTS_QUICK } else { STARTS };
    let times: Result<Vec<_>> = (0..starts).map(|_| once()).collect();
    let times = Samples::new(times?);
    let (median, most) = (micros(times.median()) / 1e3, micros(times.percentile(100)) / 1e3);
    let verdict = if median < 300.0 { "within" } else { "MISSED" };
    writeln!(
        io::stdout(),
        "start         ready after {median:.0} ms, at most {most:.0} ms; target 300 ms: {verdict}",
    )?;
    Ok(json!({ "ready": times.json() }))
}

fn once() -> Result<Duration> {
    let address = http::free_address();
    let home = Home::new();
    Config::default()
        .log_level("info")
        .telemetry(&format!("prometheus_listen = \"{address}\""))
        .write(home.path());
    let started = Instant::now();
    let child = home.spawn();
    let is_ready = || http::try_get(address, "/readyz").is_ok_and(|answer| answer.status == 200);
    while !is_ready() && started.elapsed() < PATIENCE {
        thread::sleep(PROBE_EVERY);
    }
    let took = started.elapsed();
    let log = home.log();
    Daemon::started(home, child).stop();
    ensure!(took < PATIENCE, "the daemon is not ready: {log}");
    Ok(took)
}
