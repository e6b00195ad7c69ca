//! Writes the Grafana dashboards in `deploy/grafana`, the rules in `deploy/prometheus`, and the page about both.
//!
//! `dashboards` writes the files; with `--check` it only compares and exits 1 on a difference. `dashboards record FILE
//! SECONDS` loads a node for that time and writes the series of every panel for `pictures`. `dashboards load TENANT` is
//! one program of that load.

use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use dev_kit::{Page, repository};
use serde_json::json;
use vramd_tests::{
    dashboards::{self, ALL, Dashboard, Values, load},
    prometheus::{Prometheus, Span},
    rules::{self, Alert, Recorded},
};

const HEAD: &str = "\
# Dashboards and alerts

<!-- Generated from tests/src/dashboards by `make dashboards`. Do not edit. -->

For operators who watch one node or many. After this page you have the dashboards in Grafana, the alerts in Prometheus,
and know which panel answers which question. [Telemetry](telemetry.md) says how to collect the metrics.

## Import

1. Prometheus scrapes each daemon under the job name `vramd`, by which an alert finds daemons that are down:

   ```yaml
   scrape_configs:
     - job_name: vramd
       static_configs:
         - targets: [\"node-1:9464\", \"node-2:9464\"]
   rule_files:
     - /etc/prometheus/vramd-recording.yml
     - /etc/prometheus/vramd-alerts.yml
   ```

2. Copy [the rules](../../deploy/prometheus) to those paths. The Debian package has them, and the dashboards, in
   `/usr/share/vramd`, and the tarball in `share/vramd`. Each alert has a `runbook_url` relative to the root of this
   repository, since no address of it is fixed. Put the address of your copy of the repository in front of it:
   `sed -i 's|runbook_url: |&https://git.example.com/vramd/blob/main/|' vramd-alerts.yml`.
   If you publish the book (`make book`), whose pages end in `.html`, use instead:
   `sed -i -E 's|(runbook_url: )docs/(.+)[.]md|\\1https://docs.example.com/\\2.html|' vramd-alerts.yml`.
3. In Grafana choose *Dashboards*, *New*, *Import*, and upload each file of [deploy/grafana](../../deploy/grafana). Or
   put the files into a folder of Grafana's provisioning. Then choose your Prometheus in the dashboard's first list.

