//! Commands: what the shell has to do. It executes them in the order in which they were queued.

use std::{fmt, sync::Arc, time::Duration};

use vramd_types::{
    AllocationId, Bytes, CopyClass, DeviceIndex, ExtentId, PartIndex, Quantity, SessionId, Shares,
};

use crate::{
    error::Refusal,
    event::{Advice, CallId, ChannelId, FileId, Kind, PartRef, PartSpan, Retention, Slot, Tier},
    eviction::EvictionReason,
    moves::Cause,
    placement::PlacementSum,
    prefetch::{PrefetchState, SpeculationEnd},
    pressure::{Pressure, PressureNote},
    sequence::SequenceState,
    settings::Settings,
    tenancy::Standing,
    time::Time,
    turns::{TurnEnd, TurnState},
    view::{AllocationView, QuotaView, StandingSource, StoredQuotas, TenantView},
};

#[derive(Clone, Debug)]
pub enum Command {
    /// Answers one request. The shell gets the answer even if the caller has left.
    Reply { call: CallId, outcome: Result<Reply, Refusal> },
    /// Queues a frame on a channel that has not ended.
    Send { channel: ChannelId, frame: DaemonFrame },
    /// Closes a channel after the queued frames were sent. An event reports its end.
    CloseChannel { channel: ChannelId },
    /// Stops watching the process behind this channel.
    ForgetProcess { channel: ChannelId },
    /// Kills the process behind a channel.
    KillProcess { channel: ChannelId },
    /// Creates memory that is not exported yet. In a tier below the device it is memory near that device.
    /// Memory that need not be zeroed is overwritten whole before any session maps it.
    CreateExtent { extent: ExtentId, device: DeviceIndex, tier: Tier, size: Bytes, kind: Kind, zeroed: bool },
    /// Opens a piece of a file as an extent. Bytes behind the end of the file, up to the size of the extent,
    /// are zeros. The extent is never written. Its content must not change after the first read.
    OpenExtent { extent: ExtentId, file: FileId, offset: Bytes, bytes: Bytes, size: Bytes },
    /// Sets the share of a link that each class of copies gets from now on.
    ShareLinks(Shares),
    /// Copies the first bytes of one extent to another. Until the answer, neither end is released or mapped,
    /// except that a part that stays in `from` may be mapped; bytes written meanwhile may be copied or not.
    /// With `compare_first` the destination should already have the bytes: the driver compares, and copies
    /// only if they differ.
    Copy { from: ExtentId, to: ExtentId, bytes: Bytes, compare_first: bool, class: CopyClass },
    /// Raises the copy to demand: a client waits for it now.
    HastenCopy { to: ExtentId },
    /// Cancels a copy. It is still answered, as done or as failed.
    CancelCopy { to: ExtentId },
    /// Releases memory that no session maps, as far as the broker knows.
    ReleaseExtent { extent: ExtentId },
    /// Releases at once what the driver has deferred on this device, because a client waits for the room.
    ReleaseNow { device: DeviceIndex },
    /// Hashes these spans in order.
    Digest { allocation: AllocationId, spans: Vec<DigestSpan> },
    /// Sets REVOKE in the words of all these sessions for one part, unless one of them pins the part: then in
    /// none. A word whose client is unmapping on its own is skipped.
    RevokeWords { part: PartRef, words: Vec<(ChannelId, SessionId, Slot)> },
    /// Clears WRITTEN in the word of an unpinned part in one atomic step, so that any later write sets it
    /// again.
    ClearWritten { part: PartRef, channel: ChannelId, session: SessionId, slot: Slot },
    /// Collects the WRITTEN bit of a slot whose part is gone from the session, before the slot serves another
    /// part.
    ForgetWord { channel: ChannelId, slot: Slot },
    /// Surveys a device: which other programs hold its memory, and whether unreturned extents are back.
    /// `clients` are the processes of the sessions that see the device.
    Survey { device: DeviceIndex, clients: Vec<u32> },
    /// Writes all stored quotas to disk, one write at a time.
    StoreQuotas(StoredQuotas),
    /// Reports what happened, for the log and for watches.
    Notice(Notice),
}

