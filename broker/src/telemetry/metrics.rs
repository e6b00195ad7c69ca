//! Declares every metric of the daemon. The instruments and `docs/reference/metrics.md` are made from this table.
//!
//! Names and units follow OpenTelemetry's conventions: a name contains no unit, bytes are `By`, times are `s`, and counted
//! things are `{thing}`. The metrics `process.*` are an exception: OpenTelemetry has other names for them, but Prometheus
//! expects these, like `process_cpu_seconds_total`. The values of a `usage` add up over its states. No id of an allocation,
//! session or process is ever an attribute.

pub use super::attributes::*;

/// The kind of a metric, which says how to read its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A sum that only grows. Series of known attributes begin with a zero, so that the first increase is seen.
    Counter,
    /// A present amount. Sums over series mean something.
    UpDownCounter,
    /// A present ratio, level or time. Sums over series mean nothing. A zero is exported too.
    Gauge,
    /// Times or sizes, in the buckets that the definition names.
    Histogram,
}

impl MetricKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::UpDownCounter => "up-down counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The declaration of one metric.
#[derive(Debug)]
pub struct Definition {
    /// The name in OpenTelemetry's form.
    pub name: &'static str,
    pub kind: MetricKind,
    pub unit: &'static str,
    pub meaning: &'static str,
    /// One or two sentences for operators: what to do when the value moves. Links are relative to `docs/reference`.
    pub action: &'static str,
    pub attributes: &'static [&'static str],
    /// Upper bounds of the buckets; empty unless the metric is a histogram.
    pub boundaries: &'static [f64],
}

const SECONDS_RPC: &[f64] =
    &[0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];
const SECONDS_REVOCATION: &[f64] =
    &[0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0];

/// For migrations, and for waits for room.
const SECONDS_MIGRATION: &[f64] = &[
    0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
    20.0, 50.0, 100.0,
];
/// For turns, the waits for them, and hand-overs.
const SECONDS_TURN: &[f64] = &[
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0,
    500.0, 1000.0,
];
/// From one device page of 2 MiB to four ordinary parts of 256 MiB.
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

const fn bytes(
    name: &'static str,
    attributes: &'static [&'static str],
    meaning: &'static str,
    action: &'static str,
) -> Definition {
    Definition {
        name,
        kind: MetricKind::UpDownCounter,
        unit: "By",
        meaning,
        action,
        attributes,
        boundaries: &[],
    }
}

const fn count(
    kind: MetricKind,
    name: &'static str,
    unit: &'static str,
    attributes: &'static [&'static str],
    meaning: &'static str,
    action: &'static str,
) -> Definition {
    Definition { name, kind, unit, meaning, action, attributes, boundaries: &[] }
}

