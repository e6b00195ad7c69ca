//! What tells the series of a metric from each other. Names that OpenTelemetry has are its own.

pub const TENANT: &str = "vramd.tenant";
pub const TIER: &str = "vramd.tier";
pub const MEMORY_STATE: &str = "vramd.memory.state";
pub const ALLOCATION_STATE: &str = "vramd.allocation.state";
pub const SESSION_STATE: &str = "vramd.session.state";
pub const MIGRATION_DIRECTION: &str = "vramd.migration.direction";
pub const MIGRATION_CAUSE: &str = "vramd.migration.cause";
pub const MIGRATION_OUTCOME: &str = "vramd.migration.outcome";
pub const PRESSURE_LEVEL: &str = "vramd.pressure.level";
pub const LINK: &str = "vramd.link";
pub const LINK_WAY: &str = "vramd.link.way";
pub const COPY_CLASS: &str = "vramd.copy.class";
pub const HOST_NODE: &str = "vramd.host.node";
pub const EXTENT_SIZE: &str = "vramd.extent.size";
pub const WAIT_KIND: &str = "vramd.wait.kind";
pub const WAIT_OUTCOME: &str = "vramd.wait.outcome";
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
        "`resident`, which of a tenant is `clean` (below lies the same, as far as is known, so it can leave without being \
         copied; whether who maps it has written it is learnt when its words are looked at, and for certain when it is \
         unmapped), `dirty` (all else, whatever is discardable or lies below a device among it) or `backing` (below a \
         device, kept for parts that lie on it); `reserved` (being made, or set aside below a device), `cached` (kept for \
         the tenant), `unreturned` (released, and some process holds it still); of a device also `unbrokered` (held by \
         processes of no tenant) and `context` (kept for the contexts of clients)",
    ),
    (ALLOCATION_STATE, "`creating`, `open`, `sealing`, `sealed` or `freeing`"),
    (SESSION_STATE, "`live` or `silent`"),
    (MIGRATION_DIRECTION, "`in` to the device, or `out` of it"),
    (
        MIGRATION_CAUSE,
        "`demand` (somebody wants it on its device, or the room that it takes there), `rebalance` (its tenant is above its \
         limit, or others took memory of the device), `write_back` (its content is copied below, and it stays where it is), \
         `pressure` (the tier that it lay in is full, and nobody has used it for long) or `operator`",
    ),
    (
        MIGRATION_OUTCOME,
        "`moved`; `clean`, it left and was not copied, since what lies below held the same; `dropped`, it left and its \
         content was given up, since it is discardable; `made`, it came back after that and is new; `failed`, for want of \
         memory or in the copy; or `stopped`, since somebody used it",
    ),
    (PRESSURE_LEVEL, "The level that is entered: `normal`, `elevated`, `high` or `critical`"),
    (LINK, "The link's name, as in `vramctl link list`"),
    (
        LINK_WAY,
        "`to_device`, `from_device`, `from_disk`, `to_disk`, `between_devices` or `within_host`; a link that is shared has one \
         series for each way of each device",
    ),
    (
        COPY_CLASS,
        "`demand` (somebody waits for it), `prefetch` (it is brought in, and nobody does) or `write_back` (it leaves, or is written \
         back, and nobody does)",
    ),
    (HOST_NODE, "Number of the node of the host's memory; empty where it is about a device"),
    (
        EXTENT_SIZE,
        "`smaller` or `larger` than `memory.part_size`, which most parts have: the last part of an allocation is smaller, and clients may \
         choose a size of their own",
    ),
    (WAIT_KIND, "`part` (somebody wants it on its device) or `batch` (an `AllocateBatch`)"),
    (
        WAIT_OUTCOME,
        "`served`; `refused`, because its time was over or it could not be had; `cancelled` by an operator; or `left`, who \
         waited is gone, has it all already, or waits no more",
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
