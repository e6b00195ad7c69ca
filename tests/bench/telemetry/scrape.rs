//! One scrape of many tenants.

use std::{
    io::{self, Write as _},
    time::Instant,
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use vramd_tests::{Config, Daemon, http};

use super::throughput::metrics_of;
use crate::samples::{Samples, micros};

const SCRAPES: usize = 30;
/// Tenants that have quotas only, with four series each.
const TENANTS: usize = 200;
/// Tenants with as many series as `TENANTS` tenants that are charged in two tiers. Each has a guarantee, a limit and at least one state for
/// each device and tier.
const TENANTS_AS_IN_TWO_TIERS: usize = TENANTS * 3;

pub(super) fn run() -> Result<Value> {
    Ok(json!({ "tenants_200": of(TENANTS)?, "as_in_two_tiers": of(TENANTS_AS_IN_TWO_TIERS)? }))
}

fn of(tenants: usize) -> Result<Value> {
    let config = Config::devices(&["64GiB", "64GiB"])
        .telemetry("prometheus_listen = \"127.0.0.1:0\"")
        .telemetry("cardinality_max = 10000");
    let daemon = Daemon::start(&config);
    for tenant in 0..tenants {
        daemon.set_quota(&format!("team-{tenant:03}"), "2MiB", "20MiB");
    }
    let metrics = metrics_of(&daemon)?;
    let mut times = Vec::new();
    let mut bytes = 0;
    let mut series = 0;
    for _ in 0..SCRAPES {
        let started = Instant::now();
        let answer = http::get(metrics, "/metrics");
        times.push(started.elapsed());
        ensure!(answer.status == 200, "{}", answer.body);
        bytes = answer.body.len();
        series = answer.body.lines().filter(|line| !line.starts_with('#')).count();
    }
    let times = Samples::new(times);
    let (median, most) = (micros(times.median()) / 1e3, micros(times.percentile(100)) / 1e3);
    let verdict = if median < 20.0 && bytes < 2 << 20 { "within" } else { "MISSED" };
    writeln!(
        io::stdout(),
        "scrape        {tenants} tenants on 2 devices: {series} series, {median:.1} ms, at most {most:.1} ms, {} KiB; \
         targets 20 ms and 2 MiB: {verdict}",
        bytes >> 10,
    )?;
    Ok(json!({ "tenants": tenants, "devices": 2, "series": series, "bytes": bytes, "times": times.json() }))
}