pub const QUOTA_USAGE: Definition = bytes(
    "vramd.quota.usage",
    &[TENANT, HW_ID, TIER, MEMORY_STATE],
    "Bytes that a tenant is charged for in a place, by state. The states add up to the tenant's charge.",
    "Near the limit the tenant is soon refused: raise the limit, or have its programs free memory ([refusals](../operations/runbook.md#a-request-is-refused)).",
);
pub const QUOTA_GUARANTEE: Definition = bytes(
    "vramd.quota.guarantee",
    &[TENANT, HW_ID, TIER],
    "Bytes that a tenant is guaranteed in a place, whether it uses them or not.",
    "It moves when an operator sets a quota. Lower guarantees that their tenants do not use: other tenants wait for that room.",
);
pub const QUOTA_LIMIT: Definition = bytes(
    "vramd.quota.limit",
    &[TENANT, HW_ID, TIER],
    "The largest charge that a tenant may have in a place. Only tenants with a quota or a charge are shown.",
    "It moves when an operator sets a quota. `vramctl watch --kind quota` shows each change.",
);
pub const OVERSUBSCRIPTION: Definition = Definition {
    name: "vramd.memory.oversubscription",
    kind: MetricKind::Gauge,
    unit: "1",
    meaning: "All tenants' `clean` and `dirty` bytes on a device and in the tiers below it, divided by the device's capacity. A part that moves counts in both tiers.",
    action: "If it grows and pins wait longer, give the device fewer tenants, or programs that run in turns ([sizing](../operations/sizing.md)).",
    attributes: &[HW_ID, HW_NAME],
    boundaries: &[],
};
pub const MEMORY_USAGE: Definition = bytes(
    "vramd.memory.usage",
    &[HW_ID, HW_NAME, TIER, MEMORY_STATE],
    "Bytes of a device, or of a tier below it, that are in use, by state.",
    "See the runbook if `unbrokered` grows ([other programs](../operations/runbook.md#other-programs-take-memory)) or `unreturned` stays ([unreturned memory](../operations/runbook.md#memory-stays-unreturned)).",
);
pub const MEMORY_LIMIT: Definition = bytes(
    "vramd.memory.limit",
    &[HW_ID, HW_NAME, TIER],
    "The size of the device, and of each tier below it.",
    "It moves only at a start. A device that is missing then has failed: look at `dmesg`, and at `memory.devices`.",
);
pub const MEMORY_CAPACITY: Definition = bytes(
    "vramd.memory.capacity",
    &[HW_ID, HW_NAME, TIER],
    "Bytes that the daemon may hand out: its share of the device less margin, contexts and unbrokered memory; of a tier below, at most the size that operators set.",
    "If it falls, other programs have taken as much of the device: [find them](../operations/runbook.md#other-programs-take-memory).",
);
pub const MEMORY_COMMITTED: Definition = bytes(
    "vramd.memory.committed",
    &[HW_ID, HW_NAME, TIER],
    "Bytes of the capacity that are guaranteed or charged: the sum over tenants of the larger of the two.",
    "Near the capacity no guarantee can be added, and tenants above theirs lose room: lower a guarantee, or add a device.",
);
pub const MEMORY_SHORTFALL: Definition = bytes(
    "vramd.memory.shortfall",
    &[HW_ID, HW_NAME, TIER],
    "Bytes by which `vramd.memory.committed` exceeds the capacity.",
    "Above 0, tenants hold more than remains: end the programs that took the memory ([other programs](../operations/runbook.md#other-programs-take-memory)).",
);
pub const PRESSURE: Definition = count(
    MetricKind::Gauge,
    "vramd.pressure.level",
    "{level}",
    &[HW_ID, HW_NAME, TIER],
    "The pressure level of a device or of a tier below it: 0 is normal, 1 elevated, 2 high, 3 critical.",
    "If it stays at 2 or 3, find what is cold and does not leave ([full devices](../operations/runbook.md#a-device-stays-at-high-or-critical)).",
);
pub const PRESSURE_BATCH_FACTOR: Definition = count(
    MetricKind::Gauge,
    "vramd.pressure.batch_factor",
    "1",
    &[HW_ID, HW_NAME, TIER],
    "The factor that the daemon last sent to clients, by which they should scale the size of their batches. Above 1 there is room, below 1 room is scarce.",
    "Below 1, programs that follow it make smaller batches. If they become too slow, move a tenant to another device.",
);
pub const PRESSURE_FULL_IN: Definition = count(
    MetricKind::Gauge,
    "vramd.pressure.full_in",
    "s",
    &[HW_ID, HW_NAME, TIER],
    "The forecast that the daemon last sent to clients: time until the place is full at its present rate. Absent if it does not fill, or not within 5 minutes.",
    "Have a tenant free memory, or move one away, before the time is over: requests are refused afterwards.",
);
pub const PRESSURE_THRESHOLD: Definition = count(
    MetricKind::Gauge,
    "vramd.pressure.threshold",
    "1",
    &[PRESSURE_LEVEL],
    "The fill at which a device, or a tier below it, enters a level. Operators may change it while the daemon runs.",
    "It moves when an operator changes it. `vramctl settings show` has it beside the configured one; a restart brings that back.",
);
pub const PRESSURE_FALL: Definition = count(
    MetricKind::Gauge,
    "vramd.pressure.fall",
    "1",
    &[],
    "How far the fill must fall below the threshold of a level before the daemon leaves that level.",
    "It moves when an operator changes it. Raise it if `vramd.pressure.changes` grows quickly.",
);
pub const PRESSURE_EVICT_TO: Definition = count(
    MetricKind::Gauge,
    "vramd.pressure.evict_to",
    "1",
    &[],
    "The fill down to which the daemon evicts cold parts from a device or from host memory, because of pressure.",
    "It moves when an operator changes it. Lower it to make more room at once, at the price of more copies.",
);
pub const PRESSURE_COLD_AFTER: Definition = count(
    MetricKind::Gauge,
    "vramd.pressure.cold_after",
    "s",
    &[],
    "Time without use after which a part is cold. With 0 no part is cold, and pressure releases cached memory only.",
    "It moves when an operator changes it. Raise it if parts that leave under pressure soon come back.",
);
pub const PRESSURE_CHANGES: Definition = count(
    MetricKind::Counter,
    "vramd.pressure.changes",
    "{change}",
    &[HW_ID, HW_NAME, TIER, PRESSURE_LEVEL],
    "Times that a pressure level was entered, from above or below.",
    "If it grows each minute, raise `fall_percent`, so that a level does not come and go ([pressure](../operations/pressure.md)).",
);
pub const MIGRATIONS: Definition = count(
    MetricKind::Counter,
    "vramd.migrations",
    "{part}",
    &[HW_ID, MIGRATION_DIRECTION, MIGRATION_FROM, MIGRATION_TO, MIGRATION_CAUSE, MIGRATION_OUTCOME],
    "Parts whose migration or write-back ended, by outcome.",
    "If `failed` grows, the log names the reason. If `stopped` grows, parts leave that programs use: raise `cold_after_ms`.",
);
pub const MIGRATION_IO: Definition = count(
    MetricKind::Counter,
    "vramd.migration.io",
    "By",
    &[HW_ID, MIGRATION_DIRECTION, MIGRATION_FROM, MIGRATION_TO, MIGRATION_CAUSE, MIGRATION_OUTCOME],
    "The sizes of the parts in `vramd.migrations`. Only parts with the outcome `moved` were copied in full.",
    "Much `demand` in both directions: the programs of one moment use more than the device ([what helps](../operations/runbook.md#memory-comes-and-goes)).",
);
pub const EVICTIONS: Definition = count(
    MetricKind::Counter,
    "vramd.evictions",
    "{part}",
    &[MIGRATION_CAUSE, EVICTION_REASON],
    "Parts that were chosen to leave a device and began to. Parts that an operator moves are not chosen.",
    "If `cold` grows and the parts come back, raise `cold_after_ms`. If the policy chooses badly, have owners advise.",
);
pub const MIGRATION_USED: Definition = count(
    MetricKind::Counter,
    "vramd.migration.used",
    "By",
    &[HW_ID, MIGRATION_CAUSE],
    "Bytes of `vramd.migration.io` (`in`, `moved`) that the daemon sent to a client for mapping before they left again. The rest was fetched for nothing.",
    "If it falls behind the fetched bytes, memory is fetched for nothing: [find the cause](../operations/runbook.md#memory-comes-and-goes).",
);
pub const TENANT_MIGRATION_IO: Definition = count(
    MetricKind::Counter,
    "vramd.tenant.migration.io",
    "By",
    &[TENANT, MIGRATION_DIRECTION, MIGRATION_CAUSE],
    "Bytes of a tenant that were copied: its share of `vramd.migration.io` with the outcome `moved`. `demand` begins with zeros; a series of another cause begins with the first copy.",
    "Much `demand` in both directions: its programs use more than they have room for ([what helps](../operations/runbook.md#memory-comes-and-goes)).",
);
pub const TENANT_MIGRATION_USED: Definition = count(
    MetricKind::Counter,
    "vramd.tenant.migration.used",
    "By",
    &[TENANT],
    "Bytes of a tenant in `vramd.migration.used`.",
    "If it falls behind the tenant's fetched bytes, memory is fetched for nothing: [find the cause](../operations/runbook.md#memory-comes-and-goes).",
);
pub const MIGRATION_DURATION: Definition = Definition {
    name: "vramd.migration.duration",
    kind: MetricKind::Histogram,
    unit: "s",
    meaning: "Time from the reservation of memory in the other tier until the migration ended.",
    action: "If it grows, compare the copies with the limit of their link ([slow copies](../operations/runbook.md#copies-are-slow)).",
    attributes: &[MIGRATION_DIRECTION, MIGRATION_FROM, MIGRATION_TO, MIGRATION_CAUSE, MIGRATION_OUTCOME],
    boundaries: SECONDS_MIGRATION,
};
pub const MIGRATION_SIZE: Definition = Definition {
    name: "vramd.migration.size",
    kind: MetricKind::Histogram,
    unit: "By",
    meaning: "The size of the parts whose migration or write-back ended.",
    action: "If most parts are small, copies do not reach the speed of the link: raise `memory.part_size`.",
    attributes: &[MIGRATION_DIRECTION, MIGRATION_FROM, MIGRATION_TO, MIGRATION_CAUSE, MIGRATION_OUTCOME],
    boundaries: BYTES_MIGRATION,
};
pub const DRIVER_SIMULATED: Definition = count(
    MetricKind::Gauge,
    "vramd.driver.simulated",
    "{driver}",
    &[],
    "1 if the daemon serves simulated memory, which is ordinary memory and no GPU's; 0 on a GPU.",
    "1 on a node with a GPU: no program uses the GPU. Set `driver.kind` to `cuda`, and mend what it says.",
);
pub const LINK_LIMIT: Definition = count(
    MetricKind::Gauge,
    "vramd.link.limit",
    "By/s",
    &[LINK, LINK_WAY, HW_ID],
    "The speed of a link when one direction of one device has the link for itself, as measured when the daemon started.",
    "Lower than that of other devices after a start: a bad slot or riser ([slow copies](../operations/runbook.md#copies-are-slow)).",
);
pub const LINK_SHARE: Definition = count(
    MetricKind::Gauge,
    "vramd.link.share",
    "1",
    &[COPY_CLASS],
    "The part of every link's speed that a class of copies gets at least while it has work, except that demand goes before prefetch. Operators may change it while the daemon runs.",
    "It moves when an operator changes it. Raise the share of the class that waits ([links](../operations/links.md)).",
);
pub const LINK_IO: Definition = count(
    MetricKind::Counter,
    "vramd.link.io",
    "By",
    &[LINK_WAY, HW_ID, COPY_CLASS],
    "Bytes whose copy has begun in a direction. Its rate beside `vramd.link.limit` shows how busy a link is, and with which class.",
    "Near the limit the link is the bottleneck: favour a class, or move less ([slow copies](../operations/runbook.md#copies-are-slow)).",
);
pub const DIGEST_IO: Definition = count(
    MetricKind::Counter,
    "vramd.digest.io",
    "By",
    &[],
    "Bytes of disk extents and files that the daemon hashed, and read for that unless they were never written. Shares do not apply to it, and `vramd.link.io` does not include it.",
    "It grows with seals, and with reads from disk and files. If other reads of that disk become slow, load files at another time.",
);
pub const IN_FILE: Definition = bytes(
    "vramd.in_file",
    &[TENANT, HW_ID],
    "Bytes of a tenant's file-backed memory that lie in their files alone, or return there from the device without a copy. They are charged to no tenant.",
    "It grows with loaded files. Pins of these parts read the file system: if they are slow, look at its disk.",
);
pub const IN_PLACE: Definition = bytes(
    "vramd.in_place",
    &[TENANT, HW_ID],
    "Bytes of a tenant that lie in host memory with the advice *accessed by*: the device accesses them there, or would.",
    "It grows with the advice *accessed by*. If its programs are slow, have the owner withdraw the advice ([in place](../operations/tiers.md#memory-accessed-in-place)).",
);
pub const FRAGMENTATION_INTERNAL: Definition = bytes(
    "vramd.fragmentation.internal",
    &[TENANT, HW_ID],
    "Bytes by which the parts of a tenant's allocations exceed the requested bytes, since parts are rounded up to 2 MiB. Each part counts once, for its allocation's device, wherever the part lies.",
    "If it is much of the charge, have the programs put small blocks into one allocation ([fragmentation](../operations/fragmentation.md)).",
);
pub const FRAGMENTATION_EXTERNAL: Definition = bytes(
    "vramd.fragmentation.external",
    &[TIER, HW_ID, HOST_NODE, EXTENT_SIZE],
    "Bytes of `vramd.pool.usage` in sizes other than `memory.part_size`. No part of the ordinary size can use them.",
    "If it grows, have programs use the ordinary part size ([fragmentation](../operations/fragmentation.md)).",
);
pub const POOL_USAGE: Definition = bytes(
    "vramd.pool.usage",
    &[TIER, HW_ID, HOST_NODE],
    "Bytes kept ready for future parts and used by none: cached memory of a device, and pinned free memory of the host.",
    "If it stays high while requests are refused, its sizes do not fit them ([fragmentation](../operations/fragmentation.md)).",
);
pub const POOL_REBUILDS: Definition = count(
    MetricKind::Counter,
    "vramd.pool.rebuilds",
    "{rebuild}",
    &[HOST_NODE],
    "Times that the daemon began to pin pieces of `memory.part_size` in place of other sizes, because a part needed such a piece and none was free.",
    "If it grows each minute, programs ask for changing part sizes: have them use the ordinary one.",
);
pub const QUEUE_SIZE: Definition = count(
    MetricKind::UpDownCounter,
    "vramd.migration.queue.size",
    "{wait}",
    &[WAIT_KIND],
    "Waiters for room on devices: parts and batches that wait for room, or for their tenant to fall below its limit.",
    "If the same waiters stay, follow the steps for [the line](../operations/runbook.md#the-line-does-not-move).",
);
pub const QUEUE_WAIT: Definition = Definition {
    name: "vramd.migration.queue.wait",
    kind: MetricKind::Histogram,
    unit: "s",
    meaning: "Time that waiters spent in the line. A part that was absent and found room at once waited 0 s.",
    action: "If it grows while moves stay short, what could leave is pinned, held or guaranteed: [the line](../operations/runbook.md#the-line-does-not-move).",
    attributes: &[WAIT_KIND, WAIT_OUTCOME],
    boundaries: SECONDS_MIGRATION,
};
pub const PIN_WAIT: Definition = Definition {
    name: "vramd.pin.wait",
    kind: MetricKind::Histogram,
    unit: "s",
    meaning: "Time from a client's pin call until the whole pin set is mapped. Only pin sets with a part that was not on its device are counted.",
    action: "If it grows, programs slow down: [compare three other histograms](../operations/runbook.md#pins-take-long).",
    attributes: &[TENANT, WAIT_OUTCOME],
    boundaries: SECONDS_MIGRATION,
};
pub const PREFETCHES: Definition = count(
    MetricKind::Counter,
    "vramd.prefetches",
    "{request}",
    &[PREFETCH_OUTCOME],
    "Prefetch requests that were ready or ended otherwise. A request that the daemon refused at once is not counted.",
    "If `late` grows, have programs ask earlier; if `dropped` or `wasted` grows, have them ask for less ([moving](../guides/moving.md)).",
);
pub const PREFETCH_LEAD: Definition = Definition {
    name: "vramd.prefetch.lead",
    kind: MetricKind::Histogram,
    unit: "s",
    meaning: "Time that a prefetched part lay on its device, with all others of its request, until a session used it. 0 s if it was used before the request was ready.",
    action: "Near 0, programs ask too late; many seconds, too early, and the parts take room meanwhile ([moving](../guides/moving.md)).",
    attributes: &[],
    boundaries: SECONDS_MIGRATION,
};
pub const SPECULATION: Definition = count(
    MetricKind::Counter,
    "vramd.speculation.io",
    "By",
    &[SPECULATION_OUTCOME],
    "Bytes that the daemon brought to devices unasked, once it is known whether a session used them. An allocation of which more than 15 % was wasted for the sessions of a tenant gets no more for them.",
    "If `wasted` stays near `used`, lower `speculation_bytes_max`.",
);
pub const PLACEMENTS: Definition = count(
    MetricKind::Counter,
    "vramd.placements",
    "{part}",
    &[PLACEMENT_OUTCOME],
    "Decisions whether a pinned part in host memory moves to its device or is read where it lies. Only parts with an advised pattern need one; all others move.",
    "If `in_place` grows and programs become slower, have owners withdraw the advised pattern.",
);
pub const MANAGED_ORDERED: Definition = bytes(
    "vramd.managed.ordered",
    &[HW_ID, HW_NAME, TIER],
    "Bytes of managed memory of a device that clients last moved there, or to the host, by the daemon's order. Page faults may have moved them since.",
    "It is a part of the state `managed` of `vramd_memory_usage_bytes`. Other bytes of that state lie where the driver put them.",
);
pub const MANAGED_ORDERS: Definition = count(
    MetricKind::Counter,
    "vramd.managed.orders",
    "{order}",
    &[MANAGED_ORDER_OUTCOME],
    "Orders for managed memory that clients have answered.",
    "If `failed` grows, the log names the session and the reason of its driver. The memory works all the same, wherever it lies.",
);
pub const FALL_BACKS: Definition = count(
    MetricKind::Counter,
    "vramd.fall_backs",
    "{load}",
    &[FALL_BACK_REASON],
    "Loads of files into allocations, although the device was to read them in place or could have.",
    "Any growth where host and device memory are one: each copy takes the room of its file a second time. `vramctl doctor` \
     says of each reason what to do, where there is a remedy.",
);
pub const PIN_STALLS: Definition = count(
    MetricKind::Counter,
    "vramd.pin.stalls",
    "{pin}",
    &[],
    "Pin calls that the daemon aborted because they waited only for sessions that wait themselves (PIN_STALLED).",
    "Any growth: find the sessions, and have their programs pin all that belongs together at once ([stalls](../operations/runbook.md#pins-stall)).",
);
pub const PINS: Definition = count(
    MetricKind::Counter,
    "vramd.pins",
    "{pin}",
    &[],
    "Pin calls that the daemon answered. A pin of mapped memory needs no call and is not counted.",
    "If it falls to 0 while sessions live, their programs hang or idle: look at their logs.",
);
pub const TENANT_PIN_WAITS: Definition = count(
    MetricKind::Counter,
    "vramd.tenant.pin.waits",
    "{pin}",
    &[TENANT, WAIT_OUTCOME],
    "Pin calls of a tenant in `vramd.pin.wait`, by outcome.",
    "If `refused` or `cancelled` grows, the tenant does not get its memory: [pins take long](../operations/runbook.md#pins-take-long).",
);
pub const CREATE_RETRIES: Definition = count(
    MetricKind::Counter,
    "vramd.create.retries",
    "{create}",
    &[],
    "Times that the daemon asked a driver again for memory that it had failed to create, although the ledger had room.",
    "Any growth: another program takes memory between two surveys. Find it, or raise `margin` ([other programs](../operations/runbook.md#other-programs-take-memory)).",
);
pub const TENANT_ALLOCATIONS: Definition = count(
    MetricKind::UpDownCounter,
    "vramd.tenant.allocations",
    "{allocation}",
    &[TENANT],
    "Allocations of a tenant.",
    "If it only grows, a program leaks allocations: `vramctl alloc list TENANT` shows the oldest.",
);
pub const TENANT_SESSIONS: Definition = count(
    MetricKind::UpDownCounter,
    "vramd.tenant.sessions",
    "{session}",
    &[TENANT],
    "Sessions of a tenant, live and silent.",
    "If it grows without new programs, a program opens sessions and closes none. 0: its programs have ended.",
);
pub const ALLOCATIONS: Definition = count(
    MetricKind::UpDownCounter,
    "vramd.allocations",
    "{allocation}",
    &[ALLOCATION_STATE],
    "Allocations of the node, by state.",
    "If `creating` or `freeing` stays above 0, the driver or a client does not answer: see [silent sessions](../operations/runbook.md#a-session-is-silent).",
);
pub const SESSIONS: Definition = count(
    MetricKind::UpDownCounter,
    "vramd.sessions",
    "{session}",
    &[SESSION_STATE],
    "Sessions of the node, by state.",
    "If `silent` stays above 0, find the process: it keeps its mappings and its charge ([silent sessions](../operations/runbook.md#a-session-is-silent)).",
);
pub const DESCRIPTORS_IN_FLIGHT: Definition = count(
    MetricKind::UpDownCounter,
    "vramd.descriptor.in_flight",
    "{descriptor}",
    &[],
    "File descriptors that the daemon has sent to clients and that the clients have not acknowledged.",
    "If it stays high, a client does not read its channel: `vramctl session list` shows it, soon as silent.",
);
pub const REFUSALS: Definition = count(
    MetricKind::Counter,
    "vramd.refusals",
    "{refusal}",
    &[REFUSAL_SCOPE, REFUSAL_REASON],
    "Refusals to clients and operators, by scope and reason.",
    "Look up the reason in [the page of errors](errors.md), which has all; [the runbook](../operations/runbook.md#a-request-is-refused) has steps for the most frequent.",
);
pub const TENANT_REFUSALS: Definition = count(
    MetricKind::Counter,
    "vramd.tenant.refusals",
    "{refusal}",
    &[TENANT, REFUSAL_REASON],
    "Refusals to sessions of a tenant, by reason. `QUOTA_LIMIT`, `DEVICE_FULL`, `DEADLINE` and `PIN_STALLED` begin with a zero; a series of another reason begins with the first refusal.",
    "Ask the tenant whether its programs suffer, and look up the reason in [the page of errors](errors.md).",
);
pub const BUILD_INFO: Definition = count(
    MetricKind::Gauge,
    "vramd.build.info",
    "{build}",
    &[VERSION, DRIVER],
    "The running daemon; the value is always 1.",
    "A new version after an upgrade. Two versions on a fleet for long are an upgrade that stopped halfway: go on with it.",
);
pub const PROCESS_CPU: Definition = count(
    MetricKind::Counter,
    "process.cpu",
    "s",
    &[],
    "Processor time of the daemon, in whole seconds.",
    "If a core is busy for minutes, look which method has the calls, and whether large files are being hashed.",
);
pub const PROCESS_MEMORY: Definition = bytes(
    "process.resident_memory",
    &[],
    "Resident memory of the daemon, pinned host memory included.",
    "It grows to the size of the host tier. If it grows far beyond that, report it with the log.",
);
pub const PROCESS_FDS: Definition = count(
    MetricKind::UpDownCounter,
    "process.open_fds",
    "{descriptor}",
    &[],
    "File descriptors that the daemon has open.",
    "Near `process.max_fds`, raise `LimitNOFILE` of the service: new parts and connections are refused otherwise.",
);
pub const PROCESS_MAX_FDS: Definition = count(
    MetricKind::Gauge,
    "process.max_fds",
    "{descriptor}",
    &[],
    "File descriptors that the daemon may have open.",
    "It moves only at a start. A lower value than before is a changed unit or shell: raise it again.",
);
pub const PROCESS_START: Definition = count(
    MetricKind::Gauge,
    "process.start_time",
    "s",
    &[],
    "Time at which the daemon started, in seconds since 1970.",
    "It jumps at a restart. If no operator restarted the daemon, read its last log lines ([the daemon does not run](../operations/runbook.md#the-daemon-does-not-run)).",
);
pub const INVARIANT_VIOLATIONS: Definition = count(
    MetricKind::Counter,
    "vramd.invariant.violations",
    "{violation}",
    &[],
    "Invariants that the daemon found broken. Each is a bug, and an error line in the log.",
    "Any growth is a bug of the daemon: save the log and report it ([broken invariants](../operations/runbook.md#an-invariant-is-broken)).",
);
pub const TELEMETRY_DROPPED: Definition = count(
    MetricKind::Counter,
    "vramd.telemetry.dropped",
    "{item}",
    &[SIGNAL],
    "Spans and log records that were lost because the collector was absent or slow.",
    "Mend the collector, or send it less ([dropped telemetry](../operations/runbook.md#telemetry-is-dropped)).",
);
pub const LOG_DROPPED: Definition = count(
    MetricKind::Counter,
    "vramd.log.dropped",
    "{line}",
    &[],
    "Log lines that were lost because stderr was not read.",
    "Have the supervisor read standard error, or set a less talkative `log_level`.",
);
pub const EXPORT_FAILURES: Definition = count(
    MetricKind::Counter,
    "vramd.telemetry.export.failures",
    "{export}",
    &[SIGNAL],
    "Failed attempts to send to the collector. No metric is lost by one: the next attempt sends the sums.",
    "Check `otlp_endpoint` and the collector ([dropped telemetry](../operations/runbook.md#telemetry-is-dropped)).",
);
pub const RPC_DURATION: Definition = Definition {
    name: "rpc.server.call.duration",
    kind: MetricKind::Histogram,
    unit: "s",
    meaning: "Time from the head of a gRPC call to its answer; for a stream, to the head of the answer.",
    action: "If a method without waits becomes slow, the daemon lacks processor time. The trace of a slow call shows where it waited.",
    attributes: &[RPC_SYSTEM, RPC_METHOD, RPC_CODE],
    boundaries: SECONDS_RPC,
};
pub const REVOCATION_DURATION: Definition = Definition {
    name: "vramd.revocation.duration",
    kind: MetricKind::Histogram,
    unit: "s",
    meaning: "Time from the daemon's revoke of a part until the client reports that it has unmapped it.",
    action: "If it grows towards a second, clients unmap slowly and soon become silent: look at their processes ([slow pins](../operations/runbook.md#pins-take-long)).",
    attributes: &[],
    boundaries: SECONDS_REVOCATION,
};
pub const TURNS_WAITING: Definition = count(
    MetricKind::UpDownCounter,
    "vramd.turns.waiting",
    "{working_set}",
    &[HW_ID],
    "Working sets whose programs wait for their turn on a device.",
    "If it stays above zero, the programs share the device in turns: `vramctl turn list` shows whose turn it is ([turns](../guides/turns.md)).",
);
pub const TURN_WAIT: Definition = Definition {
    name: "vramd.turn.wait.duration",
    kind: MetricKind::Histogram,
    unit: "s",
    meaning: "Time that a program waited for a turn that was granted, with the hand-over.",
    action: "If it grows, too many programs share the device, or `turns.quantum_ms` is too long for them ([turns](../guides/turns.md)).",
    attributes: &[HW_ID],
    boundaries: SECONDS_TURN,
};
pub const TURN_HAND_OVER: Definition = Definition {
    name: "vramd.turn.hand_over.duration",
    kind: MetricKind::Histogram,
    unit: "s",
    meaning: "Time from the moment when it is a program's turn until it has mapped its whole working set.",
    action: "Compare its sum with that of `vramd_turn_duration_seconds`: if hand-overs take a large part of the time, raise `turns.quantum_ms`.",
    attributes: &[HW_ID],
    boundaries: SECONDS_TURN,
};
pub const TURN_DURATION: Definition = Definition {
    name: "vramd.turn.duration",
    kind: MetricKind::Histogram,
    unit: "s",
    meaning: "Time that a program had a turn.",
    action: "If turns last far longer than `turns.quantum_ms` while programs wait, a program yields late: `vramctl watch --kind turn` names it.",
    attributes: &[HW_ID],
    boundaries: SECONDS_TURN,
};
pub const TURNS_OVERDUE: Definition = count(
    MetricKind::Counter,
    "vramd.turns.overdue",
    "{turn}",
    &[],
    "Turns that their programs did not yield in time.",
    "`vramctl turn list` names the program. If it hangs, end its session; `turns.end_after_ms` does that by itself ([turns](../guides/turns.md)).",
);