/// The answer to a request. Large views are boxed, since every command is as large as the largest.
#[derive(Clone, Debug)]
pub enum Reply {
    Allocated(Vec<AllocationView>),
    /// Answers `FreeBatch` and `Detach`, in the order of the ids.
    Released(Vec<(AllocationId, Result<Released, Refusal>)>),
    Attached(Box<AllocationView>),
    Sealed(Box<AllocationView>),
    Advised(Box<AllocationView>),
    QuotaSet(Box<QuotaView>),
    QuotaDeleted,
    /// Answers `SetTenant` and `ResetTenant`.
    TenantChanged(Box<TenantView>),
    SessionEnded {
        gone: bool,
        still_mapped: Bytes,
    },
    AllocationFreed {
        allocation: AllocationId,
        still_charged: Bytes,
        mappers: Vec<SessionId>,
    },
    MappingsRevoked {
        allocation: AllocationId,
        parts: Vec<(PartIndex, PartRevocation)>,
    },
    PartsMoved {
        allocation: AllocationId,
        parts: Vec<(PartIndex, PartMove)>,
    },
    /// The operator hold was set or ended.
    PartsHeld {
        allocation: AllocationId,
        parts: Vec<PartIndex>,
    },
    WaitCancelled,
    PrefetchCancelled,
    /// The owner of the turn was asked to yield.
    TurnAsked,
    /// The settings in force.
    SettingsChanged(Box<Settings>),
    Drained {
        draining: bool,
        sessions: usize,
        charged: Bytes,
    },
}

/// The rest of an allocation after it was freed or detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// Bytes that stay charged because a session maps them or a process keeps them open.
    pub still_charged: Bytes,
    /// How many sessions map it.
    pub mappers: usize,
}

/// The outcome of revoking the mappings of one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartRevocation {
    /// No session maps it now.
    Revoked,
    /// Sessions pin it. A session that was told to unmap it does so when its pins end.
    Pinned { by: Vec<SessionId> },
    /// These sessions map it and do not answer.
    Silent { by: Vec<SessionId> },
    /// These sessions map it without pins support, so the daemon cannot ask them.
    Standing { by: Vec<SessionId> },
}

/// The outcome of moving one part to another tier.
#[derive(Clone, Debug)]
pub enum PartMove {
    /// The part is in the tier.
    Moved,
    /// Sessions pin it.
    Pinned { by: Vec<SessionId> },
    /// These sessions map it and do not answer.
    Silent { by: Vec<SessionId> },
    /// These sessions map it without pins support, so the daemon cannot ask them.
    Standing { by: Vec<SessionId> },
    /// A session pinned it where it is, or an operator had it moved the other way.
    Wanted,
    /// An operator hold keeps it on its device.
    Held,
    /// The part was freed.
    Freed,
    /// The tier has no room, the tenant is at its limit, or the driver could create no memory.
    Refused { refusal: Box<Refusal> },
    /// The copy failed; the part stays where it was.
    Failed { problem: String },
}

