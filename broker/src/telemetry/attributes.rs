//! Declares the attributes that distinguish the series of a metric. OpenTelemetry's own names are used where it has one.

pub const TENANT: &str = "vramd.tenant";
pub const TIER: &str = "vramd.tier";
pub const MEMORY_STATE: &str = "vramd.memory.state";
pub const ALLOCATION_STATE: &str = "vramd.allocation.state";
pub const SESSION_STATE: &str = "vramd.session.state";
pub const MIGRATION_DIRECTION: &str = "vramd.migration.direction";
pub const MIGRATION_FROM: &str = "vramd.migration.from";
pub const MIGRATION_TO: &str = "vramd.migration.to";
pub const MIGRATION_CAUSE: &str = "vramd.migration.cause";
pub const MIGRATION_OUTCOME: &str = "vramd.migration.outcome";
pub const EVICTION_REASON: &str = "vramd.eviction.reason";
pub const PRESSURE_LEVEL: &str = "vramd.pressure.level";
pub const LINK: &str = "vramd.link";
pub const LINK_WAY: &str = "vramd.link.way";
pub const COPY_CLASS: &str = "vramd.copy.class";
pub const HOST_NODE: &str = "vramd.host.node";
pub const EXTENT_SIZE: &str = "vramd.extent.size";
pub const WAIT_KIND: &str = "vramd.wait.kind";
pub const WAIT_OUTCOME: &str = "vramd.wait.outcome";
pub const PREFETCH_OUTCOME: &str = "vramd.prefetch.outcome";
pub const SPECULATION_OUTCOME: &str = "vramd.speculation.outcome";
pub const PLACEMENT_OUTCOME: &str = "vramd.placement.outcome";
pub const MANAGED_ORDER_OUTCOME: &str = "vramd.managed_order.outcome";
pub const FALL_BACK_REASON: &str = "vramd.fall_back.reason";
pub const REFUSAL_REASON: &str = "vramd.refusal.reason";
pub const REFUSAL_SCOPE: &str = "vramd.refusal.scope";
pub const VERSION: &str = "vramd.version";
pub const DRIVER: &str = "vramd.driver";
pub const SIGNAL: &str = "vramd.telemetry.signal";
pub const HW_ID: &str = "hw.id";
pub const HW_NAME: &str = "hw.name";
pub const RPC_SYSTEM: &str = "rpc.system.name";
pub const RPC_METHOD: &str = "rpc.method";
pub const RPC_CODE: &str = "rpc.response.status_code";

/// The tenant that sums up all tenants without series of their own. No real tenant can have this name.
pub const OTHER_TENANTS: &str = "_other";
/// The method name of calls to methods that no service has.
pub const OTHER_METHOD: &str = "_OTHER";