/// Every metric, in the order of `docs/reference/metrics.md`.
pub const ALL: &[&Definition] = &[
    &BUILD_INFO,
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
    &EVICTIONS,
    &MIGRATION_USED,
    &TENANT_MIGRATION_IO,
    &TENANT_MIGRATION_USED,
    &MIGRATION_DURATION,
    &MIGRATION_SIZE,
    &DRIVER_SIMULATED,
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
    &PINS,
    &TENANT_PIN_WAITS,
    &PIN_STALLS,
    &PREFETCHES,
    &SPECULATION,
    &PLACEMENTS,
    &MANAGED_ORDERED,
    &MANAGED_ORDERS,
    &FALL_BACKS,
    &PREFETCH_LEAD,
    &TURNS_WAITING,
    &TURN_WAIT,
    &TURN_HAND_OVER,
    &TURN_DURATION,
    &TURNS_OVERDUE,
    &CREATE_RETRIES,
    &TENANT_ALLOCATIONS,
    &TENANT_SESSIONS,
    &ALLOCATIONS,
    &SESSIONS,
    &DESCRIPTORS_IN_FLIGHT,
    &REFUSALS,
    &TENANT_REFUSALS,
    &INVARIANT_VIOLATIONS,
    &RPC_DURATION,
    &REVOCATION_DURATION,
    &TELEMETRY_DROPPED,
    &EXPORT_FAILURES,
    &LOG_DROPPED,
    &PROCESS_CPU,
    &PROCESS_MEMORY,
    &PROCESS_FDS,
    &PROCESS_MAX_FDS,
    &PROCESS_START,
];

