//! Every metric that the daemon has: `docs/METRICS.md` is made of this table, and so are the instruments.
//!
//! Names and units follow OpenTelemetry's conventions: no unit in a name, `By` and `s`, `{thing}` for what is counted.
//! Values of a `usage` add up over its state. No id of an allocation, a session or a process is ever an attribute.

/// What a metric is, and so how its values are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// What there is now: sums of it mean something.
    UpDownCounter,
    /// Times, in the buckets that its definition names.
    Histogram,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::UpDownCounter => "up-down counter",
            Self::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Debug)]
pub struct Definition {
    /// OpenTelemetry's name.
    pub name: &'static str,
    pub kind: Kind,
    pub unit: &'static str,
    pub meaning: &'static str,
    pub attributes: &'static [&'static str],
    /// Upper bounds of a histogram's buckets.
    pub boundaries: &'static [f64],
}

pub const TENANT: &str = "vramd.tenant";
pub const TIER: &str = "vramd.tier";
pub const MEMORY_STATE: &str = "vramd.memory.state";
pub const ALLOCATION_STATE: &str = "vramd.allocation.state";
pub const SESSION_STATE: &str = "vramd.session.state";
pub const MIGRATION_DIRECTION: &str = "vramd.migration.direction";
pub const MIGRATION_OUTCOME: &str = "vramd.migration.outcome";
pub const REFUSAL_REASON: &str = "vramd.refusal.reason";
pub const REFUSAL_SCOPE: &str = "vramd.refusal.scope";
pub const SIGNAL: &str = "vramd.telemetry.signal";
pub const HW_ID: &str = "hw.id";
pub const HW_NAME: &str = "hw.name";
pub const RPC_SYSTEM: &str = "rpc.system.name";
pub const RPC_METHOD: &str = "rpc.method";
pub const RPC_CODE: &str = "rpc.response.status_code";

/// The tenant that stands for all who do not fit. No real one can have that name.
pub const OTHER_TENANTS: &str = "_other";
/// The method of calls that no service has.
pub const OTHER_METHOD: &str = "_OTHER";

/// What each attribute says.
pub const ATTRIBUTES: &[(&str, &str)] = &[
    (TENANT, "Who is charged; `_other` is the sum of those beyond `telemetry.cardinality_max`"),
    (TIER, "`device`, `host` or `disk`"),
    (
        MEMORY_STATE,
        "`resident`, `reserved` (being made), `cached` (kept for the tenant), `unreturned` (released, and some process \
         holds it still); of a device also `unbrokered` (held by processes of no tenant) and `context` (kept for the \
         contexts of clients)",
    ),
    (ALLOCATION_STATE, "`creating`, `open`, `sealing`, `sealed` or `freeing`"),
    (SESSION_STATE, "`live` or `silent`"),
    (MIGRATION_DIRECTION, "`in` to the device, or `out` of it"),
    (
        MIGRATION_OUTCOME,
        "`moved`; `dropped`, without being copied, since it is discardable; `failed`, for want of memory or in the copy; or `stopped`, since somebody used it",
    ),
    (REFUSAL_REASON, "A reason of [ERRORS.md](ERRORS.md)"),
    (REFUSAL_SCOPE, "What was refused: a `call`, one `item` of a batch, a `channel`, or a set to `pin`"),
    (SIGNAL, "`metrics`, `traces` or `logs`"),
    (HW_ID, "UUID of the device"),
    (HW_NAME, "Name of the device"),
    (RPC_SYSTEM, "`grpc`"),
    (RPC_METHOD, "`package.Service/Method`; `_OTHER` is what no service has"),
    (RPC_CODE, "gRPC's name of the status code; `CANCELLED` where the caller left"),
];

const SECONDS_RPC: &[f64] =
    &[0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];
const SECONDS_REVOCATION: &[f64] =
    &[0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0];

const fn bytes(name: &'static str, attributes: &'static [&'static str], meaning: &'static str) -> Definition {
    Definition { name, kind: Kind::UpDownCounter, unit: "By", meaning, attributes, boundaries: &[] }
}

const fn count(
    kind: Kind,
    name: &'static str,
    unit: &'static str,
    attributes: &'static [&'static str],
    meaning: &'static str,
) -> Definition {
    Definition { name, kind, unit, meaning, attributes, boundaries: &[] }
}

pub const QUOTA_USAGE: Definition = bytes(
    "vramd.quota.usage",
    &[TENANT, HW_ID, TIER, MEMORY_STATE],
    "What a tenant is charged for; its states add up to what it holds.",
);
pub const QUOTA_GUARANTEE: Definition =
    bytes("vramd.quota.guarantee", &[TENANT, HW_ID, TIER], "What is set aside for a tenant, used or not.");
pub const QUOTA_LIMIT: Definition = bytes(
    "vramd.quota.limit",
    &[TENANT, HW_ID, TIER],
    "What a tenant may hold at most, of tenants that have a quota or hold something.",
);
pub const MEMORY_USAGE: Definition = bytes(
    "vramd.memory.usage",
    &[HW_ID, HW_NAME, TIER, MEMORY_STATE],
    "What of a device's memory is taken, and how.",
);
pub const MEMORY_LIMIT: Definition =
    bytes("vramd.memory.limit", &[HW_ID, HW_NAME, TIER], "What the device has, and its tier of the host.");
pub const MEMORY_CAPACITY: Definition = bytes(
    "vramd.memory.capacity",
    &[HW_ID, HW_NAME, TIER],
    "What the daemon may hand out: its share of the device less what it keeps back and what others hold.",
);
pub const MEMORY_COMMITTED: Definition =
    bytes("vramd.memory.committed", &[HW_ID, HW_NAME, TIER], "What of the capacity is guaranteed or held.");