/// Every attribute with its description for `docs/reference/metrics.md`.
pub const ATTRIBUTES: &[(&str, &str)] = &[
    (
        TENANT,
        "The tenant that is charged; `_other` is the sum of the tenants beyond `telemetry.cardinality_max` ([which ones](../operations/telemetry.md#many-tenants))",
    ),
    (TIER, "`device`, `host` or `disk`"),
    (
        MEMORY_STATE,
        "`resident`: bytes of parts in this tier. Of a tenant they are divided into `clean`, `dirty` and `backing`. `clean`: the backing \
         has the same bytes, as far as the daemon knows, so the part can leave without a copy. The daemon learns of a write at the next \
         harvest, and for certain when a session unmaps the part. `backing`: bytes below a device that back parts on it. `dirty`: all \
         other bytes, among them discardable parts and all parts below a device. `reserved`: the driver is creating the memory, or the \
         bytes are reserved as backing. `cached`: freed, and kept for the tenant. `unreturned`: released, but still open in some process. \
         `managed`: managed memory in clients' own processes, which may be on the device and is not known to be resident. \
         Only of a device: `unbrokered`, in processes that no tenant explains; `context`, set aside for CUDA contexts of clients",
    ),
    (ALLOCATION_STATE, "`creating`, `open`, `sealing`, `sealed` or `freeing`"),
    (SESSION_STATE, "`live` or `silent`"),
    (MIGRATION_DIRECTION, "`in` to the device, or `out` of it"),
    (
        MIGRATION_FROM,
        "The tier that the part moved from; `none` for a part that was dropped, or that no client ever wrote. Of a write-back: `device`",
    ),
    (MIGRATION_TO, "The tier that the part moved to, or was to move to; `none` for a part that was dropped"),
    (
        MIGRATION_CAUSE,
        "`demand`: a client wants the part on its device, or another waiter needs its room. `rebalance`: its tenant is above its limit, a new \
         guarantee needs the room, or the capacity shrank. `write_back`: the daemon copies the part to its backing, and the part stays. \
         `pressure`: the part is cold, and the tier that it lay in is full. `operator`: an operator asked for it. \
         `prefetch`: a client asked for the part ahead of its use, or for one that needs its room. `speculation`: by the order of its pins so \
         far, a session will probably pin it soon",
    ),
    (
        MIGRATION_OUTCOME,
        "`moved`: the part was copied. `clean`: it left without a copy, since its backing has the same bytes. `dropped`: it left without a \
         copy, since it is discardable. `made`: it returned after that, as new memory. `failed`: memory was short, or the copy failed. \
         `stopped`: a client used the part, or the part was freed",
    ),
    (PRESSURE_LEVEL, "The level that is entered: `normal`, `elevated`, `high` or `critical`"),
    (LINK, "Name of the link, as in `vramctl link list`"),
    (
        LINK_WAY,
        "Direction: `to_device`, `from_device`, `from_disk`, `to_disk`, `between_devices` or `within_host`. A shared link has one series \
         for each direction of each device",
    ),
    (
        COPY_CLASS,
        "`demand`: a client waits for the copy, or for the room that it leaves. `prefetch`: a fetch for which no client waits. \
         `write_back`: an evict or write-back for which no client waits",
    ),
    (HOST_NODE, "Number of the NUMA node of the host; empty for a device"),
    (
        EXTENT_SIZE,
        "`smaller` or `larger` than `memory.part_size`, the size of an ordinary part. The last part of an allocation is smaller, and \
         clients may choose another size",
    ),
    (WAIT_KIND, "`part` (a client wants the part on its device) or `batch` (an `AllocateBatch`)"),
    (
        WAIT_OUTCOME,
        "`served`; `refused`: its time was over, or it cannot be served; `cancelled` by an operator; or `left`: the client is gone, has \
         everything already, or no longer waits",
    ),
    (
        SPECULATION_OUTCOME,
        "`used`: a session used them. `wasted`: they left unused, or the session went on in another order",
    ),
    (PLACEMENT_OUTCOME, "`moved` to the device, or `in_place`: read in host memory"),
    (
        PREFETCH_OUTCOME,
        "`ready`: all parts were on their device in time. `late`: after the deadline, or the program had begun the step that they are for. \
         `dropped`: a part left again before any session used it; the request may count as `ready` too. `cancelled`: by the client, an \
         operator or the end of the session. `failed`: a fetch failed, or the memory was freed. `wasted`: the program passed the step of \
         its sequence without a use of them",
    ),
    (
        EVICTION_REASON,
        "The rule by which the part leaves before others. `turn`: the turn of its working set comes later. `sequence`: a declared sequence. `pattern`: its pattern. `advice`: other advice of \
         its owner or an operator. `cold`: its last use, under pressure. Otherwise the name of the eviction policy",
    ),
    (
        MANAGED_ORDER_OUTCOME,
        "`executed`: the client moved the memory. `failed`: its driver did not, or the client had no such memory; the daemon's log says why",
    ),
    (
        FALL_BACK_REASON,
        "`separate_tiers`: device memory and host memory are apart. `file_mutable`: the file may change. `register_unsupported` and \
         `register_failed`: the driver did not register the mapping. `map_failed`: the client could not map the file. `misaligned`: a \
         tensor begins at no multiple of 16 bytes. `not_requested`: the device could read the file in place, and the program did not ask \
         for that. `file_unchecked`: the daemon could not look at the file, or not in time",
    ),
    (REFUSAL_REASON, "A reason of [the page of errors](errors.md)"),
    (REFUSAL_SCOPE, "The refused object: a `call`, one `item` of a batch, a `channel`, or a `pin` set"),
    (VERSION, "Version of the daemon"),
    (DRIVER, "`cuda`, or `sim` for simulated memory"),
    (SIGNAL, "`metrics`, `traces` or `logs`"),
    (HW_ID, "UUID of the device"),
    (HW_NAME, "Name of the device"),
    (RPC_SYSTEM, "`grpc`"),
    (RPC_METHOD, "`package.Service/Method`; `_OTHER` for methods that no service has"),
    (RPC_CODE, "gRPC's name of the status code; `CANCELLED` if the caller left"),
];
