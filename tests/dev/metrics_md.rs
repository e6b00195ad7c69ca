//! Writes `docs/reference/metrics.md` from the registry of metrics, so that the page always agrees with the code.
//!
//! `cargo run -p vramd-tests --bin metrics-md` writes it; with `--check` it only compares and exits 1 on a difference.

use std::{fmt::Write as _, process::ExitCode};

use dev_kit::Page;
use vramd::telemetry::metrics::{ALL, ATTRIBUTES, Definition};

const HEAD: &str = "\
# Metrics

<!-- Generated from broker/src/telemetry/metrics.rs by `make metrics-md`. Do not edit. -->

The daemon serves these metrics at `telemetry.prometheus_listen` and sends them to `telemetry.otlp_endpoint`, under the
names of Prometheus and of OpenTelemetry. An up-down counter has no series while it is zero; counters and gauges show
zeros. The states of `usage` add up to what is used. All tables of one collection are of the same moment. Names and
units follow OpenTelemetry's conventions, except `process.*`: these have the names that Prometheus expects of a process.

DCGM's exporter counts all memory as the daemon's. Join its series with these by UUID:
`label_replace(DCGM_FI_DEV_FB_USED, \"hw_id\", \"$1\", \"UUID\", \"(.+)\")` is in MiB.

";

fn main() -> anyhow::Result<ExitCode> {
    page().write_or_check()
}

fn page() -> Page {
    Page { name: "reference/metrics.md", tool: "metrics-md", text: text() }
}

fn text() -> String {
    let mut page = String::from(HEAD);
    tables(&mut page).expect("a String takes whatever is written");
    page
}

fn tables(page: &mut String) -> std::fmt::Result {
    writeln!(
        page,
        "| OpenTelemetry | Prometheus | Kind | Unit | Attributes | Meaning | When it moves |\n|---|---|---|---|---|---|---|"
    )?;
    for metric in ALL {
        let Definition { name, kind, unit, meaning, action, attributes, .. } = metric;
        let attributes: Vec<_> = attributes.iter().map(|attribute| format!("`{attribute}`")).collect();
        let (prometheus, attributes) = (metric.prometheus_name(), attributes.join(", "));
        writeln!(
            page,
            "| `{name}` | `{prometheus}` | {} | `{unit}` | {attributes} | {meaning} | {action} |",
            kind.name()
        )?;
    }
    writeln!(page, "\n## Attributes\n\nPrometheus has them with underscores instead of dots.\n")?;
    writeln!(page, "| Attribute | What it says |\n|---|---|")?;
    for (attribute, meaning) in ATTRIBUTES {
        writeln!(page, "| `{attribute}` | {meaning} |")?;
    }
    writeln!(page, "\n## Buckets\n\n| Histogram | Upper bounds, in its unit |\n|---|---|")?;
    for metric in ALL.iter().filter(|metric| !metric.boundaries.is_empty()) {
        let bounds: Vec<_> = metric.boundaries.iter().map(f64::to_string).collect();
        writeln!(page, "| `{}` | {} |", metric.name, bounds.join(", "))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_page_is_current() {
        page().assert_current();
    }

    #[test]
    fn every_metric_stands_on_the_page_once() {
        let page = text();
        for metric in ALL {
            assert_eq!(page.matches(&format!("\n| `{}` | `", metric.name)).count(), 1, "{}", metric.name);
        }
    }
}
