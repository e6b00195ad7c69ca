//! Every bound of the core. Every quantity that can grow has a bound here.

use std::time::Duration;

use vramd_types::Bytes;

/// After what time work in turns goes on: after all other work that is due by then.
pub const MOMENT: Duration = Duration::from_micros(1);

/// How many request ids the core remembers per session, and per operator's uid.
pub const REQUESTS_REMEMBERED: usize = 1024;

/// How many bytes all request ids and outcomes take that the core remembers for one uid's sessions, and as many for its
/// requests as an operator. Beyond that the core forgets the oldest of the sessions that have the most.
pub const REMEMBERED_BYTES_PER_UID_MAX: usize = 16 << 20;

/// Of so many requests that a tenant may have waiting, one has a place that no other tenant can take.
pub const PLACES_SHARED_PER_OWN: usize = 16;

/// How many files of one tenant are read at once, until their allocations are sealed: twice the devices of a
/// node.
pub const FILE_LOADS_PER_TENANT_MAX: usize = 16;

/// The most file descriptors in one packet. The kernel takes 253.
pub const FDS_PER_PACKET_MAX: usize = 128;

/// The most parts that one `Revoke` names.
pub const PARTS_PER_FRAME_MAX: usize = 1024;

/// The most orders for managed memory in one frame. The answer has room for the reason of each that fails.
pub const MANAGED_ORDERS_PER_FRAME_MAX: usize = 512;

/// How many single evictions are collected in one `Revoke`. A client answers a frame as a whole, and
/// answering takes longer than unmapping a part. A larger group would delay the copy of its first part.
pub const REVOKE_GROUP_MAX: usize = 64;

/// How many parts of one operator's call, or of advice that ended, are started in one event, so that other
/// requests do not wait for all of them.
pub const PARTS_STARTED_PER_EVENT: usize = 512;

/// How many parts get a backing reserved in one event when bytes become free below their device.
pub const BACKINGS_PER_EVENT: usize = 512;

/// How many parts of each class of tenants one scan for cold parts visits.
pub const COLD_PARTS_SCANNED: usize = 1024;

/// The largest weight of a tenant; the smallest is 1.
pub const TENANT_WEIGHT_MAX: u32 = 10_000;

/// The weight of a tenant for which none is set.
pub const TENANT_WEIGHT_DEFAULT: u32 = 100;

/// How far ahead memory may be advised as needed.
pub const NEEDED_WITHIN_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// How many parts of a device are written back ahead of need at a time.
pub const WRITE_BACKS_AHEAD_MAX: usize = 16;

/// One of this many extents is not used for write-back ahead of need, so that requests find one.
pub const EXTENT_SPARE_DIVISOR: usize = 10;

/// How many parts of sessions in doubt are asked for in one event beyond those that waiters need.
pub const ASKED_AHEAD_MAX: usize = 256;

/// The most prefetch requests of one tenant that have not ended.
pub const PREFETCHES_PER_TENANT_MAX: usize = 16_384;

/// The next prefetch request of a device waits for the link while this many bytes go there before it. More would only
/// reserve room too early. Less would leave the link idle while the memory of a large part is created.
pub const PREFETCH_BYTES_UNDER_WAY: Bytes = Bytes::mib(512);

/// How long after parts may leave that could not before the daemon tries queued prefetch requests again.
pub const PREFETCH_RETRY: Duration = Duration::from_millis(2);

/// The most steps of a sequence, and the most ranges of all its steps.
pub const SEQUENCE_STEPS_MAX: usize = 2048;

/// The most parts of all steps of a sequence. A part counts once for each step that uses it.
pub const SEQUENCE_PARTS_MAX: usize = 65_536;

/// The most sequences of a session that have not ended.
pub const SEQUENCES_PER_SESSION_MAX: usize = 64;

/// The most parts of the sequences of a tenant, counted as in [`SEQUENCE_PARTS_MAX`].
pub const SEQUENCE_PARTS_PER_TENANT_MAX: usize = 16 * SEQUENCE_PARTS_MAX;

/// How many steps ahead of a sequence the daemon works at least, if they fit.
pub const SEQUENCE_AHEAD_MIN: u64 = 2;

/// How many steps ahead of a sequence the daemon works at most.
pub const SEQUENCE_AHEAD_MAX: u64 = 64;

/// The most working sets of a session.
pub const WORKING_SETS_PER_SESSION_MAX: usize = 64;

/// The most allocations of a working set.
pub const WORKING_SET_ALLOCATIONS_MAX: usize = 4096;

/// The most parts of all allocations of a working set.
pub const WORKING_SET_PARTS_MAX: usize = 16_384;

/// A tenant that begins to ask for turns is at most so many quanta behind the least served tenant of its class.
pub const TURN_DEBT_QUANTA: u32 = 10;

/// How many steps of a learnt order the daemon works ahead at most.
pub const SPECULATION_STEPS_MAX: usize = 8;

/// Of so many parts that were brought unasked, the daemon first judges whether it goes on with an allocation.
pub const SPECULATION_TRIAL: u32 = 8;

/// How much of what is brought unasked for an allocation may be wasted, in percent of the bytes.
pub const WASTE_PERCENT_MAX: u8 = 15;

/// The most parts that one `Pin`, one `Prefetch` or one step of a sequence names.
pub const PIN_PARTS_MAX: usize = 1024;

