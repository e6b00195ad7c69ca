//! Every metric that the daemon has: `docs/METRICS.md` is made of this table, and so are the instruments.
//!
//! Names and units follow OpenTelemetry's conventions: no unit in a name, `By` and `s`, `{thing}` for what is counted.
//! Values of a `usage` add up over its state. No id of an allocation, a session or a process is ever an attribute.

pub use super::attributes::*;

/// What a metric is, and so how its values are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// What there is now: sums of it mean something.
    UpDownCounter,
    /// What share there is now, or what step is stood on: sums of it mean nothing. A zero is sources too.
    Gauge,
    /// Times or sizes, in the buckets that its definition names.
    Histogram,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::UpDownCounter => "up-down counter",
            Self::Gauge => "gauge",
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

const SECONDS_RPC: &[f64] =
    &[0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];
const SECONDS_REVOCATION: &[f64] =
    &[0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0];

/// Of moves, and of waits for them.
const SECONDS_MIGRATION: &[f64] = &[
    0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
    20.0, 50.0, 100.0,
];
/// From one page of a device to some ordinary parts.
const BYTES_MIGRATION: &[f64] = &[
    2_097_152.0,
    4_194_304.0,
    8_388_608.0,
    16_777_216.0,
    33_554_432.0,
    67_108_864.0,
    134_217_728.0,
    268_435_456.0,
    536_870_912.0,
    1_073_741_824.0,
];

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
pub const OVERSUBSCRIPTION: Definition = Definition {
    name: "vramd.memory.oversubscription",
    kind: Kind::Gauge,
    unit: "1",
    meaning: "What is `clean` or `dirty` of all tenants on a device and below it, over the device's capacity. What moves \
              counts at both ends.",
    attributes: &[HW_ID, HW_NAME],
    boundaries: &[],
};
pub const MEMORY_USAGE: Definition = bytes(
    "vramd.memory.usage",
    &[HW_ID, HW_NAME, TIER, MEMORY_STATE],
    "What of a device's memory is taken, and how.",
);
pub const MEMORY_LIMIT: Definition =
    bytes("vramd.memory.limit", &[HW_ID, HW_NAME, TIER], "What the device has, and each tier below it.");
pub const MEMORY_CAPACITY: Definition = bytes(
    "vramd.memory.capacity",
    &[HW_ID, HW_NAME, TIER],
    "What the daemon may hand out: its share of the device less what it keeps back and what others hold; of a tier below, no more than \
     operators let be handed out.",
);
pub const MEMORY_COMMITTED: Definition =
    bytes("vramd.memory.committed", &[HW_ID, HW_NAME, TIER], "What of the capacity is guaranteed or held.");
pub const MEMORY_SHORTFALL: Definition = bytes(
    "vramd.memory.shortfall",
    &[HW_ID, HW_NAME, TIER],
    "By how much the capacity does not cover what is guaranteed and held.",
);
pub const PRESSURE: Definition = count(
    Kind::Gauge,
    "vramd.pressure.level",
    "{level}",
    &[HW_ID, HW_NAME, TIER],
    "How full a device is, or a tier below it: 0 is normal, 1 elevated, 2 high, 3 critical.",
);
pub const PRESSURE_BATCH_FACTOR: Definition = count(
    Kind::Gauge,
    "vramd.pressure.batch_factor",
    "1",
    &[HW_ID, HW_NAME, TIER],
    "By what clients were told to multiply how much they ask for at once: above 1 where there is room, below 1 where it is tight.",
);
pub const PRESSURE_FULL_IN: Definition = count(
    Kind::Gauge,
    "vramd.pressure.full_in",
    "s",
    &[HW_ID, HW_NAME, TIER],
    "In how long it is full if it fills as it does, as clients were told; absent where it does not, or not within 5 minutes.",
);
pub const PRESSURE_THRESHOLD: Definition = count(
    Kind::Gauge,
    "vramd.pressure.threshold",
    "1",
    &[PRESSURE_LEVEL],
    "How full a device, or a tier below it, is when it enters a level. Operators may change it while the daemon runs.",
);
pub const PRESSURE_FALL: Definition =
    count(Kind::Gauge, "vramd.pressure.fall", "1", &[], "How far below where it begins a level is left.");
