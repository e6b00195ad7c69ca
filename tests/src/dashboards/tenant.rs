//! The dashboard of one tenant, on all its nodes or on some.

use super::{
    DEVICE, Dashboard, INSTANCE, TENANT,
    Unit::{Bytes, BytesPerSecond, Count, CountPerSecond, Ratio, Seconds},
    View::{Lines, Stack, Table, Value},
    panel, query,
};

pub(super) const DASHBOARD: Dashboard = Dashboard {
    name: "tenant",
    uid: "vramd-tenant",
    title: "vramd: tenant",
    description: "One tenant: its memory beside its quota, its moves and waits, and its refusals.",
    variables: &[INSTANCE, TENANT, DEVICE],
    panels: &[
        panel(
            "How many sessions does the tenant have?",
            "Sessions of its programs, live and silent.",
            Count,
            Value,
            &[query(
                "sessions",
                r#"sum(vramd_tenant_sessions{instance=~"$instance",vramd_tenant="$tenant"})"#,
            )],
        ),
        panel(
            "How many allocations does it have?",
            "Allocations that its programs have made and not freed.",
            Count,
            Value,
            &[query(
                "allocations",
                r#"sum(vramd_tenant_allocations{instance=~"$instance",vramd_tenant="$tenant"})"#,
            )],
        ),
        panel(
            "How near is it to a limit?",
            "The largest share of a limit that it has in use, of all places.",
            Ratio,
            Value,
            &[query(
                "of its limit",
                r#"max(sum by (instance, hw_id, vramd_tier) (vramd_quota_usage_bytes{instance=~"$instance",hw_id=~"$device",vramd_tenant="$tenant"}) / sum by (instance, hw_id, vramd_tier) (vramd_quota_limit_bytes{instance=~"$instance",hw_id=~"$device",vramd_tenant="$tenant"}))"#,
            )],
        ),
        panel(
            "How often was it refused?",
            "Refusals to its sessions in the shown time.",
            Count,
            Value,
            &[query(
                "refusals",
                r#"sum(increase(vramd_tenant_refusals_total{instance=~"$instance",vramd_tenant="$tenant"}[$__range]))"#,
            )],
        ),
        panel(
            "How much is it charged on the devices, of which quota?",
            "The charge beside guarantee and limit. Above its guarantee, parts may leave when others need the room.",
            Bytes,
            Lines,
            &[
                query(
                    "charged",
                    r#"sum(vramd_quota_usage_bytes{instance=~"$instance",hw_id=~"$device",vramd_tenant="$tenant",vramd_tier="device"})"#,
                ),
                query(
                    "guarantee",
                    r#"sum(vramd_quota_guarantee_bytes{instance=~"$instance",hw_id=~"$device",vramd_tenant="$tenant",vramd_tier="device"})"#,
                ),
                query(
                    "limit",
                    r#"sum(vramd_quota_limit_bytes{instance=~"$instance",hw_id=~"$device",vramd_tenant="$tenant",vramd_tier="device"})"#,
                ),
            ],
        ),
        panel(
            "How much is it charged in host memory, of which quota?",
            "The charge, backing included, beside guarantee and limit in the host tier.",
            Bytes,
            Lines,
            &[
                query(
                    "charged",
                    r#"sum(vramd_quota_usage_bytes{instance=~"$instance",hw_id=~"$device",vramd_tenant="$tenant",vramd_tier="host"})"#,
                ),
                query(
                    "guarantee",
                    r#"sum(vramd_quota_guarantee_bytes{instance=~"$instance",hw_id=~"$device",vramd_tenant="$tenant",vramd_tier="host"})"#,
                ),
                query(
                    "limit",
                    r#"sum(vramd_quota_limit_bytes{instance=~"$instance",hw_id=~"$device",vramd_tenant="$tenant",vramd_tier="host"})"#,
                ),
            ],
        ),
        panel(
            "How much is it charged on disk, of which quota?",
            "The charge, backing included, beside guarantee and limit in the disk tier.",
            Bytes,
            Lines,
            &[
                query(
                    "charged",
                    r#"sum(vramd_quota_usage_bytes{instance=~"$instance",hw_id=~"$device",vramd_tenant="$tenant",vramd_tier="disk"})"#,
                ),
                query(
                    "guarantee",
                    r#"sum(vramd_quota_guarantee_bytes{instance=~"$instance",hw_id=~"$device",vramd_tenant="$tenant",vramd_tier="disk"})"#,
                ),
                query(
                    "limit",
                    r#"sum(vramd_quota_limit_bytes{instance=~"$instance",hw_id=~"$device",vramd_tenant="$tenant",vramd_tier="disk"})"#,
                ),
            ],
        ),
        panel(
            "Where does its memory lie, and must it be copied to leave?",
            "The charge by tier and state: `clean` parts can leave without a copy, `dirty` ones cannot.",
            Bytes,
            Stack,
            &[query(
                "{{vramd_tier}}, {{vramd_memory_state}}",
                r#"sum by (vramd_tier, vramd_memory_state) (vramd_quota_usage_bytes{instance=~"$instance",hw_id=~"$device",vramd_tenant="$tenant"})"#,
            )],
        ),
        panel(
            "Why does its memory move?",
            "Copied bytes a second on all devices, by direction and cause. Much `demand` both ways: too little memory for its programs.",
            BytesPerSecond,
            Stack,
            &[query(
                "{{vramd_migration_direction}}, {{vramd_migration_cause}}",
                r#"sum by (vramd_migration_direction, vramd_migration_cause) (rate(vramd_tenant_migration_io_bytes_total{instance=~"$instance",vramd_tenant="$tenant"}[$__rate_interval])) > 0"#,
            )],
        ),
        panel(
            "Is its fetched memory used before it leaves again?",
            "The share of fetched bytes, on all devices, that a client mapped. Far below 100 %, memory comes and goes for nothing.",
            Ratio,
            Lines,
            &[query(
                "used",
                r#"sum(rate(vramd_tenant_migration_used_bytes_total{instance=~"$instance",vramd_tenant="$tenant"}[$__rate_interval])) / sum(rate(vramd_tenant_migration_io_bytes_total{instance=~"$instance",vramd_tenant="$tenant",vramd_migration_direction="in"}[$__rate_interval]))"#,
            )],
        ),
        panel(
            "How long do its programs wait for their pins?",
            "Of pin calls with a part that was not on its device: half, nine of ten and 99 of 100 were shorter.",
            Seconds,
            Lines,
            &[
                query(
                    "half",
                    r#"histogram_quantile(0.5, sum by (le) (rate(vramd_pin_wait_seconds_bucket{instance=~"$instance",vramd_tenant="$tenant"}[$__rate_interval])))"#,
                ),
                query(
                    "90 %",
                    r#"histogram_quantile(0.9, sum by (le) (rate(vramd_pin_wait_seconds_bucket{instance=~"$instance",vramd_tenant="$tenant"}[$__rate_interval])))"#,
                ),
                query(
                    "99 %",
                    r#"histogram_quantile(0.99, sum by (le) (rate(vramd_pin_wait_seconds_bucket{instance=~"$instance",vramd_tenant="$tenant"}[$__rate_interval])))"#,
                ),
            ],
        ),
        panel(
            "How do its waits end?",
            "Waiting pin calls a second by outcome. `refused` and `cancelled` calls got nothing.",
            CountPerSecond,
            Stack,
            &[query(
                "{{vramd_wait_outcome}}",
                r#"sum by (vramd_wait_outcome) (rate(vramd_tenant_pin_waits_total{instance=~"$instance",vramd_tenant="$tenant"}[$__rate_interval]))"#,
            )],
        ),
        panel(
            "Why are its requests refused?",
            "Refusals a second by reason. The page of errors (docs/reference/errors.md) has all reasons.",
            CountPerSecond,
            Stack,
            &[query(
                "{{vramd_refusal_reason}}",
                r#"sum by (vramd_refusal_reason) (rate(vramd_tenant_refusals_total{instance=~"$instance",vramd_tenant="$tenant"}[$__rate_interval])) > 0"#,
            )],
        ),
        panel(
            "How much does rounding to whole parts cost it?",
            "Bytes of its parts beyond the requested ones. Many small allocations lose the most.",
            Bytes,
            Lines,
            &[query(
                "{{hw_id}}",
                r#"sum by (hw_id) (vramd_fragmentation_internal_bytes{instance=~"$instance",hw_id=~"$device",vramd_tenant="$tenant"})"#,
            )],
        ),
        panel(
            "How much is it charged in each place?",
            "Now, by node and place: the charge, the guarantee, which stays reserved, and the limit.",
            Bytes,
            Table,
            &[
                query(
                    "charged",
                    r#"sum by (instance, hw_id, vramd_tier) (vramd_quota_usage_bytes{instance=~"$instance",hw_id=~"$device",vramd_tenant="$tenant"})"#,
                ),
                query(
                    "guarantee",
                    r#"sum by (instance, hw_id, vramd_tier) (vramd_quota_guarantee_bytes{instance=~"$instance",hw_id=~"$device",vramd_tenant="$tenant"})"#,
                ),
                query(
                    "limit",
                    r#"sum by (instance, hw_id, vramd_tier) (vramd_quota_limit_bytes{instance=~"$instance",hw_id=~"$device",vramd_tenant="$tenant"})"#,
                ),
            ],
        ),
    ],
};
