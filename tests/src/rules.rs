//! The recording rules and alerts of `deploy/prometheus`, which the program `dashboards` writes from here.
//!
//! A recorded series is named by the labels that it keeps, the metric and the operation. Each alert names the section of
//! the runbook that says what to do.

use std::{
    fmt::{self, Write as _},
    path::PathBuf,
};

use crate::programs::repository;

/// A series that Prometheus computes at each evaluation.
#[derive(Debug)]
pub struct Recorded {
    pub name: &'static str,
    pub expression: &'static str,
    pub meaning: &'static str,
}

/// A condition of which an operator should know.
#[derive(Debug)]
pub struct Alert {
    pub name: &'static str,
    pub expression: &'static str,
    /// How long the condition must hold.
    pub lasting: &'static str,
    pub severity: Severity,
    /// When it fires, for the page of alerts.
    pub meaning: &'static str,
    /// One line about the object that it concerns, with Prometheus's templates.
    pub summary: &'static str,
    /// The figures, and the first step.
    pub description: &'static str,
    /// The heading of its section in the runbook.
    pub section: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Wakes a person: programs are harmed now.
    Critical,
    /// For the next working day.
    Warning,
}

impl Severity {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
        }
    }
}

pub const RECORDED: &[Recorded] = &[
    Recorded {
        name: "place:vramd_fill:ratio",
        expression: "sum by (job, instance, hw_id, vramd_tier) (vramd_quota_usage_bytes)\n/\nsum by (job, instance, hw_id, vramd_tier) (vramd_memory_capacity_bytes)",
        meaning: "The charge of all tenants in a place (`hw_id`, `vramd_tier`) as a share of its capacity.",
    },
    Recorded {
        name: "tenant_place:vramd_quota_fill:ratio",
        expression: "sum by (job, instance, vramd_tenant, hw_id, vramd_tier) (vramd_quota_usage_bytes)\n/\nsum by (job, instance, vramd_tenant, hw_id, vramd_tier) (vramd_quota_limit_bytes)",
        meaning: "The charge of a tenant in a place as a share of its limit there.",
    },
    Recorded {
        name: "link:vramd_link_use:ratio_rate5m",
        expression: "sum by (job, instance, vramd_link, vramd_link_way) (\n  sum by (job, instance, hw_id, vramd_link_way) (rate(vramd_link_io_bytes_total[5m]))\n  * on (job, instance, hw_id, vramd_link_way) group_right ()\n  (vramd_link_limit_bytes_per_second > bool 0)\n)\n/\nmax by (job, instance, vramd_link, vramd_link_way) (vramd_link_limit_bytes_per_second)",
        meaning: "The copies on a link in one direction as a share of its limit.",
    },
    Recorded {
        name: "device:vramd_demand_in:bytes_rate5m",
        expression: "sum by (job, instance, hw_id) (rate(vramd_migration_io_bytes_total{vramd_migration_direction=\"in\",vramd_migration_cause=\"demand\",vramd_migration_outcome=\"moved\"}[5m]))",
        meaning: "Bytes a second that came to a device because a client wanted them there.",
    },
    Recorded {
        name: "device:vramd_demand_out:bytes_rate5m",
        expression: "sum by (job, instance, hw_id) (rate(vramd_migration_io_bytes_total{vramd_migration_direction=\"out\",vramd_migration_cause=\"demand\",vramd_migration_outcome=~\"moved|clean|dropped\"}[5m]))",
        meaning: "Bytes a second that left a device because another waiter needed the room.",
    },
    Recorded {
        name: "device:vramd_fetched:bytes_rate5m",
        expression: "sum by (job, instance, hw_id) (rate(vramd_migration_io_bytes_total{vramd_migration_direction=\"in\",vramd_migration_outcome=\"moved\"}[5m]))",
        meaning: "Bytes a second that were copied to a device, of all causes.",
    },
    Recorded {
        name: "device:vramd_fetched_used:ratio_rate5m",
        expression: "sum by (job, instance, hw_id) (rate(vramd_migration_used_bytes_total[5m]))\n/\n(sum by (job, instance, hw_id) (rate(vramd_migration_io_bytes_total{vramd_migration_direction=\"in\",vramd_migration_outcome=\"moved\"}[5m])) > 0)",
        meaning: "The share of the bytes fetched to a device that a client mapped before they left again.",
    },
    Recorded {
        name: "device:vramd_link_to_device:bytes_per_second",
        expression: "max by (job, instance, hw_id) (vramd_link_limit_bytes_per_second{vramd_link_way=\"to_device\"})",
        meaning: "The measured speed of copies to a device.",
    },
    Recorded {
        name: "tenant:vramd_pin_wait_seconds:p99_rate5m",
        expression: "histogram_quantile(0.99, sum by (job, instance, vramd_tenant, le) (rate(vramd_pin_wait_seconds_bucket[5m])))",
        meaning: "Of the pin calls of a tenant that waited, 99 of 100 were shorter.",
    },
    Recorded {
        name: "node:vramd_refusals:rate5m",
        expression: "sum by (job, instance, vramd_refusal_reason) (rate(vramd_refusals_total[5m]))",
        meaning: "Refusals a second on a node, by reason.",
    },
    Recorded {
        name: "device:vramd_unbrokered:bytes",
        expression: "sum by (job, instance, hw_id) (vramd_memory_usage_bytes{vramd_memory_state=\"unbrokered\"})\nor\n0 * sum by (job, instance, hw_id) (vramd_memory_limit_bytes{vramd_tier=\"device\"})",
        meaning: "Bytes of a device that other programs have, with zeros.",
    },
];

