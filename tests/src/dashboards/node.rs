//! The dashboard of one node, or of several side by side.

use super::{
    DEVICE, Dashboard, INSTANCE,
    Unit::{Bytes, BytesPerSecond, Count, CountPerSecond, Ratio, Seconds},
    View::{Levels, Lines, Names, Stack, Table, Value},
    panel, query,
};

pub(super) const DASHBOARD: Dashboard = Dashboard {
    name: "node",
    uid: "vramd-node",
    title: "vramd: node",
    description: "The memory of a node: its tenants, its moves and their causes, and the waits for it.",
    variables: &[INSTANCE, DEVICE],
    panels: &[
        panel(
            "Which version runs here?",
            "The version and the driver of each daemon; `sim` is simulated memory.",
            Count,
            Names,
            &[query(
                "{{instance}}: {{vramd_version}} ({{vramd_driver}})",
                r#"vramd_build_info{instance=~"$instance"}"#,
            )],
        ),
        panel(
            "How long has the daemon run?",
            "A short time after a long one is a restart: see the log of the daemon before it.",
            Seconds,
            Value,
            &[query("{{instance}}", r#"time() - process_start_time_seconds{instance=~"$instance"}"#)],
        ),
        panel(
            "How full is the fullest device?",
            "The charge of all tenants as a share of the capacity of that device.",
            Ratio,
            Value,
            &[query(
                "fullest device",
                r#"max(sum by (instance, hw_id) (vramd_quota_usage_bytes{instance=~"$instance",hw_id=~"$device",vramd_tier="device"}) / sum by (instance, hw_id) (vramd_memory_capacity_bytes{instance=~"$instance",hw_id=~"$device",vramd_tier="device"}))"#,
            )],
        ),
        panel(
            "Has an invariant been broken?",
            "Anything but 0 is a bug of the daemon: follow the runbook's section on broken invariants.",
            Count,
            Value,
            &[query("{{instance}}", r#"vramd_invariant_violations_total{instance=~"$instance"}"#)],
        ),
        panel(
            "Where does memory lie?",
            "Bytes of parts in each tier. A part on its device can have backing below it too, which is not counted here.",
            Bytes,
            Stack,
            &[query(
                "{{vramd_tier}}",
                r#"sum by (vramd_tier) (vramd_memory_usage_bytes{instance=~"$instance",hw_id=~"$device",vramd_memory_state="resident"})"#,
            )],
        ),
        panel(
            "Whose memory lies on the devices?",
            "The charge of each tenant on the devices.",
            Bytes,
            Stack,
            &[query(
                "{{vramd_tenant}}",
                r#"sum by (vramd_tenant) (vramd_quota_usage_bytes{instance=~"$instance",hw_id=~"$device",vramd_tier="device"})"#,
            )],
        ),
        panel(
            "Whose memory lies below the devices?",
            "The charge of each tenant in host memory and on disk, backing included.",
            Bytes,
            Stack,
            &[query(
                "{{vramd_tenant}}, {{vramd_tier}}",
                r#"sum by (vramd_tenant, vramd_tier) (vramd_quota_usage_bytes{instance=~"$instance",hw_id=~"$device",vramd_tier=~"host|disk"})"#,
            )],
        ),
        panel(
            "How is the memory of the devices used?",
            "Bytes of the devices by state; `unbrokered` is what other programs have, `cached` is free for reuse.",
            Bytes,
            Stack,
            &[query(
                "{{vramd_memory_state}}",
                r#"sum by (vramd_memory_state) (vramd_memory_usage_bytes{instance=~"$instance",hw_id=~"$device",vramd_tier="device"})"#,
            )],
        ),
        panel(
            "How full is each place?",
            "The charge of all tenants as a share of the capacity of each device, and of the tiers below it.",
            Ratio,
            Lines,
            &[query(
                "{{vramd_tier}} of {{hw_id}}",
                r#"sum by (hw_id, vramd_tier) (vramd_quota_usage_bytes{instance=~"$instance",hw_id=~"$device"}) / sum by (hw_id, vramd_tier) (vramd_memory_capacity_bytes{instance=~"$instance",hw_id=~"$device"})"#,
            )],
        ),
        panel(
            "How high is the pressure?",
            "The level of each place: cold parts are written back from `elevated` on, and leave from `high` on.",
            Count,
            Levels,
            &[query(
                "{{vramd_tier}} of {{hw_id}}",
                r#"max by (hw_id, vramd_tier) (vramd_pressure_level{instance=~"$instance",hw_id=~"$device"})"#,
            )],
        ),
        panel(
            "Why does memory come to the devices?",
            "Bytes a second that were copied to the devices, by cause.",
            BytesPerSecond,
            Stack,
            &[query(
                "{{vramd_migration_cause}}",
                r#"sum by (vramd_migration_cause) (rate(vramd_migration_io_bytes_total{instance=~"$instance",hw_id=~"$device",vramd_migration_direction="in",vramd_migration_outcome="moved"}[$__rate_interval])) > 0"#,
            )],
        ),
        panel(
            "Why does memory leave the devices?",
            "Bytes a second by cause and outcome. `clean` and `dropped` left without a copy.",
            BytesPerSecond,
            Stack,
            &[query(
                "{{vramd_migration_cause}}, {{vramd_migration_outcome}}",
                r#"sum by (vramd_migration_cause, vramd_migration_outcome) (rate(vramd_migration_io_bytes_total{instance=~"$instance",hw_id=~"$device",vramd_migration_direction="out"}[$__rate_interval])) > 0"#,
            )],
        ),
        panel(
            "How fast do copies run, beside the limit of their link?",
            "Bytes a second in each direction, and the measured speed of that direction when it has the link for itself.",
            BytesPerSecond,
            Lines,
            &[
                query(
                    "{{vramd_link_way}}",
                    r#"max by (vramd_link_way) (sum by (instance, hw_id, vramd_link_way) (rate(vramd_link_io_bytes_total{instance=~"$instance",hw_id=~"$device"}[$__rate_interval])) > 0)"#,
                ),
                query(
                    "limit {{vramd_link_way}}",
                    r#"max by (vramd_link_way) (vramd_link_limit_bytes_per_second{instance=~"$instance",hw_id=~"$device"})"#,
                ),
            ],
        ),
        panel(
            "How much of each link is in use?",
            "The copies on a link as a share of its limit. A shared link carries the copies of several devices.",
            Ratio,
            Lines,
            &[query(
                "{{vramd_link}} {{vramd_link_way}}",
                r#"sum by (instance, vramd_link, vramd_link_way) (sum by (instance, hw_id, vramd_link_way) (rate(vramd_link_io_bytes_total{instance=~"$instance",hw_id=~"$device"}[$__rate_interval])) * on (instance, hw_id, vramd_link_way) group_right () (vramd_link_limit_bytes_per_second{instance=~"$instance"} > bool 0)) / max by (instance, vramd_link, vramd_link_way) (vramd_link_limit_bytes_per_second{instance=~"$instance",hw_id=~"$device"})"#,
            )],
        ),
        panel(
            "Which class of copies uses the links?",
            "Bytes a second by class: clients wait for `demand`, and for no other class.",
            BytesPerSecond,
            Stack,
            &[query(
                "{{vramd_copy_class}}",
                r#"sum by (vramd_copy_class) (rate(vramd_link_io_bytes_total{instance=~"$instance",hw_id=~"$device"}[$__rate_interval]))"#,
            )],
        ),
        panel(
            "How long do programs wait for their pins?",
            "Of pin calls with a part that was not on its device: half, nine of ten and 99 of 100 were shorter.",
            Seconds,
            Lines,
            &[
                query(
                    "half",
                    r#"histogram_quantile(0.5, sum by (le) (rate(vramd_pin_wait_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                ),
                query(
                    "90 %",
                    r#"histogram_quantile(0.9, sum by (le) (rate(vramd_pin_wait_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                ),
                query(
                    "99 %",
                    r#"histogram_quantile(0.99, sum by (le) (rate(vramd_pin_wait_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                ),
            ],
        ),
        panel(
            "Do they wait for room, for copies or for unmapping?",
            "Nine of ten waits for room, moves and unmappings were shorter. The largest of them is the place to begin.",
            Seconds,
            Lines,
            &[
                query(
                    "waits for room",
                    r#"histogram_quantile(0.9, sum by (le) (rate(vramd_migration_queue_wait_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                ),
                query(
                    "moves",
                    r#"histogram_quantile(0.9, sum by (le) (rate(vramd_migration_duration_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                ),
                query(
                    "unmappings",
                    r#"histogram_quantile(0.9, sum by (le) (rate(vramd_revocation_duration_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                ),
            ],
        ),
        panel(
            "How long is the line?",
            "Waiters for room on the devices. If the same ones stay, see the runbook on a line that does not move.",
            Count,
            Stack,
            &[query(
                "{{vramd_wait_kind}}",
                r#"sum by (vramd_wait_kind) (vramd_migration_queue_size{instance=~"$instance"})"#,
            )],
        ),
        panel(
            "How do prefetch requests end?",
            "Requests a second by outcome. `late`, `dropped` and `wasted` requests cost copies and saved no wait.",
            CountPerSecond,
            Stack,
            &[query(
                "{{vramd_prefetch_outcome}}",
                r#"sum by (vramd_prefetch_outcome) (rate(vramd_prefetches_total{instance=~"$instance"}[$__rate_interval]))"#,
            )],
        ),
        panel(
            "How long do prefetched parts wait for their use?",
            "Time on the device until a session used the part. Near 0 the requests come too late.",
            Seconds,
            Lines,
            &[
                query(
                    "half",
                    r#"histogram_quantile(0.5, sum by (le) (rate(vramd_prefetch_lead_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                ),
                query(
                    "90 %",
                    r#"histogram_quantile(0.9, sum by (le) (rate(vramd_prefetch_lead_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                ),
            ],
        ),
        panel(
            "Is memory that comes unasked used?",
            "Bytes a second that the daemon brought by the order of earlier pins, by whether a session used them.",
            BytesPerSecond,
            Stack,
            &[query(
                "{{vramd_speculation_outcome}}",
                r#"sum by (vramd_speculation_outcome) (rate(vramd_speculation_io_bytes_total{instance=~"$instance"}[$__rate_interval]))"#,
            )],
        ),
        panel(
            "By which rule do parts leave before others?",
            "Parts a second that were chosen to leave a device, by rule and cause.",
            CountPerSecond,
            Stack,
            &[query(
                "{{vramd_eviction_reason}}, {{vramd_migration_cause}}",
                r#"sum by (vramd_eviction_reason, vramd_migration_cause) (rate(vramd_evictions_total{instance=~"$instance"}[$__rate_interval])) > 0"#,
            )],
        ),
        panel(
            "Which requests are refused, and why?",
            "Refusals a second by reason. The page of errors (docs/reference/errors.md) has all reasons.",
            CountPerSecond,
            Stack,
            &[query(
                "{{vramd_refusal_reason}}",
                r#"sum by (vramd_refusal_reason) (rate(vramd_refusals_total{instance=~"$instance"}[$__rate_interval])) > 0"#,
            )],
        ),
        panel(
            "How much memory do other programs take?",
            "Unbrokered bytes of each device. The capacity falls by as much.",
            Bytes,
            Stack,
            &[query(
                "{{hw_id}}",
                r#"sum by (hw_id) (vramd_memory_usage_bytes{instance=~"$instance",hw_id=~"$device",vramd_memory_state="unbrokered"})"#,
            )],
        ),
        panel(
            "How much released memory do processes keep?",
            "Unreturned bytes: the daemon released them, but some process still maps them. Their tenants pay.",
            Bytes,
            Stack,
            &[query(
                "{{vramd_tenant}}, {{vramd_tier}}",
                r#"sum by (vramd_tenant, vramd_tier) (vramd_quota_usage_bytes{instance=~"$instance",hw_id=~"$device",vramd_memory_state="unreturned"})"#,
            )],
        ),
        panel(
            "How much memory is ready for new parts?",
            "Cached memory of the devices and pinned free memory of the host, which no part uses.",
            Bytes,
            Stack,
            &[query(
                "{{vramd_tier}}",
                r#"sum by (vramd_tier) (vramd_pool_usage_bytes{instance=~"$instance"})"#,
            )],
        ),
        panel(
            "How many sessions are live, and how many are silent?",
            "A silent session keeps its mappings and its charge: see the runbook on silent sessions.",
            Count,
            Stack,
            &[query(
                "{{vramd_session_state}}",
                r#"sum by (vramd_session_state) (vramd_sessions{instance=~"$instance"})"#,
            )],
        ),
        panel(
            "How long do calls take?",
            "Of the calls of each method, 99 of 100 were shorter. Calls that may wait for room take as long as they wait.",
            Seconds,
            Lines,
            &[query(
                "{{rpc_method}}",
                r#"histogram_quantile(0.99, sum by (le, rpc_method) (rate(rpc_server_call_duration_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
            )],
        ),
        panel(
            "How much of a core does the daemon take?",
            "Processor time of the daemon; 100 % is one core. Hashing and copies through buffers count.",
            Ratio,
            Lines,
            &[query(
                "{{instance}}",
                r#"sum by (instance) (rate(process_cpu_seconds_total{instance=~"$instance"}[$__rate_interval]))"#,
            )],
        ),
        panel(
            "How much memory does the daemon take?",
            "Resident memory of the daemon, with the pinned host memory of its host tier.",
            Bytes,
            Lines,
            &[query(
                "{{instance}}",
                r#"sum by (instance) (process_resident_memory_bytes{instance=~"$instance"})"#,
            )],
        ),
        panel(
            "How many of its file descriptors are open?",
            "The share of the daemon's limit of open files. Each extent and each connection takes one.",
            Ratio,
            Lines,
            &[query(
                "{{instance}}",
                r#"sum by (instance) (process_open_fds{instance=~"$instance"}) / sum by (instance) (process_max_fds{instance=~"$instance"})"#,
            )],
        ),
        panel(
            "Is telemetry lost?",
            "Items a second that a collector did not take, failed exports, and log lines that standard error did not take.",
            CountPerSecond,
            Lines,
            &[
                query(
                    "dropped {{vramd_telemetry_signal}}",
                    r#"sum by (vramd_telemetry_signal) (rate(vramd_telemetry_dropped_total{instance=~"$instance"}[$__rate_interval]))"#,
                ),
                query(
                    "failed exports of {{vramd_telemetry_signal}}",
                    r#"sum by (vramd_telemetry_signal) (rate(vramd_telemetry_export_failures_total{instance=~"$instance"}[$__rate_interval]))"#,
                ),
                query(
                    "lost log lines",
                    r#"sum(rate(vramd_log_dropped_total{instance=~"$instance"}[$__rate_interval]))"#,
                ),
            ],
        ),
        panel(
            "How much is each tenant charged, of which quota?",
            "Now, by tenant and place: the charge, the guarantee, which stays reserved, and the limit.",
            Bytes,
            Table,
            &[
                query(
                    "charged",
                    r#"sum by (vramd_tenant, hw_id, vramd_tier) (vramd_quota_usage_bytes{instance=~"$instance",hw_id=~"$device"})"#,
                ),
                query(
                    "guarantee",
                    r#"sum by (vramd_tenant, hw_id, vramd_tier) (vramd_quota_guarantee_bytes{instance=~"$instance",hw_id=~"$device"})"#,
                ),
                query(
                    "limit",
                    r#"sum by (vramd_tenant, hw_id, vramd_tier) (vramd_quota_limit_bytes{instance=~"$instance",hw_id=~"$device"})"#,
                ),
            ],
        ),
    ],
};
