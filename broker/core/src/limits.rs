//! Every bound of the core in one place. Everything that can grow has one.

use std::time::Duration;

use vramd_types::Bytes;

/// How many request ids a session, or an operator's uid, can repeat: the last so many are remembered.
pub const REQUESTS_REMEMBERED: usize = 1024;

/// So many files of one tenant are read at once, until what they are loaded as is sealed: as many as a node has devices, twice.
pub const FILE_LOADS_PER_TENANT_MAX: usize = 16;

/// Most file descriptors in one packet. The kernel takes 253.
pub const FDS_PER_PACKET_MAX: usize = 128;

/// Most parts that one `Revoke` names.
pub const PARTS_PER_FRAME_MAX: usize = 1024;

/// So many parts that leave one by one are told in one `Revoke`: a client answers a frame as a whole, and answering takes longer than
/// unmapping a part. What has left early is copied early, though, so there are not more.
pub const REVOKE_GROUP_MAX: usize = 64;

/// So many parts of an operator's call are begun with in one event, or of what is not to be accessed in place any more: however many
/// they are, nobody else waits for all.
pub const PARTS_STARTED_PER_EVENT: usize = 512;

/// So many parts get bytes set aside below their device in one event, when some come free there.
pub const BACKINGS_PER_EVENT: usize = 512;

/// So many parts are looked at each time for what nobody has used for long.
pub const COLD_PARTS_SCANNED: usize = 1024;

/// So many parts of a device are copied ahead of need at a time.
pub const WRITE_BACKS_AHEAD_MAX: usize = 16;

/// Of so many extents one is not made for what is copied ahead of need: it is left to who asks for one.
pub const EXTENT_SPARE_DIVISOR: usize = 10;

/// Most parts that one `Pin` names.
pub const PIN_PARTS_MAX: usize = 1024;

/// Most parts of one allocation: a table of them stays small beside the memory it describes.
pub const PARTS_PER_ALLOCATION_MAX: usize = 65_536;

/// Largest part: one piece of physical memory, zeroed and copied as a whole.
pub const PART_SIZE_MAX: Bytes = Bytes::gib(16);

/// Bounds that the operator sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub sessions_max: usize,
    pub sessions_per_tenant_max: usize,
    pub allocations_per_tenant_max: usize,
    pub parts_per_tenant_max: usize,
    /// Extents of the node: each is a descriptor of the daemon.
    pub extents_max: usize,
    pub batch_items_max: usize,
    pub readers_max: usize,
    /// Requests that wait for the driver, a client or the disk; one more is refused.
    pub pending_requests_max: usize,
    /// Of these, one tenant's: who lets its own requests hang keeps nobody else from being heard.
    pub pending_requests_per_tenant_max: usize,
    /// Descriptors sent and not answered. A session that went silent keeps its share until it is gone, since what lies
    /// in its socket can still be received.
    pub fds_in_flight_max: usize,
    pub fds_in_flight_per_tenant_max: usize,
    /// A session that has not answered a `Map`, or mapped its word table, by then loses its channel.
    pub map_answer_timeout: Duration,
    /// A session that has not let go by then of what was freed, or is to be sealed or detached, is silent until it does:
    /// its program's pins may last. So long a fence waits for pins.
    pub revoke_answer_timeout: Duration,
    /// A session that owes the unmapping of what nobody pins, and has unmapped nothing of it for so long, is silent until it does:
    /// nothing that its program does holds it up, and others wait.
    pub unmap_answer_timeout: Duration,
    /// The process of a session that is silent for so long is killed; zero is never.
    pub end_silent_after: Duration,
    /// Slots of a session's word table: parts that it maps, or keeps to map again. At least 1.
    pub words_per_session_max: u32,
    /// Pin calls of one session that have not ended.
    pub pins_waiting_max: usize,
    /// Parts of these, in all. Below [`PIN_PARTS_MAX`] some sets could never be pinned.
    pub pin_parts_waiting_max: usize,
    /// A pin call that waits so long for sessions that all wait themselves is aborted.
    pub pin_stall: Duration,
    /// How often the driver is asked who holds what, while memory is unreturned or outsiders may come and go.
    pub survey_interval: Duration,
    /// Freed memory that a tenant keeps on each device for its next allocations; zero is none.
    pub cached_bytes_per_tenant_max: Bytes,
    /// How long it is kept for a tenant that has no session.
    pub cached_for: Duration,
    /// How long it is kept for one that has, if nothing of it is used again.
    pub cached_idle_for: Duration,
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
            pin_stall: Duration::from_secs(1),
            survey_interval: Duration::from_secs(5),
            cached_bytes_per_tenant_max: Bytes::ZERO,
            cached_for: Duration::from_secs(60),
            cached_idle_for: Duration::from_secs(300),
        }
    }
}