pub const ALERTS: &[Alert] = &[
    Alert {
        name: "VramdDown",
        expression: "up{job=\"vramd\"} == 0",
        lasting: "2m",
        severity: Severity::Critical,
        meaning: "the daemon of a node has not answered a scrape for 2 minutes",
        summary: "vramd on {{ $labels.instance }} does not answer",
        description: "Programs keep what they have mapped, but can allocate and pin nothing. Look at the status with which the daemon ended.",
        section: "The daemon does not run",
    },
    Alert {
        name: "VramdInvariantViolated",
        expression: "vramd_invariant_violations_total > 0",
        lasting: "0m",
        severity: Severity::Critical,
        meaning: "the daemon has found an invariant broken since its start",
        summary: "vramd on {{ $labels.instance }} has broken an invariant",
        description: "{{ $value }} violations since the start of the daemon. Save the log, report it, and restart the node at the next opportunity.",
        section: "An invariant is broken",
    },
    Alert {
        name: "VramdTenantAtLimit",
        expression: "(tenant_place:vramd_quota_fill:ratio > 0.95)\nand on (job, instance, vramd_tenant)\n(sum by (job, instance, vramd_tenant) (increase(vramd_tenant_refusals_total{vramd_refusal_reason=\"QUOTA_LIMIT\"}[10m])) > 0)",
        lasting: "5m",
        severity: Severity::Warning,
        meaning: "a tenant has more than 95 % of a limit in use, and its requests are refused at this limit or at another of its limits",
        summary: "Tenant {{ $labels.vramd_tenant }} is at a limit on {{ $labels.instance }}",
        description: "{{ $value | humanizePercentage }} of its limit in tier {{ $labels.vramd_tier }} of {{ $labels.hw_id }} is in use, and its requests are refused with QUOTA_LIMIT at this limit or at another of the tenant. vramctl watch --kind refusal shows at which. Raise that limit, or have the tenant free memory.",
        section: "A request is refused",
    },
    Alert {
        name: "VramdThrash",
        expression: "(\n  (device:vramd_demand_in:bytes_rate5m > 0.25 * device:vramd_link_to_device:bytes_per_second)\n  and (device:vramd_demand_out:bytes_rate5m > 0.25 * device:vramd_link_to_device:bytes_per_second)\n)\nor\n(\n  (device:vramd_fetched:bytes_rate5m > 0.05 * device:vramd_link_to_device:bytes_per_second)\n  and (device:vramd_fetched_used:ratio_rate5m < 0.5)\n)",
        lasting: "10m",
        severity: Severity::Warning,
        meaning: "for 10 minutes demand has moved memory both ways at more than a quarter of a device's link, or half of what is fetched leaves unused",
        summary: "Memory comes and goes on {{ $labels.hw_id }} of {{ $labels.instance }}",
        description: "{{ $value | humanize1024 }}B/s come to the device, and as much leaves it or leaves it unused. The programs of one moment use more than the device has.",
        section: "Memory comes and goes",
    },
    Alert {
        name: "VramdRevocationOverdue",
        expression: "sum by (job, instance) (vramd_sessions{vramd_session_state=\"silent\"}) > 0",
        lasting: "5m",
        severity: Severity::Warning,
        meaning: "a session has not unmapped what the daemon revoked, and is silent for 5 minutes",
        summary: "A client on {{ $labels.instance }} does not answer a revoke",
        description: "{{ $value }} sessions are silent: their mappings stand and stay charged, and what they map cannot leave its device. Find their processes with vramctl session list.",
        section: "A session is silent",
    },
    Alert {
        name: "VramdTierNearlyFull",
        expression: "(place:vramd_fill:ratio{vramd_tier=\"disk\"} > 0.9)\nor\n(\n  (place:vramd_fill:ratio{vramd_tier=\"host\"} > 0.9)\n  unless on (job, instance, hw_id)\n  (\n    (sum by (job, instance, hw_id) (vramd_memory_capacity_bytes{vramd_tier=\"disk\"}) > 0)\n    unless on (job, instance, hw_id)\n    (place:vramd_fill:ratio{vramd_tier=\"disk\"} > 0.9)\n  )\n)\nor\n(\n  (place:vramd_fill:ratio{vramd_tier=\"device\"} > 0.95)\n  and on (job, instance)\n  (sum by (job, instance) (max_over_time(vramd_migration_queue_size[5m])) > 0)\n)",
        lasting: "10m",
        severity: Severity::Warning,
        meaning: "a disk is charged by more than 90 %, host memory by as much without room on disk, or a device by more than 95 % while programs wait",
        summary: "Tier {{ $labels.vramd_tier }} of {{ $labels.hw_id }} on {{ $labels.instance }} is nearly full",
        description: "{{ $value | humanizePercentage }} of its capacity is charged. Once host and disk are full, new memory cannot leave its device. Where a device is full, programs wait for room.",
        section: "A tier is nearly full",
    },
    Alert {
        name: "VramdPinStalls",
        expression: "sum by (job, instance) (increase(vramd_pin_stalls_total[10m])) > 0",
        lasting: "0m",
        severity: Severity::Warning,
        meaning: "the daemon has aborted a pin call within 10 minutes because programs pin in each other's way",
        summary: "Pins stall on {{ $labels.instance }}",
        description: "{{ $value | humanize }} pin calls in 10 minutes were aborted with PIN_STALLED. Programs pin some parts and wait for more while others do the same.",
        section: "Pins stall",
    },
    Alert {
        name: "VramdUnbrokeredGrows",
        expression: "(device:vramd_unbrokered:bytes - device:vramd_unbrokered:bytes offset 30m)\n>\n0.05 * sum by (job, instance, hw_id) (vramd_memory_limit_bytes{vramd_tier=\"device\"})",
        lasting: "5m",
        severity: Severity::Warning,
        meaning: "within 30 minutes other programs have taken more than 5 % of a device",
        summary: "Other programs take memory of {{ $labels.hw_id }} on {{ $labels.instance }}",
        description: "Unbrokered memory has grown by {{ $value | humanize1024 }}B in 30 minutes, and the capacity has fallen by as much. nvidia-smi shows the process.",
        section: "Other programs take memory",
    },
    Alert {
        name: "VramdCollectorFailing",
        expression: "sum by (job, instance, vramd_telemetry_signal) (rate(vramd_telemetry_export_failures_total[10m]))\n+\nsum by (job, instance, vramd_telemetry_signal) (rate(vramd_telemetry_dropped_total[10m]))\n> 0",
        lasting: "10m",
        severity: Severity::Warning,
        meaning: "for 10 minutes the collector has not taken metrics, traces or logs",
        summary: "The collector takes no {{ $labels.vramd_telemetry_signal }} of vramd on {{ $labels.instance }}",
        description: "{{ $value | humanize }} items or exports a second fail. The daemon itself is not affected. Check telemetry.otlp_endpoint and the collector.",
        section: "Telemetry is dropped",
    },
];