pub const MEMORY_SHORTFALL: Definition = bytes(
    "vramd.memory.shortfall",
    &[HW_ID, HW_NAME, TIER],
    "By how much the capacity does not cover what is guaranteed and held.",
);
pub const MIGRATIONS: Definition = count(
    Kind::Counter,
    "vramd.migrations",
    "{part}",
    &[TENANT, HW_ID, MIGRATION_DIRECTION, MIGRATION_OUTCOME],
    "Parts that went to another tier, or were to. A tenant that comes when no series are left is `_other` for good.",
);
pub const MIGRATION_IO: Definition = count(
    Kind::Counter,
    "vramd.migration.io",
    "By",
    &[TENANT, HW_ID, MIGRATION_DIRECTION, MIGRATION_OUTCOME],
    "The sizes of these parts.",
);
pub const TENANT_ALLOCATIONS: Definition = count(
    Kind::UpDownCounter,
    "vramd.tenant.allocations",
    "{allocation}",
    &[TENANT],
    "Allocations of a tenant.",
);
pub const ALLOCATIONS: Definition = count(
    Kind::UpDownCounter,
    "vramd.allocations",
    "{allocation}",
    &[ALLOCATION_STATE],
    "Allocations of the node.",
);
pub const SESSIONS: Definition =
    count(Kind::UpDownCounter, "vramd.sessions", "{session}", &[SESSION_STATE], "Sessions of the node.");
pub const DESCRIPTORS_IN_FLIGHT: Definition = count(
    Kind::UpDownCounter,
    "vramd.descriptor.in_flight",
    "{descriptor}",
    &[],
    "File descriptors that were sent to clients and not acknowledged.",
);
pub const REFUSALS: Definition = count(
    Kind::Counter,
    "vramd.refusals",
    "{refusal}",
    &[REFUSAL_SCOPE, REFUSAL_REASON],
    "What clients and operators were refused.",
);
pub const INVARIANT_VIOLATIONS: Definition = count(
    Kind::Counter,
    "vramd.invariant.violations",
    "{violation}",
    &[],
    "Invariants that the daemon found broken: each is a bug, and a line in its log.",
);
pub const TELEMETRY_DROPPED: Definition = count(
    Kind::Counter,
    "vramd.telemetry.dropped",
    "{item}",
    &[SIGNAL],
    "Spans and log records that were lost because the collector was away or slow.",
);
pub const EXPORT_FAILURES: Definition = count(
    Kind::Counter,
    "vramd.telemetry.export.failures",
    "{export}",
    &[SIGNAL],
    "Attempts to send to the collector that failed. Of metrics nothing is lost by that: the next has the sums.",
);
pub const RPC_DURATION: Definition = Definition {
    name: "rpc.server.call.duration",
    kind: Kind::Histogram,
    unit: "s",
    meaning: "From a call's head to its answer; of a stream to the answer's head.",
    attributes: &[RPC_SYSTEM, RPC_METHOD, RPC_CODE],
    boundaries: SECONDS_RPC,
};
pub const REVOCATION_DURATION: Definition = Definition {
    name: "vramd.revocation.duration",
    kind: Kind::Histogram,
    unit: "s",
    meaning: "From the moment at which a client is told to unmap a part until it says that it has.",
    attributes: &[],
    boundaries: SECONDS_REVOCATION,
};

/// Every metric, in the order of the page.
pub const ALL: &[&Definition] = &[
    &QUOTA_USAGE,
    &QUOTA_GUARANTEE,
    &QUOTA_LIMIT,
    &MEMORY_USAGE,
    &MEMORY_LIMIT,
    &MEMORY_CAPACITY,
    &MEMORY_COMMITTED,
    &MEMORY_SHORTFALL,
    &MIGRATIONS,
    &MIGRATION_IO,
    &TENANT_ALLOCATIONS,
    &ALLOCATIONS,
    &SESSIONS,
    &DESCRIPTORS_IN_FLIGHT,
    &REFUSALS,
    &INVARIANT_VIOLATIONS,
    &RPC_DURATION,
    &REVOCATION_DURATION,
    &TELEMETRY_DROPPED,
    &EXPORT_FAILURES,
];

impl Definition {
    /// Its name for Prometheus: dots become underscores, the unit stands at the end, and a counter says that it is one.
    /// A histogram has this with `_bucket`, `_sum` and `_count`.
    pub fn prometheus_name(&self) -> String {
        let unit = match self.unit {
            "By" => "_bytes",
            "s" => "_seconds",
            _ => "",
        };
        let total = if self.kind == Kind::Counter { "_total" } else { "" };
        [&self.name.replace('.', "_"), unit, total].concat()
    }

    /// Whether its series grow in number with the tenants.
    pub fn is_by_tenant(&self) -> bool {
        self.attributes.contains(&TENANT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_says_all_that_the_conventions_want() {
        let mut names: Vec<_> = ALL.iter().map(|metric| metric.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        for metric in ALL {
            let name = metric.name;
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || matches!(b, b'.' | b'_')), "{name}");
            assert!(!name.contains("bytes") && !name.contains("seconds"), "{name} has its unit in it");
            let unit = metric.unit;
            assert!(
                matches!(unit, "By" | "s") || (unit.starts_with('{') && unit.ends_with('}')),
                "{name} {unit}"
            );
            assert!(!name.ends_with("count"), "{name} would be taken for a part of a histogram");
            assert!(metric.meaning.ends_with('.'), "{name}");
            assert_eq!(metric.kind == Kind::Histogram, !metric.boundaries.is_empty(), "{name}");
            assert!(metric.boundaries.is_sorted(), "{name}");
            for attribute in metric.attributes {
                assert!(ATTRIBUTES.iter().any(|(known, _)| known == attribute), "{name} {attribute}");
            }
        }
    }
}