In a cluster with the Prometheus operator the chart does all of this: `metrics.serviceMonitor.enabled`,
`metrics.rules.enabled` and `metrics.dashboards.enabled` ([Kubernetes](kubernetes.md#metrics-in-a-cluster)).

The dashboards use no recorded series, so they also work without the rules; only the two panels of alerts stay empty. A
panel of an amount that is zero stays empty too, because the daemon has no series for it.

The tenant `_other` is the sum of all tenants that have no series of their own. Which ones have them, and when to raise
`telemetry.cardinality_max`, says [many tenants](telemetry.md#many-tenants).

The pictures below are the panels' real data: two minutes of two simulated nodes, one of them under load, scraped every
three seconds. `make dashboard-pictures` draws them anew. No Grafana was at hand to open the files: CI runs every query
in a Prometheus.
";

fn main() -> Result<ExitCode> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => write(),
        ["--check"] => check(),
        ["load", tenant] => load::run(tenant).map(|()| ExitCode::SUCCESS),
        ["record", file, seconds] => {
            record(Path::new(file), seconds.parse().context("SECONDS is no number")?)
        }
        other => bail!("unknown arguments {other:?}; usage: dashboards [--check | record FILE SECONDS]"),
    }
}

/// The files of all dashboards and rules, with their texts.
fn files() -> Result<Vec<(PathBuf, String)>> {
    let folder = repository().join("deploy/grafana");
    let of = |dashboard: &&Dashboard| {
        let text = serde_json::to_string_pretty(&dashboards::json(dashboard))? + "\n";
        Ok((folder.join(format!("{}.json", dashboard.name)), text))
    };
    let rules = rules::files().into_iter().zip(rules::texts()).map(Ok);
    ALL.iter().map(of).chain(rules).collect()
}

fn page() -> Result<Page> {
    Ok(Page { name: "operations/dashboards.md", tool: "dashboards", text: text()? })
}

fn write() -> Result<ExitCode> {
    for (path, text) in files()? {
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    page()?.write_or_check()
}

fn check() -> Result<ExitCode> {
    for (path, text) in files()? {
        let written = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        if written != text {
            eprintln!("{} is not what the registry says: run `make dashboards`", path.display());
            return Ok(ExitCode::FAILURE);
        }
    }
    page()?.write_or_check()
}

fn text() -> Result<String> {
    let mut page = String::from(HEAD);
    for dashboard in ALL {
        let Dashboard { name, title, description, panels, .. } = dashboard;
        let title = title.trim_start_matches("vramd: ");
        writeln!(
            page,
            "\n## The {title} dashboard\n\n{description}\nThe file: `deploy/grafana/{name}.json`.\n"
        )?;
        writeln!(page, "![The panels of the {title} dashboard](pictures/{name}.png)\n")?;
        writeln!(page, "| Question | Unit | How to read the answer |\n|---|---|---|")?;
        for panel in *panels {
            writeln!(page, "| {} | {} | {} |", panel.title, panel.unit.name(), panel.description)?;
        }
    }
    writeln!(page, "\n## Alerts\n")?;
    writeln!(page, "Each alert links to the section of the runbook that says what to do.\n")?;
    writeln!(page, "| Alert | Severity | Fires when | Runbook |\n|---|---|---|---|")?;
    for Alert { name, severity, meaning, section, .. } in rules::ALERTS {
        let (severity, anchor) = (severity.name(), rules::anchor(section));
        writeln!(page, "| `{name}` | {severity} | {meaning} | [{section}](runbook.md#{anchor}) |")?;
    }
    writeln!(page, "\n## Recorded series\n")?;
    writeln!(
        page,
        "The alerts and your own queries read these. Each name begins with the labels that it keeps.\n"
    )?;
    writeln!(page, "| Series | Meaning |\n|---|---|")?;
    for Recorded { name, meaning, .. } in rules::RECORDED {
        writeln!(page, "| `{name}` | {meaning} |")?;
    }
    Ok(page)
}

/// Loads a node, and writes what every panel shows of it.
fn record(file: &Path, seconds: u64) -> Result<ExitCode> {
    let mut node = load::LoadedNode::start();
    let (quiet, _session) = load::quiet_node();
    let targets = [node.daemon.metrics_address(), quiet.metrics_address()];
    let files = rules::files();
    let prometheus = Prometheus::ruled(&targets, &files.each_ref().map(PathBuf::as_path));
    thread::sleep(Duration::from_secs(seconds));
    node.assert_alive();
    // The dashboards of the node and its tenant show the loaded node.
    let values = |dashboard: &Dashboard| Values {
        instance: if dashboard.name == "fleet" { ".+".to_owned() } else { targets[0].to_string() },
        device: ".+".to_owned(),
        tenant: load::TENANT.to_owned(),
        rate_interval: "12s".to_owned(),
        range: format!("{seconds}s"),
    };
    let span = Span::last(Duration::from_secs(seconds).as_secs_f64());
    let mut drawn = Vec::new();
    for dashboard in ALL {
        let mut panels = Vec::new();
        for panel in dashboard.panels {
            let answer = dashboards::record::answer(&prometheus, panel, &values(dashboard), &span);
            let answer = answer.with_context(|| format!("{}: {}", dashboard.title, panel.title))?;
            let series: Vec<_> = answer
                .iter()
                .map(|it| json!({ "name": it.name, "labels": it.labels, "points": it.points }))
                .collect();
            panels.push(json!({
                "title": panel.title,
                "unit": panel.unit.grafana(),
                "view": panel.view.name(),
                "series": series,
            }));
        }
        drawn.push(json!({ "name": dashboard.name, "title": dashboard.title, "panels": panels }));
    }
    fs::write(file, serde_json::to_string(&drawn)?).with_context(|| format!("write {}", file.display()))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_dashboards_are_current() {
        page().unwrap().assert_current();
        for (path, text) in files().unwrap() {
            assert_eq!(fs::read_to_string(&path).unwrap(), text, "run `make dashboards`: {}", path.display());
        }
    }

    #[test]
    fn each_dashboard_has_a_picture() {
        for dashboard in ALL {
            let picture = format!("docs/operations/pictures/{}.png", dashboard.name);
            assert!(repository().join(&picture).is_file(), "{picture}");
        }
    }
}