impl Definition {
    /// The name for Prometheus: underscores for dots, then the unit, then `_total` if the metric is a counter.
    ///
    /// A histogram exports three series with the suffixes `_bucket`, `_sum` and `_count`.
    pub fn prometheus_name(&self) -> String {
        let unit = match self.unit {
            "By" => "_bytes",
            "s" => "_seconds",
            "By/s" => "_bytes_per_second",
            "1" => "_ratio",
            _ => "",
        };
        let total = if self.kind == MetricKind::Counter { "_total" } else { "" };
        [&self.name.replace('.', "_"), unit, total].concat()
    }

    /// Whether the number of series grows with the number of tenants.
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
            assert!(metric.kind == MetricKind::Gauge || unit != "1", "{name}");
            assert!(!name.ends_with("count"), "{name} would be taken for a part of a histogram");
            assert!(metric.meaning.ends_with('.'), "{name}");
            assert!(metric.action.ends_with('.') && metric.action.len() > 40, "{name}");
            assert_eq!(metric.kind == MetricKind::Histogram, !metric.boundaries.is_empty(), "{name}");
            assert!(metric.boundaries.is_sorted(), "{name}");
            for attribute in metric.attributes {
                assert!(ATTRIBUTES.iter().any(|(known, _)| known == attribute), "{name} {attribute}");
            }
        }
    }
}
