//! One scrape of many tenants, and the page of the same node.

use std::{
    io::{self, Write as _},
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use vramd_tests::{Config, Daemon, http};

use super::throughput::metrics_of;
use crate::samples::{Samples, micros};

const SCRAPES: usize = 30;
/// Every page is a rendering of its own.
const PAGES: usize = 5;
const PAGE_EVERY: Duration = Duration::from_millis(1_050);
/// Tenants that have quotas only, with four series each for each device.
pub(super) const TENANTS: usize = 200;
/// Tenants with as many series as `TENANTS` tenants that are charged in two tiers. Each has a guarantee, a limit and at least one state for
/// each device and tier.
const TENANTS_AS_IN_TWO_TIERS: usize = TENANTS * 3;

pub(super) fn run() -> Result<Value> {
    Ok(json!({ "tenants_200": of(TENANTS, 8)?, "as_in_two_tiers": of(TENANTS_AS_IN_TWO_TIERS, 2)? }))
}

/// A node with series for every tenant.
pub(super) fn config(devices: usize) -> Config {
    Config::devices(&vec!["64GiB"; devices]).telemetry("prometheus_listen = \"127.0.0.1:0\"")
}

pub(super) fn set_quotas(daemon: &Daemon, tenants: usize) {
    for tenant in 0..tenants {
        daemon.set_quota(&format!("team-{tenant:03}"), "2MiB", "20MiB");
    }
}

fn of(tenants: usize, devices: usize) -> Result<Value> {
    let daemon = Daemon::start(&config(devices));
    set_quotas(&daemon, tenants);
    let at = metrics_of(&daemon)?;
    let (scrape, times) = load(at, "/metrics", SCRAPES, Duration::ZERO)?;
    let series = scrape.lines().filter(|line| !line.starts_with('#')).count();
    let (median, most) = (micros(times.median()) / 1e3, micros(times.percentile(100)) / 1e3);
    let bytes = scrape.len();
    let verdict = if median < 20.0 && bytes < 2 << 20 { "within" } else { "MISSED" };
    writeln!(
        io::stdout(),
        "scrape        {tenants} tenants on {devices} devices: {series} series, {median:.1} ms, at most {most:.1} ms, {} KiB; \
         targets 20 ms and 2 MiB: {verdict}",
        bytes >> 10,
    )?;
    let (page, page_times) = load(at, "/", PAGES, PAGE_EVERY)?;
    writeln!(
        io::stdout(),
        "page          {tenants} tenants on {devices} devices: {:.1} ms, {} KiB",
        micros(page_times.median()) / 1e3,
        page.len() >> 10,
    )?;
    Ok(json!({
        "tenants": tenants, "devices": devices, "series": series, "bytes": bytes, "times": times.json(),
        "cardinality_max": vramd::config::Telemetry::default().cardinality_max,
        "page": { "bytes": page.len(), "times": page_times.json() },
    }))
}

/// Loads a path several times. Returns the last answer, and the times.
fn load(at: SocketAddr, path: &str, times: usize, pause: Duration) -> Result<(String, Samples)> {
    let mut took = Vec::new();
    let mut body = String::new();
    for _ in 0..times {
        thread::sleep(pause);
        let started = Instant::now();
        let answer = http::get(at, path);
        took.push(started.elapsed());
        ensure!(answer.status == 200, "{}", answer.body);
        body = answer.body;
    }
    Ok((body, Samples::new(took)))
}