/// The most parts of one allocation. A table of them stays small beside the memory that it describes.
pub const PARTS_PER_ALLOCATION_MAX: usize = 65_536;

/// The largest part: one piece of physical memory, zeroed and copied as a whole.
pub const PART_SIZE_MAX: Bytes = Bytes::gib(16);

/// Bounds that the operator configures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub sessions_max: usize,
    pub sessions_per_tenant_max: usize,
    pub allocations_per_tenant_max: usize,
    pub parts_per_tenant_max: usize,
    /// Extents of the node. Each takes one descriptor of the daemon.
    pub extents_max: usize,
    pub batch_items_max: usize,
    pub readers_max: usize,
    /// Requests of clients that wait for the driver, a client or the disk. One more is refused. Operators have as many
    /// places of their own.
    pub pending_requests_max: usize,
    /// The same for one tenant. A sixteenth of it is there for the tenant even if others have taken all places of the
    /// node.
    pub pending_requests_per_tenant_max: usize,
    /// Descriptors sent and not answered. A silent session keeps its share until it is gone, since the
    /// packets in its socket can still be received.
    pub fds_in_flight_max: usize,
    pub fds_in_flight_per_tenant_max: usize,
    /// How long a client may take to answer a `Map`, or to map its word table, before its channel is closed.
    pub map_answer_timeout: Duration,
    /// How long a client may take to unmap memory that is freed, sealed or detached before its session
    /// becomes silent. Its program's pins may last that long. A fence waits as long for pins.
    pub revoke_answer_timeout: Duration,
    /// How long a client may go without unmapping any of the unpinned parts that it was told to unmap before
    /// its session becomes silent. Its program cannot delay that, and other sessions wait for it.
    pub unmap_answer_timeout: Duration,
    /// How long a session may stay silent before the daemon kills its process; zero means for ever.
    pub end_silent_after: Duration,
    /// Slots of a session's word table: one for each part that it maps or keeps to map again. At least 1.
    pub words_per_session_max: u32,
    /// Pin calls of one session that have not ended.
    pub pins_waiting_max: usize,
    /// All parts of these calls. Below [`PIN_PARTS_MAX`], some sets could never be pinned.
    pub pin_parts_waiting_max: usize,
    /// Prefetch requests of one session that have not ended.
    pub prefetches_per_session_max: usize,
    /// If requests have deadlines, the copy of the next prefetched part waits while this many bytes are copied to its
    /// device for requests. More would make an early deadline wait. Less than drivers have in flight would leave the
    /// link idle.
    pub prefetch_bytes_copied_max: Bytes,
    /// The most bytes that are on their way to a device unasked, by learnt orders; zero means none.
    pub speculation_bytes_max: Bytes,
    /// How long a pin call may wait only for sessions that wait themselves before it is aborted.
    pub pin_stall: Duration,
    /// How long a waiter that no eviction helps lets others pass before it holds its device for the first time; zero
    /// means that it always holds it.
    pub hold_after: Duration,
    /// How often the driver is asked to survey devices while memory is unreturned or other programs may come
    /// and go.
    pub survey_interval: Duration,
    /// The most bytes of freed memory that are cached for a tenant on each device; zero means none.
    pub cached_bytes_per_tenant_max: Bytes,
    /// How long an extent stays cached for a tenant that has no session.
    pub cached_for: Duration,
    /// How long an extent stays cached for a tenant that has a session, if no allocation reuses it.
    pub cached_idle_for: Duration,
    pub turns: TurnLimits,
}

/// How long turns last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnLimits {
    /// How long a client keeps its turn before it is asked to yield for another one.
    pub quantum: Duration,
    /// The same if a tenant of a higher class waits.
    pub min_quantum: Duration,
    /// How long a client may take to yield before its turn is reported as overdue.
    pub overdue_after: Duration,
    /// How long a client may take to yield before the daemon kills its process; zero means for ever.
    pub end_after: Duration,
}

impl Default for TurnLimits {
    fn default() -> Self {
        Self {
            quantum: Duration::from_secs(30),
            min_quantum: Duration::from_secs(1),
            overdue_after: Duration::from_secs(10),
            end_after: Duration::ZERO,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions_max: 4096,
            sessions_per_tenant_max: 1024,
            allocations_per_tenant_max: 1_000_000,
            parts_per_tenant_max: 4_000_000,
            extents_max: 700_000,
            batch_items_max: 4096,
            readers_max: 64,
            pending_requests_max: 1024,
            pending_requests_per_tenant_max: 256,
            fds_in_flight_max: 16_384,
            fds_in_flight_per_tenant_max: 2048,
            map_answer_timeout: Duration::from_secs(30),
            revoke_answer_timeout: Duration::from_secs(10),
            unmap_answer_timeout: Duration::from_secs(1),
            end_silent_after: Duration::ZERO,
            words_per_session_max: 65_536,
            pins_waiting_max: 256,
            pin_parts_waiting_max: 16_384,
            prefetches_per_session_max: 4096,
            prefetch_bytes_copied_max: Bytes::mib(64),
            speculation_bytes_max: Bytes::mib(256),
            pin_stall: Duration::from_secs(1),
            hold_after: Duration::from_secs(1),
            survey_interval: Duration::from_secs(5),
            cached_bytes_per_tenant_max: Bytes::ZERO,
            cached_for: Duration::from_secs(60),
            cached_idle_for: Duration::from_secs(300),
            turns: TurnLimits::default(),
        }
    }
}
