//! The cost of telemetry: a call's instructions, the throughput of 32 clients, one scrape, probes in a storm of scrapes,
//! a start, an idle daemon, and the live view.

mod idle;
mod instructions;
mod scrape;
mod start;
mod storm;
mod throughput;
mod top;

use std::io::{self, Write as _};

use anyhow::Result;
use serde_json::json;
use vramd_tests::{Config, collector::Collector};

use crate::report::Results;

/// How much telemetry a daemon sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    Nothing,
    /// Metrics to Prometheus and a collector, logs, and a trace of one call in a hundred.
    Usual,
    /// The same, with a trace of every call.
    Everything,
}

impl Amount {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "off",
            Self::Usual => "on",
            Self::Everything => "all calls traced",
        }
    }

    fn config(self, sink: &Collector) -> Config {
        let ratio = match self {
            Self::Nothing => return Config::default(),
            Self::Usual => "0.01",
            Self::Everything => "1",
        };
        Config::default()
            .telemetry("prometheus_listen = \"127.0.0.1:0\"")
            .telemetry(&format!("otlp_endpoint = \"{}\"", sink.endpoint()))
            .telemetry(&format!("traces_sample_ratio = {ratio}"))
    }
}

pub(crate) fn run(quick: bool) -> Result<Results> {
    let sink = Collector::start();
    let instructions = instructions::run(&sink, quick)?;
    let throughput = throughput::run(&sink, quick)?;
    let scrape = scrape::run()?;
    let storm = storm::run()?;
    let start = start::run(quick)?;
    let idle = idle::run(&sink, quick)?;
    let top = top::run(quick)?;
    let cost = match instructions["on"]["ratio_to_off"].as_f64() {
        Some(instructions) => instructions.max(throughput.cost),
        None => throughput.cost,
    };
    let verdict = if cost <= TARGET { "within" } else { "MISSED" };
    writeln!(io::stdout(), "telemetry {cost:.3} of a call without it; target {TARGET}: {verdict}")?;
    Ok(Results {
        keys: vec![("telemetry_cost", cost)],
        name: "telemetry",
        details: json!({
            "target": TARGET,
            "instructions": instructions,
            "throughput": throughput.details,
            "scrape": scrape,
            "storm": storm,
            "start": start,
            "idle": idle,
            "top": top,
        }),
    })
}

const TARGET: f64 = 1.05;