/// The files of rules, of recorded series first.
pub fn files() -> [PathBuf; 2] {
    ["vramd-recording.yml", "vramd-alerts.yml"].map(|file| folder().join(file))
}

pub fn folder() -> PathBuf {
    repository().join("deploy/prometheus")
}

/// The anchor of a heading, as Markdown viewers make it.
pub fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// The texts of [`files`].
pub fn texts() -> [String; 2] {
    let write = |part: fn(&mut String) -> fmt::Result| {
        let mut text = "# Generated from tests/src/rules.rs by `make dashboards`. Do not edit.\n".to_owned();
        part(&mut text).expect("a String takes everything");
        text
    };
    [write(write_recorded), write(write_alerts)]
}

fn write_recorded(text: &mut String) -> fmt::Result {
    writeln!(text, "groups:\n  - name: vramd.recording\n    rules:")?;
    for Recorded { name, expression, meaning } in RECORDED {
        writeln!(text, "      # {meaning}\n      - record: {name}")?;
        write_expression(text, expression)?;
    }
    Ok(())
}

fn write_alerts(text: &mut String) -> fmt::Result {
    writeln!(text, "groups:\n  - name: vramd.alerts\n    rules:")?;
    for alert in ALERTS {
        let Alert { name, expression, lasting, severity, summary, description, section, .. } = alert;
        writeln!(text, "      - alert: {name}")?;
        write_expression(text, expression)?;
        writeln!(text, "        for: {lasting}\n        labels:\n          severity: {}", severity.name())?;
        writeln!(text, "        annotations:\n          summary: {}", quoted(summary))?;
        writeln!(text, "          description: {}", quoted(description))?;
        writeln!(text, "          runbook_url: docs/operations/runbook.md#{}", anchor(section))?;
    }
    Ok(())
}