#[derive(Clone, Debug)]
pub enum DaemonFrame {
    Welcome {
        session: SessionId,
        tenant: String,
        devices: Vec<DeviceIndex>,
        /// The number of slots of the session's word table; 0 without pins.
        slots: u32,
    },
    /// The daemon closes the channel after this frame.
    Refused(Refusal),
    /// At most [`crate::limits::FDS_PER_PACKET_MAX`] parts, each with the descriptor of its extent.
    Map(Vec<MapPart>),
    /// At most [`crate::limits::PARTS_PER_FRAME_MAX`] parts. The shell sets REVOKE in words that do not have
    /// it yet, then sends the frame.
    Revoke {
        parts: Vec<RevokedPart>,
        reason: RevokeReason,
    },
    /// A part that the session waits for does not arrive: its content on disk is not what was written there.
    /// The session keeps it, and its next `Pin` tries again.
    Lost(PartRef),
    /// Answers `Pin`. Without a refusal, all parts of the set are mapped and none is revoked before
    /// `PinEnded`.
    PinAnswer {
        call: u64,
        refusal: Option<Refusal>,
    },
    /// How far a prefetch request of the session is.
    Prefetch {
        number: u64,
        state: PrefetchState,
    },
    /// How far ahead of a sequence of the session the daemon works.
    Sequence {
        number: u64,
        state: SequenceState,
    },
    /// Answers `WorkingSet`.
    WorkingSet {
        number: u64,
        refusal: Option<Refusal>,
    },
    /// How a turn of the session stands.
    Turn {
        turn: u64,
        state: TurnState,
    },
    /// Orders for managed memory of the session, at most [`crate::limits::MANAGED_ORDERS_PER_FRAME_MAX`]. The client
    /// executes all of them, and answers by `ManagedOrdersDone` with the number.
    ManagedOrders {
        number: u64,
        orders: Vec<ManagedOrder>,
    },
    Drain {
        draining: bool,
    },
    /// A report of pressure, for sessions that asked for reports. Only the last one per device and tier
    /// counts.
    Pressure(PressureNote),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapPart {
    pub part: PartRef,
    pub extent: ExtentId,
    pub device: DeviceIndex,
    pub offset: Bytes,
    pub size: Bytes,
    /// The size of the whole span of the allocation.
    pub span: Bytes,
    pub writable: bool,
    /// Only in a session with pins.
    pub slot: Option<Slot>,
    /// How often the part was dropped since it was allocated.
    pub drop_count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RevokedPart {
    pub part: PartRef,
    /// Only in a session with pins.
    pub slot: Option<Slot>,
}

/// The client is to move all pages of a managed allocation to its device, or to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagedOrder {
    pub allocation: AllocationId,
    pub to: Tier,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevokeReason {
    Freed,
    Detached,
    Sealing,
    SessionEnded,
    /// Evicted: the session keeps its slot, and its next `Pin` maps the part again.
    Evicted,
}

/// The first `bytes` of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestSpan {
    pub extent: ExtentId,
    pub bytes: Bytes,
}

/// A notice of what happened, for the log and for watches. It changes nothing and nothing waits for it. Names
/// in it are shared, since the core creates notices whether or not a watch exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    SessionOpened {
        session: SessionId,
        tenant: Arc<str>,
        pid: u32,
    },
    SessionSilent {
        session: SessionId,
        tenant: Arc<str>,
        reason: String,
    },
    /// The daemon kills the session's process because it was silent for too long.
    SessionKilled {
        session: SessionId,
        tenant: Arc<str>,
        reason: String,
    },
    SessionAnswered {
        session: SessionId,
        tenant: Arc<str>,
    },
    SessionGone {
        session: SessionId,
        tenant: Arc<str>,
    },
    /// A whole request or a hello was refused. A refused item of a batch is reported only to its sender.
    Refused {
        by: Caller,
        /// The method's name in the protocol.
        request: &'static str,
        refusal: Refusal,
    },
    QuotaSet {
        tenant: Arc<str>,
        /// UUID, or `*` for all devices.
        device: String,
        tier: Tier,
        guarantee: Quantity,
        limit: Quantity,
    },
    QuotaDeleted {
        tenant: Arc<str>,
        device: String,
        tier: Tier,
    },
    /// An operator set the class or the weight of a tenant or whether its advice counts, or had it follow the
    /// configuration again.
    TenantChanged {
        tenant: Arc<str>,
        standing: Standing,
        source: StandingSource,
    },
    /// An operator changed the settings until the daemon ends.
    SettingsChanged {
        uid: u32,
        before: Box<Settings>,
        after: Box<Settings>,
    },
    /// The allocation's memory exists, and its session is about to be sent it.
    AllocationMade {
        allocation: AllocationId,
        tenant: Arc<str>,
        session: Option<SessionId>,
        bytes: Bytes,
    },
    /// The owner gave advice about its use. `OperatorAdvised` is about operators.
    Advised {
        allocation: AllocationId,
        tenant: Arc<str>,
        advice: Advice,
    },
    /// An operator gave advice for parts over what the owner says, or cleared it.
    OperatorAdvised {
        allocation: AllocationId,
        tenant: Arc<str>,
        parts: PartSpan,
        change: Option<Retention>,
    },
    AllocationSealed {
        allocation: AllocationId,
        tenant: Arc<str>,
    },
    /// An operator set or ended the hold on this number of parts.
    PartsHeld {
        allocation: AllocationId,
        tenant: Arc<str>,
        parts: usize,
        hold: bool,
    },
    /// The allocation was freed: no session can attach it any longer.
    AllocationFreed {
        allocation: AllocationId,
        tenant: Arc<str>,
    },
    /// No byte of the freed allocation is charged any longer.
    AllocationGone {
        allocation: AllocationId,
        tenant: Arc<str>,
    },
    /// The daemon told a session to unmap parts of one allocation.
    RevokeSent {
        session: SessionId,
        tenant: Arc<str>,
        allocation: AllocationId,
        parts: usize,
        reason: RevokeReason,
    },
    /// The session unmapped parts that it was told to unmap.
    RevokeAnswered {
        session: SessionId,
        tenant: Arc<str>,
        allocation: AllocationId,
        parts: usize,
    },
    /// The session did not unmap them in time.
    RevokeOverdue {
        session: SessionId,
        tenant: Arc<str>,
        parts: usize,
    },
    /// The node began or ended draining.
    Draining {
        draining: bool,
    },
    /// A client could not map a part that it was sent.
    MapFailed {
        session: SessionId,
        tenant: Arc<str>,
        part: PartRef,
        problem: String,
    },
    /// A part was chosen to leave its device, and begins to.
    VictimChosen {
        part: PartRef,
        cause: Cause,
        reason: EvictionReason,
    },
    /// All mappers were told to unmap a part that no session pinned.
    Evicted {
        part: PartRef,
        /// The number of mappers.
        mappers: usize,
    },
    /// A pin call waited only for sessions that wait themselves, and was aborted.
    PinStalled {
        session: SessionId,
        call: u64,
    },
    /// Memory was released, and a process outside the broker's reach still has it open.
    Unreturned {
        extent: ExtentId,
        bytes: Bytes,
    },
    Returned {
        extent: ExtentId,
        bytes: Bytes,
    },
    /// Managed memory is charged, and its client may allocate it.
    ManagedCharged {
        allocation: AllocationId,
        session: SessionId,
        device: DeviceIndex,
        bytes: Bytes,
    },
    /// Managed memory is ordered to its device or to the host. Its client is told, and executes the order.
    ManagedOrdered {
        allocation: AllocationId,
        session: SessionId,
        to: Tier,
    },
    /// The client has executed an order for managed memory, or could not, for this reason.
    ManagedOrderEnded {
        allocation: AllocationId,
        session: SessionId,
        tenant: Arc<str>,
        to: Tier,
        problem: Option<String>,
    },
    /// A freed extent is cached for its tenant.
    Cached {
        extent: ExtentId,
        bytes: Bytes,
    },
    /// A cached extent backs a part of the tenant's new allocation.
    Reused {
        extent: ExtentId,
        part: PartRef,
    },
    /// A cached extent goes back to the driver.
    GivenUp {
        extent: ExtentId,
        bytes: Bytes,
    },
    /// A waiter left the line.
    WaitEnded {
        waiter: WaiterKind,
        since: Time,
        end: WaitEnd,
    },
    /// A pin call that waited for a part elsewhere waits no longer.
    PinWaited {
        tenant: Arc<str>,
        session: SessionId,
        call: u64,
        since: Time,
        end: WaitEnd,
    },
    /// All cached extents that a request waits for have been released: the request is tried again.
    RoomMade {
        tenant: Option<String>,
    },
    /// A part moved to another tier.
    Moved {
        part: PartRef,
        tenant: Arc<str>,
        device: DeviceIndex,
        from: Tier,
        tier: Tier,
        bytes: Bytes,
        cause: Cause,
        began: Time,
        /// False if the backing was clean, or if the part was dropped.
        copied: bool,
        /// The sum by which it moved to its device instead of being read where it lay, if there was one.
        sum: Option<PlacementSum>,
        /// Parts that wait for the room that it left.
        for_parts: Vec<PartRef>,
    },
    /// A part was written back while it stayed on its device.
    WrittenBack {
        part: PartRef,
        tenant: Arc<str>,
        device: DeviceIndex,
        tier: Tier,
        bytes: Bytes,
        began: Time,
        /// No write since the copy is known, so the part can leave without a copy.
        clean: bool,
    },
    /// A part without backing has one reserved now, so it can be evicted.
    Backed {
        part: PartRef,
        tenant: Arc<str>,
        device: DeviceIndex,
        tier: Tier,
        bytes: Bytes,
    },
    /// A part that counted as clean differs from its backing, so a session wrote it outside its pins. It is
    /// copied.
    CleanBackingDiffers {
        part: PartRef,
        tenant: Arc<str>,
        device: DeviceIndex,
        tier: Tier,
        bytes: Bytes,
    },
    /// A discardable part left its device without a copy. It lies nowhere until new memory is created for it.
    Dropped {
        part: PartRef,
        tenant: Arc<str>,
        device: DeviceIndex,
        tier: Tier,
        bytes: Bytes,
        cause: Cause,
        began: Time,
        /// Parts that wait for the room that it left.
        for_parts: Vec<PartRef>,
    },
    /// A move failed and the part stays where it was: no memory could be created for it, or the copy failed.
    MoveFailed {
        part: PartRef,
        tenant: Arc<str>,
        device: DeviceIndex,
        from: Tier,
        tier: Tier,
        bytes: Bytes,
        cause: Cause,
        began: Time,
        problem: String,
    },
    /// A move was stopped without a fault: a session wants the part where it is or uses it, or it was freed.
    MoveStopped {
        part: PartRef,
        tenant: Arc<str>,
        device: DeviceIndex,
        from: Tier,
        tier: Tier,
        bytes: Bytes,
        cause: Cause,
        began: Time,
    },
    /// A prefetch request has all its parts, or will not have them. A ready one may still be dropped.
    PrefetchEnded {
        session: SessionId,
        number: u64,
        tenant: Arc<str>,
        device: DeviceIndex,
        /// All its parts together.
        bytes: Bytes,
        since: Time,
        end: PrefetchEnd,
        /// Of a dropped one.
        loss: Option<PrefetchLoss>,
    },
    /// A session used a prefetched part for the first time.
    PrefetchUsed {
        tenant: Arc<str>,
        bytes: Bytes,
        /// How long the request had been ready.
        lead: Duration,
    },
    /// A turn is admitted, and the hand-over begins: the parts of its set come to the device.
    TurnAdmitted {
        session: SessionId,
        turn: u64,
        tenant: Arc<str>,
        device: DeviceIndex,
        set: Arc<str>,
        bytes: Bytes,
        /// When the client requested it.
        since: Time,
    },
    /// The hand-over is over: all parts of the set are there, and its client has the turn.
    TurnGranted {
        session: SessionId,
        turn: u64,
        tenant: Arc<str>,
        device: DeviceIndex,
        set: Arc<str>,
        bytes: Bytes,
        /// When the client requested it.
        since: Time,
        admitted: Time,
    },
    /// The client was asked to yield.
    TurnEnding {
        session: SessionId,
        tenant: Arc<str>,
        device: DeviceIndex,
        set: Arc<str>,
        by_operator: bool,
    },
    /// The client did not yield in time.
    TurnOverdue {
        session: SessionId,
        tenant: Arc<str>,
        device: DeviceIndex,
        set: Arc<str>,
        /// When it was asked to.
        asked: Time,
    },
    /// A granted turn has ended.
    TurnEnded {
        session: SessionId,
        turn: u64,
        tenant: Arc<str>,
        device: DeviceIndex,
        set: Arc<str>,
        granted: Time,
        end: TurnEnd,
    },
    /// A part in host memory that a session wants is read there, or moves to its device. The sum says why.
    PlacementChosen {
        part: PartRef,
        tenant: Arc<str>,
        sum: PlacementSum,
        in_place: bool,
    },
    /// A part that was read in host memory is not to be read there any longer: it moves with its next pin, if that pays.
    ReadInPlaceEnded {
        part: PartRef,
    },
    /// A session used a part that was brought unasked, or the part was brought in vain.
    SpeculationEnded {
        part: PartRef,
        /// The tenant of the session that it was brought for.
        tenant: Arc<str>,
        bytes: Bytes,
        end: SpeculationEnd,
    },
    CreateFailed {
        extent: ExtentId,
        problem: String,
    },
    /// The driver is asked again for memory that it did not have, because memory of the device was released.
    CreateRetried {
        device: DeviceIndex,
    },
    Unbrokered {
        device: DeviceIndex,
        bytes: Bytes,
    },
    /// The capacity of a place does not cover what is guaranteed and charged there.
    Shortfall {
        device: DeviceIndex,
        tier: Tier,
        bytes: Bytes,
    },
    /// The level of pressure of a place changed.
    PressureChanged {
        device: DeviceIndex,
        tier: Tier,
        from: Pressure,
        to: Pressure,
        charged: Bytes,
        capacity: Bytes,
    },
    InvariantBroken {
        invariant: &'static str,
        detail: String,
    },
}

