//! Metrics, traces and logs, as real tools and collectors get them.

mod collectors;
mod dashboards;
mod exemplars;
mod health;
mod moves;
mod page;
mod pools;
mod scrape;
mod traces;

use std::net::SocketAddr;

use vramd_tests::{Config, Daemon, http};

/// Serves metrics on a port that the system chooses.
pub(crate) fn measured() -> Config {
    Config::default().telemetry("prometheus_listen = \"127.0.0.1:0\"")
}

/// The address of the daemon's metrics, by its log.
pub(crate) fn address(daemon: &Daemon) -> SocketAddr {
    daemon.metrics_address()
}

#[track_caller]
fn scrape(daemon: &Daemon) -> String {
    let answer = http::get(address(daemon), "/metrics");
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

/// The sum of all series that begin with this text.
fn sum(scrape: &str, series: &str) -> f64 {
    let values = scrape.lines().filter(|line| line.starts_with(series));
    values.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}
