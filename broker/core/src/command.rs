//! What the broker wants done. The shell executes commands in the order in which they were queued.

use std::{fmt, sync::Arc};

use vramd_types::{
    AllocationId, Bytes, CopyClass, DeviceIndex, ExtentId, PartIndex, Quantity, SessionId, Shares,
};

use crate::{
    error::Refusal,
    event::{Advice, CallId, ChannelId, FileId, Kind, PartRef, Slot, Tier},
    migration::Cause,
    pressure::{Pressure, PressureNote},
    settings::Settings,
    time::Time,
    view::{AllocationView, QuotaView, StoredQuotas},
};

#[derive(Clone, Debug)]
pub enum Command {
    /// Answers one request. A call whose caller has left is answered all the same.
    Reply { call: CallId, outcome: Result<Reply, Refusal> },
    /// Queues a frame on a channel that has not ended.
    Send { channel: ChannelId, frame: DaemonFrame },
    /// Ends a channel after what was queued on it. Its end is reported as an event.
    CloseChannel { channel: ChannelId },
    /// The process behind this channel is of no interest any more.
    ForgetProcess { channel: ChannelId },
    /// Kills the process behind a channel.
    KillProcess { channel: ChannelId },
    /// Makes memory, not exported to anybody yet. In another tier than the device's it is the device's neighbour. What need
    /// not be zeroed is written as a whole before anybody sees it.
    CreateExtent { extent: ExtentId, device: DeviceIndex, tier: Tier, size: Bytes, kind: Kind, zeroed: bool },
    /// Makes an extent that is a piece of a file: what is behind its end, up to the size of the extent, is zeros. It is never
    /// written. What it holds from when it is first read on, it is to hold for ever.
    OpenExtent { extent: ExtentId, file: FileId, offset: Bytes, bytes: Bytes, size: Bytes },
    /// What each class of copies has of a link from now on.
    ShareLinks(Shares),
    /// Copies the first bytes of one extent to another; neither is released until it is answered, nor mapped by anybody, but
    /// where the part stays in the first: what is written there meanwhile may be copied or not. A shadow should hold them
    /// already: they are compared, and copied only if they differ.
    Copy { from: ExtentId, to: ExtentId, bytes: Bytes, compare_first: bool, class: CopyClass },
    /// Somebody waits for the copy now.
    HastenCopy { to: ExtentId },
    /// A copy is of no use any more. It is answered all the same, as done or as failed.
    CancelCopy { to: ExtentId },
    /// Ends the broker's own hold on memory that nobody maps by its knowledge.
    ReleaseExtent { extent: ExtentId },
    /// Somebody waits for what was released on this device: a driver that takes its time over that is to do it now.
    ReleaseNow { device: DeviceIndex },
    /// Hashes these bytes, one after the other.
    Digest { allocation: AllocationId, spans: Vec<DigestSpan> },
    /// Sets REVOKE in the words of all these sessions for one part, unless one of them is pinned: then in none. A word
    /// whose client is unmapping on its own is passed over.
    RevokeWords { part: PartRef, words: Vec<(ChannelId, SessionId, Slot)> },
    /// Clears WRITTEN in the word of a part that nobody pins, in one step, so that whoever writes it from then on says so.
    ClearWritten { part: PartRef, channel: ChannelId, session: SessionId, slot: Slot },
    /// The part in this slot is gone from the session: what its word says of writes is collected before the slot serves
    /// another part.
    ForgetWord { channel: ChannelId, slot: Slot },
    /// Asks who holds memory of a device besides the broker, and whether unreturned extents are back.
    /// `clients` are the processes of its sessions that see the device.
    Survey { device: DeviceIndex, clients: Vec<u32> },
    /// Puts all stored quotas on disk; one at a time.
    StoreQuotas(StoredQuotas),
    /// Something that an operator should be able to read, in the log or as it happens.
    Notice(Notice),
}

/// Large views are boxed: every command is as large as the largest.
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
    /// They are held, or let go.
    PartsHeld {
        allocation: AllocationId,
        parts: Vec<PartIndex>,
    },
    WaitCancelled,
    /// What holds now.
    SettingsChanged(Box<Settings>),
    Drained {
        draining: bool,
        sessions: usize,
        charged: Bytes,
    },
}

/// What is left of an allocation after it was freed or detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// Charged still, because somebody maps it or holds it.
    pub still_charged: Bytes,
    /// How many sessions map it.
    pub mappers: usize,
}

/// What came of revoking the mappings of one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartRevocation {
    /// Nobody maps it now.
    Revoked,
    /// In use. Who was told to unmap it does so when its pins end.
    Pinned { by: Vec<SessionId> },
    /// These map it and do not answer.
    Silent { by: Vec<SessionId> },
    /// These map it without pins, so they were not asked.
    Standing { by: Vec<SessionId> },
}

