//! The dashboard of all nodes.

use super::{
    Dashboard, INSTANCE,
    Unit::{Bytes, BytesPerSecond, Count, CountPerSecond, Ratio, Seconds},
    View::{Levels, Lines, Names, Stack, Table, Value},
    panel, query,
};

pub(super) const DASHBOARD: Dashboard = Dashboard {
    name: "fleet",
    uid: "vramd-fleet",
    title: "vramd: fleet",
    description: "All nodes: how full they are, and which of them need an operator.",
    variables: &[INSTANCE],
    panels: &[
        panel(
            "How many nodes serve?",
            "Nodes whose daemon answered the last scrape of the job `vramd`.",
            Count,
            Value,
            &[query("nodes", r#"sum(up{job="vramd",instance=~"$instance"})"#)],
        ),
        panel(
            "How many nodes do not answer?",
            "Nodes whose last scrape failed: the daemon ended, hangs, or cannot be reached.",
            Count,
            Value,
            &[query("nodes", r#"sum(1 - up{job="vramd",instance=~"$instance"})"#)],
        ),
        panel(
            "How many devices are there?",
            "Devices whose memory a daemon owns.",
            Count,
            Value,
            &[query(
                "devices",
                r#"count(vramd_memory_limit_bytes{instance=~"$instance",vramd_tier="device"})"#,
            )],
        ),
        panel(
            "How much of the devices is in use?",
            "The charge of all tenants on all devices as a share of their capacity.",
            Ratio,
            Value,
            &[query(
                "in use",
                r#"sum(vramd_quota_usage_bytes{instance=~"$instance",vramd_tier="device"}) / sum(vramd_memory_capacity_bytes{instance=~"$instance",vramd_tier="device"})"#,
            )],
        ),
        panel(
            "Which versions run?",
            "Nodes by version and driver. More than one version is an upgrade under way, or one that stopped halfway.",
            Count,
            Names,
            &[query(
                "{{vramd_version}} ({{vramd_driver}})",
                r#"count by (vramd_version, vramd_driver) (vramd_build_info{instance=~"$instance"})"#,
            )],
        ),
        panel(
            "How many nodes have an alert?",
            "Nodes with an alert of deploy/prometheus that is pending or fires.",
            Count,
            Value,
            &[query(
                "nodes",
                r#"count(count by (instance) (ALERTS{alertname=~"Vramd.+",instance=~"$instance"}))"#,
            )],
        ),
        panel(
            "How many nodes are at high or critical?",
            "Nodes with a place at level `high` or `critical`.",
            Count,
            Value,
            &[query(
                "nodes",
                r#"sum(max by (instance) (vramd_pressure_level{instance=~"$instance"}) >= bool 2)"#,
            )],
        ),
        panel(
            "Where has an invariant been broken?",
            "Anything but 0 is a bug of the daemon: follow the runbook's section on broken invariants.",
            Count,
            Value,
            &[query("violations", r#"sum(vramd_invariant_violations_total{instance=~"$instance"})"#)],
        ),
        panel(
            "Which alerts are pending, and which fire?",
            "Alerts of deploy/prometheus by node. Each alert has a section of the runbook.",
            Count,
            Table,
            &[query(
                "alerts",
                r#"count by (alertname, alertstate, severity, instance) (ALERTS{alertname=~"Vramd.+",instance=~"$instance"})"#,
            )],
        ),
        panel(
            "How much of the capacity is used, in each tier?",
            "The charge of all tenants of all nodes, beside the bytes that the daemons may hand out.",
            Bytes,
            Lines,
            &[
                query(
                    "used, {{vramd_tier}}",
                    r#"sum by (vramd_tier) (vramd_quota_usage_bytes{instance=~"$instance"})"#,
                ),
                query(
                    "capacity, {{vramd_tier}}",
                    r#"sum by (vramd_tier) (vramd_memory_capacity_bytes{instance=~"$instance"})"#,
                ),
            ],
        ),
        panel(
            "Which nodes are under pressure?",
            "The highest level of a place on each node.",
            Count,
            Levels,
            &[query("{{instance}}", r#"max by (instance) (vramd_pressure_level{instance=~"$instance"})"#)],
        ),
        panel(
            "Which nodes have the fullest devices?",
            "The ten nodes whose fullest device has the largest share of its capacity charged.",
            Ratio,
            Lines,
            &[query(
                "{{instance}}",
                r#"topk(10, max by (instance) (sum by (instance, hw_id) (vramd_quota_usage_bytes{instance=~"$instance",vramd_tier="device"}) / sum by (instance, hw_id) (vramd_memory_capacity_bytes{instance=~"$instance",vramd_tier="device"})))"#,
            )],
        ),
        panel(
            "Which tenants are charged the most?",
            "The ten tenants with the largest charge on devices, over all nodes.",
            Bytes,
            Stack,
            &[query(
                "{{vramd_tenant}}",
                r#"topk(10, sum by (vramd_tenant) (vramd_quota_usage_bytes{instance=~"$instance",vramd_tier="device"}))"#,
            )],
        ),
        panel(
            "Where do programs wait longest for their pins?",
            "Of the pin calls of a node that waited, 99 of 100 were shorter. The ten nodes with the longest waits.",
            Seconds,
            Lines,
            &[query(
                "{{instance}}",
                r#"topk(10, histogram_quantile(0.99, sum by (instance, le) (rate(vramd_pin_wait_seconds_bucket{instance=~"$instance"}[$__rate_interval]))))"#,
            )],
        ),
        panel(
            "Where do programs wait for room?",
            "Waiters in the line of each node.",
            Count,
            Stack,
            &[query(
                "{{instance}}",
                r#"sum by (instance) (vramd_migration_queue_size{instance=~"$instance"})"#,
            )],
        ),
        panel(
            "Which nodes copy the most?",
            "Bytes a second on all links of each node.",
            BytesPerSecond,
            Stack,
            &[query(
                "{{instance}}",
                r#"sum by (instance) (rate(vramd_link_io_bytes_total{instance=~"$instance"}[$__rate_interval]))"#,
            )],
        ),
        panel(
            "Where are requests refused?",
            "Refusals a second on each node, of all reasons.",
            CountPerSecond,
            Stack,
            &[query(
                "{{instance}}",
                r#"sum by (instance) (rate(vramd_refusals_total{instance=~"$instance"}[$__rate_interval]))"#,
            )],
        ),
        panel(
            "Where do other programs take device memory?",
            "Unbrokered bytes of each node. The capacity falls by as much.",
            Bytes,
            Stack,
            &[query(
                "{{instance}}",
                r#"sum by (instance) (vramd_memory_usage_bytes{instance=~"$instance",vramd_memory_state="unbrokered"})"#,
            )],
        ),
        panel(
            "Where do processes keep released memory?",
            "Unreturned bytes of each node: released, but still mapped or open in some process.",
            Bytes,
            Stack,
            &[query(
                "{{instance}}",
                r#"sum by (instance) (vramd_memory_usage_bytes{instance=~"$instance",vramd_memory_state="unreturned"})"#,
            )],
        ),
        panel(
            "Which daemons have restarted?",
            "Time since the start of each daemon; a line that falls to 0 is a restart.",
            Seconds,
            Lines,
            &[query("{{instance}}", r#"time() - process_start_time_seconds{instance=~"$instance"}"#)],
        ),
        panel(
            "How much does each node have, and use?",
            "Now, by node and tier: the capacity, the committed bytes (guaranteed or charged), and the charge.",
            Bytes,
            Table,
            &[
                query(
                    "capacity",
                    r#"sum by (instance, vramd_tier) (vramd_memory_capacity_bytes{instance=~"$instance"})"#,
                ),
                query(
                    "committed",
                    r#"sum by (instance, vramd_tier) (vramd_memory_committed_bytes{instance=~"$instance"})"#,
                ),
                query(
                    "charged",
                    r#"sum by (instance, vramd_tier) (vramd_quota_usage_bytes{instance=~"$instance"})"#,
                ),
            ],
        ),
    ],
};
