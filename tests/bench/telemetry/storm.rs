//! Probes during a storm of scrapes and pages.

use std::{
    io::{self, Write as _},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde_json::{Value, json};
use vramd_tests::{Daemon, http};

use super::{
    scrape::{self, TENANTS},
    throughput::metrics_of,
};
use crate::samples::{Samples, micros};

/// Clients that scrape or load the page without a pause.
const CLIENTS: usize = 40;
const PROBES: usize = 100;
const PROBE_EVERY: Duration = Duration::from_millis(50);

pub(super) fn run() -> Result<Value> {
    let daemon = Daemon::start(&scrape::config(8));
    scrape::set_quotas(&daemon, TENANTS);
    let at = metrics_of(&daemon)?;
    let end = AtomicBool::new(false);
    let (served, times) = thread::scope(|scope| {
        let load = |path: &'static str| {
            let end = &end;
            scope.spawn(move || {
                let mut served = 0;
                while !end.load(Ordering::Relaxed) {
                    served += u32::from(http::try_get(at, path).is_ok_and(|answer| answer.status == 200));
                }
                served
            })
        };
        let storm: Vec<_> = (0..CLIENTS).map(|client| load(["/metrics", "/"][client % 2])).collect();
        let mut times = Vec::new();
        for _ in 0..PROBES {
            let started = Instant::now();
            // A probe without its answer took too long.
            let answered = http::try_get(at, "/livez").is_ok_and(|answer| answer.status == 200);
            times.push(if answered { started.elapsed() } else { Duration::MAX });
            thread::sleep(PROBE_EVERY);
        }
        end.store(true, Ordering::Relaxed);
        let served: u32 =
            storm.into_iter().map(|client| client.join().expect("a client does not panic")).sum();
        (served, Samples::new(times))
    });
    let (median, most) = (micros(times.median()) / 1e3, micros(times.percentile(100)) / 1e3);
    let verdict = if most < 1_000.0 { "within" } else { "MISSED" };
    writeln!(
        io::stdout(),
        "storm         {served} scrapes and pages by {CLIENTS} clients; a probe took {median:.1} ms, at most {most:.1} ms; \
         target 1 s: {verdict}",
    )?;
    Ok(json!({ "clients": CLIENTS, "served": served, "probes": times.json() }))
}