/// What came of moving one part to another tier.
#[derive(Clone, Debug)]
pub enum PartMove {
    /// It is there.
    Moved,
    /// In use.
    Pinned { by: Vec<SessionId> },
    /// These map it and do not answer.
    Silent { by: Vec<SessionId> },
    /// These map it without pins, so they were not asked.
    Standing { by: Vec<SessionId> },
    /// It was wanted where it is: somebody pinned it, or had it moved the other way.
    Wanted,
    /// An operator holds it where it is.
    Held,
    /// It was freed.
    Freed,
    /// There is no room, or none for its tenant; or the driver could make none.
    Refused { refusal: Box<Refusal> },
    /// The copy failed; the part is where it was.
    Failed { problem: String },
}

#[derive(Clone, Debug)]
pub enum DaemonFrame {
    Welcome {
        session: SessionId,
        tenant: String,
        devices: Vec<DeviceIndex>,
        /// How many slots its word table has; 0 without pins.
        slots: u32,
    },
    /// The channel is closed after this.
    Refused(Refusal),
    /// At most [`crate::limits::FDS_PER_PACKET_MAX`] parts, each with the descriptor of its extent.
    Map(Vec<MapPart>),
    /// At most [`crate::limits::PARTS_PER_FRAME_MAX`] parts. REVOKE is set in those of their words that do not carry it
    /// yet, and then the frame is sent.
    Revoke {
        parts: Vec<RevokedPart>,
        reason: RevokeReason,
    },
    /// A part that the session was to be sent does not come: what lies on disk is not what was written there. It stays the session's,
    /// and the next `Pin` tries again.
    Lost(PartRef),
    /// Answers `Pin`: without a refusal all of the set are mapped, and none is revoked before `PinEnded`.
    PinAnswer {
        call: u64,
        refusal: Option<Refusal>,
    },
    Drain {
        draining: bool,
    },
    /// To sessions that said they speak it. Only the last one of a device and tier counts.
    Pressure(PressureNote),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapPart {
    pub part: PartRef,
    pub extent: ExtentId,
    pub device: DeviceIndex,
    pub offset: Bytes,
    pub size: Bytes,
    /// Of all parts of the allocation together.
    pub span: Bytes,
    pub writable: bool,
    /// With pins.
    pub slot: Option<Slot>,
    /// How often its content was given up since it was allocated.
    pub drop_count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RevokedPart {
    pub part: PartRef,
    /// With pins.
    pub slot: Option<Slot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevokeReason {
    Freed,
    Detached,
    Sealing,
    SessionEnded,
    /// The session keeps it, and a `Pin` brings it back.
    Evicted,
}

/// The first `bytes` of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestSpan {
    pub extent: ExtentId,
    pub bytes: Bytes,
}

/// Told as it happens: to the log, and to those who watch. It changes nothing and nothing waits for it; it is made
/// whether anybody looks or not, so names in it are shared.
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
    /// It was silent for too long.
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
    /// A request was refused as a whole, or a hello. Refused items of a batch are told to who sent it.
    Refused {
        by: Caller,
        /// The method of the protocol.
        request: &'static str,
        refusal: Refusal,
    },
    QuotaSet {
        tenant: Arc<str>,
        /// UUID, or `*`.
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
    /// An operator has changed what holds until the daemon ends.
    SettingsChanged {
        uid: u32,
        before: Box<Settings>,
        after: Box<Settings>,
    },
    /// Its memory is there, and its session is about to be sent it.
    AllocationMade {
        allocation: AllocationId,
        tenant: Arc<str>,
        session: Option<SessionId>,
        bytes: Bytes,
    },
    /// Its owner has said how it is used.
    Advised {
        allocation: AllocationId,
        tenant: Arc<str>,
        advice: Advice,
    },
    AllocationSealed {
        allocation: AllocationId,
        tenant: Arc<str>,
    },
    /// An operator holds so many parts more, or lets them go.
    PartsHeld {
        allocation: AllocationId,
        tenant: Arc<str>,
        parts: usize,
        hold: bool,
    },
    /// Nobody can attach it any more.
    AllocationFreed {
        allocation: AllocationId,
        tenant: Arc<str>,
    },
    /// Nothing of a freed allocation is charged any more.
    AllocationGone {
        allocation: AllocationId,
        tenant: Arc<str>,
    },
    /// A session was told to unmap parts of one allocation.
    RevokeSent {
        session: SessionId,
        tenant: Arc<str>,
        allocation: AllocationId,
        parts: usize,
        reason: RevokeReason,
    },
    /// It has unmapped parts that it was told to.
    RevokeAnswered {
        session: SessionId,
        tenant: Arc<str>,
        allocation: AllocationId,
        parts: usize,
    },
    /// It has not in time.
    RevokeOverdue {
        session: SessionId,
        tenant: Arc<str>,
        parts: usize,
    },
    /// The node was taken out of service, or put back.
    Draining {
        draining: bool,
    },
    /// A client could not map what it was sent.
    MapFailed {
        session: SessionId,
        tenant: Arc<str>,
        part: PartRef,
        problem: String,
    },
    /// Everybody was told to unmap a part that nobody pinned.
    Evicted {
        part: PartRef,
        /// How many mapped it.
        mappers: usize,
    },
    /// A pin call waited for sessions that all waited themselves, and was aborted.
    PinStalled {
        session: SessionId,
        call: u64,
    },
    /// Memory was released, and some process outside the broker's reach still holds it.
    Unreturned {
        extent: ExtentId,
        bytes: Bytes,
    },
    Returned {
        extent: ExtentId,
        bytes: Bytes,
    },
    /// Freed memory is kept for its tenant.
    Cached {
        extent: ExtentId,
        bytes: Bytes,
    },
    /// A new allocation of the tenant has it.
    Reused {
        extent: ExtentId,
        part: PartRef,
    },
    /// Cached memory goes back to the driver.
    GivenUp {
        extent: ExtentId,
        bytes: Bytes,
    },
    /// Somebody who stood in the line of those who wait for room does not any more.
    WaitEnded {
        waiter: WaiterKind,
        since: Time,
        end: WaitEnd,
    },
    /// A pin call that waited for memory which was elsewhere waits no more.
    PinWaited {
        session: SessionId,
        call: u64,
        since: Time,
        end: WaitEnd,
    },
    /// All cached memory that a request waits for has been given up: it is tried again.
    RoomMade {
        tenant: Option<String>,
    },
    /// A part is in another tier now.
    Moved {
        part: PartRef,
        tenant: Arc<str>,
        device: DeviceIndex,
        tier: Tier,
        bytes: Bytes,
        cause: Cause,
        began: Time,
        /// Not where what lay there held the same already, or where nothing was left of it.
        copied: bool,
        /// Parts that wait for the room that it left.
        for_parts: Vec<PartRef>,
    },
    /// The content of a part that stays on its device is in what it has below, too.
    WrittenBack {
        part: PartRef,
        tenant: Arc<str>,
        device: DeviceIndex,
        tier: Tier,
        bytes: Bytes,
        began: Time,
        /// By what is known so far nobody has written the part since: it can leave without being copied.
        clean: bool,
    },
    /// A part for which there were no bytes below its device has some set aside now: it can leave.
    Backed {
        part: PartRef,
        tenant: Arc<str>,
        device: DeviceIndex,
        tier: Tier,
        bytes: Bytes,
    },
    /// A part that was to leave uncopied is copied: its shadow holds something else, so it was written behind its pins.
    CleanBackingDiffers {
        part: PartRef,
        tenant: Arc<str>,
        device: DeviceIndex,
        tier: Tier,
        bytes: Bytes,
    },
    /// A part has left its device, and its content was given up: it is nowhere, until new memory is made for it.
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
    /// A part was to go to a tier, and is where it was: there was no memory for it there, or it could not be copied.
    MoveFailed {
        part: PartRef,
        tenant: Arc<str>,
        device: DeviceIndex,
        tier: Tier,
        bytes: Bytes,
        cause: Cause,
        began: Time,
        problem: String,
    },
    /// The same, and nothing is wrong: somebody wants it where it is, or uses it, or it was freed.
    MoveStopped {
        part: PartRef,
        tenant: Arc<str>,
        device: DeviceIndex,
        tier: Tier,
        bytes: Bytes,
        cause: Cause,
        began: Time,
    },
    CreateFailed {
        extent: ExtentId,
        problem: String,
    },
    /// What the driver had no memory for is asked of it once more, after something has left the device.
    CreateRetried {
        device: DeviceIndex,
    },
    Unbrokered {
        device: DeviceIndex,
        bytes: Bytes,
    },
    /// The capacity does not cover what is guaranteed and held.
    Shortfall {
        device: DeviceIndex,
        tier: Tier,
        bytes: Bytes,
    },
    /// A device, or a tier below it, is fuller than before, or less full.
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

/// What stood in the line of those who wait for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaiterKind {
    /// A part that somebody wants on its device.
    Part,
    /// An `AllocateBatch`.
    Batch,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitEnd {
    /// With what was waited for.
    Served,
    Refused,
    /// An operator said so.
    Cancelled,
    /// Nobody wants it any more.
    Left,
}

/// Who was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    Session {
        session: SessionId,
        tenant: Arc<str>,
    },
    Operator {
        uid: u32,
    },
    /// A process that wanted to open a session.
    Process {
        tenant: String,
        pid: u32,
    },
    /// A process that named a session which is not its own, or not there.
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