pub const PRESSURE_EVICT_TO: Definition = count(
    Kind::Gauge,
    "vramd.pressure.evict_to",
    "1",
    &[],
    "How full a device or the host's memory is left, once what is cold has left it for its level.",
);
pub const PRESSURE_COLD_AFTER: Definition = count(
    Kind::Gauge,
    "vramd.pressure.cold_after",
    "s",
    &[],
    "For how long nobody uses what is cold. With 0 nothing is: then cached memory alone is given up.",
);
pub const PRESSURE_CHANGES: Definition = count(
    Kind::Counter,
    "vramd.pressure.changes",
    "{change}",
    &[HW_ID, HW_NAME, TIER, PRESSURE_LEVEL],
    "How often a level was entered, from above or below.",
);
pub const MIGRATIONS: Definition = count(
    Kind::Counter,
    "vramd.migrations",
    "{part}",
    &[TENANT, HW_ID, MIGRATION_DIRECTION, MIGRATION_CAUSE, MIGRATION_OUTCOME],
    "Parts that went to another tier, were to, or were written back. What is counted for the first time when no series are left is counted for \
     `_other` from then on.",
);
pub const MIGRATION_IO: Definition = count(
    Kind::Counter,
    "vramd.migration.io",
    "By",
    &[TENANT, HW_ID, MIGRATION_DIRECTION, MIGRATION_CAUSE, MIGRATION_OUTCOME],
    "The sizes of these parts; of `moved` alone they were copied as a whole.",
);
pub const MIGRATION_USED: Definition = count(
    Kind::Counter,
    "vramd.migration.used",
    "By",
    &[TENANT, HW_ID, MIGRATION_CAUSE],
    "Of what was `moved` `in` by `vramd.migration.io`, what was sent to a client to be mapped before it left again.",
);
pub const MIGRATION_DURATION: Definition = Definition {
    name: "vramd.migration.duration",
    kind: Kind::Histogram,
    unit: "s",
    meaning: "From the moment at which a part's way to another tier begins, its memory there being reserved, until it is over.",
    attributes: &[MIGRATION_DIRECTION, MIGRATION_CAUSE, MIGRATION_OUTCOME],
    boundaries: SECONDS_MIGRATION,
};
pub const MIGRATION_SIZE: Definition = Definition {
    name: "vramd.migration.size",
    kind: Kind::Histogram,
    unit: "By",
    meaning: "How large these parts are.",
    attributes: &[MIGRATION_DIRECTION, MIGRATION_CAUSE, MIGRATION_OUTCOME],
    boundaries: BYTES_MIGRATION,
};
pub const LINK_LIMIT: Definition = count(
    Kind::Gauge,
    "vramd.link.limit",
    "By/s",
    &[LINK, LINK_WAY, HW_ID],
    "What a link carries if one way of one device has it for itself, as it was measured when the daemon started.",
);
pub const LINK_SHARE: Definition = count(
    Kind::Gauge,
    "vramd.link.share",
    "1",
    &[COPY_CLASS],
    "What a class of copies has of every link at least while it wants it, but for prefetches beside demand. Operators may change it while the daemon runs.",
);
pub const LINK_IO: Definition = count(
    Kind::Counter,
    "vramd.link.io",
    "By",
    &[LINK_WAY, HW_ID, COPY_CLASS],
    "What was begun to be copied that way. `rate` of it beside `vramd.link.limit` is how busy a link is, and with what.",
);
pub const DIGEST_IO: Definition = count(
    Kind::Counter,
    "vramd.digest.io",
    "By",
    &[],
    "What was hashed of what lies on the disk, and in files, and was read for that but where nothing was ever written. It goes by no share, and `vramd.link.io` does not have it.",
);
pub const IN_FILE: Definition = bytes(
    "vramd.in_file",
    &[TENANT, HW_ID],
    "What of a tenant's sealed memory lies in files that are nobody's and cost nothing, or goes back there from its device without being copied.",
);
pub const IN_PLACE: Definition = bytes(
    "vramd.in_place",
    &[TENANT, HW_ID],
    "What of a tenant lies in the host's memory and is advised to be accessed in place by its device: it is mapped there, or would be.",
);
pub const FRAGMENTATION_INTERNAL: Definition = bytes(
    "vramd.fragmentation.internal",
    &[TENANT, HW_ID],
    "What the parts of a tenant's allocations have beyond what was asked for: each allocation is rounded up to 2 MiB. Counted once, by the \
     allocation's device, wherever the part lies.",
);
pub const FRAGMENTATION_EXTERNAL: Definition = bytes(
    "vramd.fragmentation.external",
    &[TIER, HW_ID, HOST_NODE, EXTENT_SIZE],
    "Of `vramd.pool.usage`, what is of another size than `memory.part_size`: no part of the usual size can have it, though it is taken.",
);
pub const POOL_USAGE: Definition = bytes(
    "vramd.pool.usage",
    &[TIER, HW_ID, HOST_NODE],
    "What is held ready for parts to come, and is none's: of a device what is cached for its tenants, of the host what is pinned and kept.",
);
pub const POOL_REBUILDS: Definition = count(
    Kind::Counter,
    "vramd.pool.rebuilds",
    "{rebuild}",
    &[HOST_NODE],
    "Times that it was begun to pin pieces of `memory.part_size` in the place of other kept sizes, since one was wanted and none was there.",
);
pub const QUEUE_SIZE: Definition = count(
    Kind::UpDownCounter,
    "vramd.migration.queue.size",
    "{wait}",
    &[WAIT_KIND],
    "What waits for room on a device, or for its tenant to be below its limit there.",
);
pub const QUEUE_WAIT: Definition = Definition {
    name: "vramd.migration.queue.wait",
    kind: Kind::Histogram,
    unit: "s",
    meaning: "How long that waited; what was absent and found room at once waited for no time.",
    attributes: &[WAIT_KIND, WAIT_OUTCOME],
    boundaries: SECONDS_MIGRATION,
};
pub const PIN_WAIT: Definition = Definition {
    name: "vramd.pin.wait",
    kind: Kind::Histogram,
    unit: "s",
    meaning: "From the moment at which a client asks for a set until all of it is mapped, of sets with a part that was not on \
              its device.",
    attributes: &[WAIT_OUTCOME],
    boundaries: SECONDS_MIGRATION,
};
pub const PIN_STALLS: Definition = count(
    Kind::Counter,
    "vramd.pin.stalls",
    "{pin}",
    &[],
    "PinSpans that were aborted because all who stood in their way waited themselves.",
);
pub const CREATE_RETRIES: Definition = count(
    Kind::Counter,
    "vramd.create.retries",
    "{create}",
    &[],
    "Times that memory was asked of a driver again which had none before, though by the books there was room.",
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
    &OVERSUBSCRIPTION,
    &PRESSURE,
    &PRESSURE_BATCH_FACTOR,
    &PRESSURE_FULL_IN,
    &PRESSURE_THRESHOLD,
    &PRESSURE_FALL,
    &PRESSURE_EVICT_TO,
    &PRESSURE_COLD_AFTER,
    &PRESSURE_CHANGES,
    &MIGRATIONS,
    &MIGRATION_IO,
    &MIGRATION_USED,
    &MIGRATION_DURATION,
    &MIGRATION_SIZE,
    &LINK_LIMIT,
    &LINK_SHARE,
    &LINK_IO,
    &DIGEST_IO,
    &IN_FILE,
    &IN_PLACE,
    &FRAGMENTATION_INTERNAL,
    &POOL_USAGE,
    &FRAGMENTATION_EXTERNAL,
    &POOL_REBUILDS,
    &QUEUE_SIZE,
    &QUEUE_WAIT,
    &PIN_WAIT,
    &PIN_STALLS,
    &CREATE_RETRIES,
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
            "By/s" => "_bytes_per_second",
            "1" => "_ratio",
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
    fn every_metric_follows_the_naming_conventions() {
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
                matches!(unit, "By" | "By/s" | "s" | "1") || (unit.starts_with('{') && unit.ends_with('}')),
                "{name} {unit}"
            );
            assert!(metric.kind == Kind::Gauge || unit != "1", "{name}");
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