fn write_expression(text: &mut String, expression: &str) -> fmt::Result {
    writeln!(text, "        expr: |-")?;
    expression.lines().try_for_each(|line| writeln!(text, "          {line}"))
}

/// Text that YAML takes as it is.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use vramd::telemetry::metrics;

    use super::*;
    use crate::dashboards::{is_label, is_series_of, metric_names};

    #[test]
    fn each_alert_has_a_section_of_the_runbook() {
        let runbook = fs::read_to_string(repository().join("docs/operations/runbook.md")).unwrap();
        for Alert { name, section, .. } in ALERTS {
            let text = runbook.split(&format!("\n## {section}\n")).nth(1);
            let text = text.unwrap_or_else(|| panic!("{name}: the runbook has no section {section:?}"));
            let text = text.split("\n## ").next().unwrap();
            assert!(text.contains(&format!("`{name}`")), "the section {section:?} does not name {name}");
        }
    }

    #[test]
    fn rules_name_metrics_labels_and_recorded_series_that_exist() {
        let recorded: BTreeSet<_> = RECORDED.iter().map(|it| it.name).collect();
        assert_eq!(recorded.len(), RECORDED.len());
        let expressions =
            RECORDED.iter().map(|it| it.expression).chain(ALERTS.iter().map(|it| it.expression));
        for expression in expressions {
            for word in metric_names(expression) {
                let is_metric = metrics::ALL.iter().any(|metric| is_series_of(metric, word));
                assert!(is_metric || is_label(word) || recorded.contains(word), "{word} in {expression}");
            }
        }
    }

    #[test]
    fn each_alert_says_what_happened_where_and_what_to_do() {
        let names: BTreeSet<_> = ALERTS.iter().map(|it| it.name).collect();
        assert_eq!(names.len(), ALERTS.len());
        for Alert { name, summary, description, meaning, .. } in ALERTS {
            assert!(name.starts_with("Vramd"), "{name}");
            assert!(summary.contains("{{ $labels.instance }}") && !summary.ends_with('.'), "{name}");
            assert!(description.ends_with('.') && !meaning.ends_with('.'), "{name}");
        }
    }

    #[test]
    fn each_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() {
        let tests = fs::read_dir(folder().join("tests")).unwrap();
        let tests = tests.map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
        let tests: String = tests.collect();
        for Alert { name, .. } in ALERTS {
            let cases =
                tests.split("- eval_time:").skip(1).filter(|it| it.contains(&format!("alertname: {name}\n")));
            let silent = |case: &&str| case.contains("exp_alerts: []");
            let (silent, firing): (Vec<_>, Vec<_>) = cases.partition(silent);
            assert!(!silent.is_empty() && !firing.is_empty(), "{name}: {} {}", silent.len(), firing.len());
        }
    }

    #[test]
    fn anchors_are_those_of_markdown_viewers() {
        assert_eq!(anchor("A device stays at high or critical"), "a-device-stays-at-high-or-critical");
        assert_eq!(quoted("the tenant's"), "'the tenant''s'");
    }
}