/// The kind of a waiter in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaiterKind {
    /// A part that a client wants on its device.
    Part,
    /// An `AllocateBatch`.
    Batch,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitEnd {
    /// The waiter got what it waited for.
    Served,
    Refused,
    /// An operator or its client cancelled it.
    Cancelled,
    /// No client wants it any longer.
    Left,
}

/// How a prefetch request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PrefetchEnd {
    /// All parts were there in time.
    Ready,
    /// All parts were there after the deadline.
    Late,
    /// A part left its device again before any session used it.
    Dropped,
    Cancelled,
    /// It was refused after it had been taken, or a fetch failed.
    Failed,
    /// The program passed the step of its sequence without a use of these parts.
    Wasted,
}

/// Why a part left that a prefetch request had brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefetchLoss {
    pub cause: Cause,
    /// The tenant that waited for its room, if one did.
    pub tenant: Option<Arc<str>>,
}

/// The caller whose request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    Session {
        session: SessionId,
        tenant: Arc<str>,
    },
    Operator {
        uid: u32,
    },
    /// A process that tried to open a session.
    Process {
        tenant: String,
        pid: u32,
    },
    /// A process that named a session of another process, or one that does not exist.
    ForeignProcess {
        session: SessionId,
        pid: u32,
    },
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session { session, tenant } => write!(f, "{session} of {tenant}"),
            Self::Operator { uid } => write!(f, "operator {uid}"),
            Self::Process { tenant, pid } => write!(f, "process {pid} of {tenant}"),
            Self::ForeignProcess { session, pid } => write!(f, "process {pid} in the name of {session}"),
        }
    }
}
