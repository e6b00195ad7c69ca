//! Events: everything that the shell reports to the broker.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use vramd_types::{AllocationId, Bytes, DeviceIndex, ExtentId, PartIndex, Quantity, SessionId, WaitId};

use crate::{
    collections::Pair,
    prefetch::PrefetchSpec,
    sequence::SequenceSpec,
    settings::SettingsChange,
    tenancy::{AdvicePermission, TenantClass},
    turns::WorkingSetSpec,
};

/// The number of one request. One [`crate::Command::Reply`] with the same number answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// One connection on `channel.sock`. The shell numbers connections and never reuses a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u64);

/// The process that makes a call, as the kernel reports it. The shell has checked that it is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub pid: u32,
    pub uid: u32,
}

/// The identity of a mutation, by which a repeated request is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKey {
    pub id: [u8; 16],
    /// A hash of the request's content. The same id with another content is an error.
    pub fingerprint: [u8; 16],
}

#[derive(Clone, Debug)]
pub enum Event {
    /// A client process sent a hello on a new channel, and the shell has identified it.
    Hello {
        channel: ChannelId,
        hello: Hello,
    },
    /// The client sent a frame after its hello.
    Frame {
        channel: ChannelId,
        frame: ClientFrame,
    },
    /// A packet was no frame, or did not come from the session's process.
    Malformed {
        channel: ChannelId,
        problem: String,
    },
    /// The channel has ended, whichever side closed it.
    ChannelEnded {
        channel: ChannelId,
    },
    /// The process behind the channel has ended.
    ProcessEnded {
        channel: ChannelId,
    },
    /// The shell cannot end the process behind the channel, or another process outlives it with its socket.
    ProcessStays {
        channel: ChannelId,
        why: ProcessStays,
    },
    Client {
        call: CallId,
        session: SessionId,
        peer: Peer,
        key: Option<RequestKey>,
        request: ClientRequest,
    },
    Operator {
        call: CallId,
        uid: u32,
        key: Option<RequestKey>,
        request: OperatorRequest,
    },
    Completion(Completion),
    /// Answers [`crate::Command::StoreQuotas`].
    QuotasStored {
        result: Result<(), String>,
    },
    /// The use of parts since the last harvest of the pin words. It lists only parts that were used, written,
    /// pinned or unpinned.
    PartsUsed(Vec<PartUse>),
    /// Only time has passed.
    Tick,
}

/// Why a session stays although its process was killed or has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessStays {
    /// The kernel did not let the daemon kill it.
    NotKilled { problem: String },
    /// The process has ended, and another process may still receive what was sent to it.
    SocketKept,
}

/// The harvested use of one part by one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartUse {
    pub session: SessionId,
    pub part: PartRef,
    /// Whether the session pinned the part at the moment of the harvest.
    pub pinned: bool,
    /// Whether the WRITTEN bit was set at the moment of the harvest.
    pub written: bool,
}

/// The index of a part's word in the word table of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// A session's hello. Uid, pid and tenant come from the kernel and the operator's rules, not from the client.
#[derive(Clone, Debug)]
pub struct Hello {
    pub tenant: String,
    pub pid: u32,
    pub uid: u32,
    pub client_name: String,
    /// UUIDs of the devices that the process sees; `None` means all.
    pub devices: Option<Vec<String>>,
    /// Earlier sessions of the same process that have unmapped everything.
    pub unmapped_sessions: Vec<SessionId>,
    /// The client executes orders for its managed memory.
    pub managed_orders: bool,
    /// Both sides support pins: the session has a word table, and the daemon may revoke parts that it does
    /// not pin.
    pub pins: bool,
    /// The session wants reports of pressure.
    pub pressure: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartRef {
    pub allocation: AllocationId,
    pub part: PartIndex,
}

impl PartRef {
    /// The smallest reference in the order.
    pub(crate) const FIRST: Self = Self { allocation: AllocationId::from_raw(0), part: PartIndex(0) };

    /// All references to parts of an allocation, in the order.
    pub(crate) fn all_of(allocation: AllocationId) -> RangeInclusive<Self> {
        let part = |index| Self { allocation, part: PartIndex(index) };
        part(0)..=part(u32::MAX)
    }
}

impl Pair for PartRef {
    type Number = PartIndex;

    fn split(self) -> (u64, PartIndex) {
        (self.allocation.get(), self.part)
    }

    fn join(id: u64, part: PartIndex) -> Self {
        Self { allocation: AllocationId::from_raw(id), part }
    }
}

#[derive(Clone, Debug)]
pub enum ClientFrame {
    /// The client has mapped its word table. In a session with pins it is the first frame.
    WordsMapped,
    Mapped(Vec<PartRef>),
    Unmapped(Vec<UnmappedPart>),
    /// Map all of these parts, and revoke none of them until `PinEnded`.
    Pin {
        /// Greater than the number of any earlier call of the session.
        call: u64,
        parts: Vec<PartRef>,
        write: bool,
        /// How long the call waits for its answer; `None` means without limit.
        wait: Option<Duration>,
    },
    /// The client needs these parts on their device soon.
    Prefetch {
        /// Greater than the number of any earlier request of the session.
        number: u64,
        spec: PrefetchSpec,
    },
    /// The client no longer wants what it asked for by that number.
    PrefetchCancelled {
        number: u64,
    },
    /// The client declares in which order it will use parts.
    Sequence {
        /// Greater than the number of any earlier sequence of the session.
        number: u64,
        spec: SequenceSpec,
    },
    /// The program begins a step of that sequence, and has ended all earlier ones.
    SequenceStepBegun {
        number: u64,
        /// Counted over all passes, from 0.
        step: u64,
    },
    /// The client no longer needs that sequence.
    SequenceEnded {
        number: u64,
    },
    /// The client names allocations that it uses together.
    WorkingSet {
        /// Greater than the number of any earlier set of the session.
        number: u64,
        spec: WorkingSetSpec,
    },
    /// The client no longer needs that set. It yields the turn, or gives up the wait for it.
    WorkingSetEnded {
        number: u64,
    },
    /// The client wants the turn of a set.
    TurnRequested {
        /// Greater than the number of any earlier turn of the session.
        turn: u64,
        /// The number of the set.
        set: u64,
        /// How long it waits for the grant; `None` means without limit.
        wait: Option<Duration>,
    },
    /// The client yields, or no longer waits. It may have yielded or been refused already.
    TurnYielded {
        turn: u64,
    },
    /// Answers `ManagedOrders`. The client has executed all of them, except those that failed.
    ManagedOrdersDone {
        number: u64,
        failed: Vec<(AllocationId, String)>,
    },
    /// The client has pinned the set through its words, or has given up the call.
    PinEnded {
        call: u64,
    },
}

#[derive(Clone, Debug)]
pub struct UnmappedPart {
    pub part: PartRef,
    /// Why the client could not map the part, if it could not.
    pub failure: Option<String>,
    /// The part's WRITTEN bit was set since the daemon last read it.
    pub written: bool,
}

#[derive(Clone, Debug)]
pub enum ClientRequest {
    /// Allocates all items or none. A batch that finds no room waits in the line for at most `wait`.
    AllocateBatch {
        items: Vec<AllocationSpec>,
        wait: Duration,
    },
    /// Cancels a batch of this session that waits in the line, by its request id.
    CancelBatch([u8; 16]),
    FreeBatch(Vec<AllocationId>),
    Attach(Target),
    /// Attaches without a handle pin: no part is sent before the session pins it.
    AttachUnpinned(Target),
    Detach(Vec<AllocationId>),
    Seal(AllocationId),
    Advise(AllocationId, Advice),
    /// Moves all parts of an allocation to a tier below their device.
    Evict(AllocationId, Tier),
    /// Creates a sealed allocation with the bytes of a file that never changes.
    Load {
        spec: AllocationSpec,
        file: FileSpan,
    },
}

/// An owner's advice about the use of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// The device accesses the allocation in place: its parts in host memory are mapped there.
    SetAccessedBy,
    /// The device no longer accesses it in place. A part is fetched for a pin as soon as no session maps it
    /// in host memory.
    UnsetAccessedBy,
    /// Changes which parts of the owner's tenant leave a device first.
    Retain { parts: Option<PartSpan>, change: Retention },
}

/// Parts of an allocation in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartSpan {
    pub first: PartIndex,
    pub count: u32,
}

impl PartSpan {
    pub const fn new(first: u32, count: u32) -> Self {
        Self { first: PartIndex(first), count }
    }
}

/// A change to how long parts stay on their device, compared with others of their tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// Parts that are not needed leave first, until they have left or are needed.
    Needed(bool),
    /// The parts are needed about that much later and leave last. This ends with their first use that the daemon sees,
    /// or after twice that time.
    NeededWithin(Duration),
    /// In percent. `None` withdraws the advice.
    Importance(Option<u8>),
    /// `None` withdraws the advice.
    Class(Option<MemoryClass>),
    /// The tier that the parts should lie in. `None` withdraws the advice.
    Location(Option<Tier>),
    ReadMostly(bool),
    /// `None` withdraws the advice.
    Pattern(Option<Pattern>),
    /// Sets the class, the location, the pattern and whether the parts are mostly read, all at once.
    Preset(Preset),
}

impl Retention {
    /// Whether it only ends advice.
    pub const fn is_withdrawal(self) -> bool {
        matches!(
            self,
            Self::Needed(true)
                | Self::Importance(None)
                | Self::Class(None)
                | Self::Location(None)
                | Self::ReadMostly(false)
                | Self::Pattern(None)
        )
    }
}

/// The giver of advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Adviser {
    /// The owner of the memory.
    Owner,
    /// An operator. For the parts that it names, this advice counts alone until an operator clears it.
    Operator,
}

/// How a program goes through the parts of an allocation, in the order of their indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One after the other.
    Sequential,
    /// One after the other, with gaps.
    Strided,
    /// Some parts in a row at a time, which move on.
    Window,
    /// One after the other, again and again.
    Loop,
    /// In no order.
    Random,
    /// Few of them, in no order.
    Sparse,
}

/// Advice for a common use of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Class weights, read mostly.
    Weights,
    /// Class cache, preferred on the device.
    KvCache,
    /// Class activations.
    Activations,
    /// Class scratch, preferred in the host, sequential.
    Staging,
}

/// The use of memory, in the order in which it leaves among parts of the same importance. Memory of no class comes
/// between weights and activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryClass {
    /// Intermediate results that are soon overwritten.
    Scratch,
    /// Weights: never written while in use, so they mostly leave without a copy.
    Weights,
    Activations,
    /// A cache that grows, such as one of keys and values.
    Cache,
}

/// A file that the shell has opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub u64);

/// The bytes of a file from an offset on, as many as the allocation has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSpan {
    pub file: FileId,
    /// The path as given, for messages.
    pub path: Arc<str>,
    pub offset: Bytes,
}

impl ClientRequest {
    /// A batch that does not wait for room.
    pub const fn allocate(items: Vec<AllocationSpec>) -> Self {
        Self::AllocateBatch { items, wait: Duration::ZERO }
    }
}

/// One allocation, named by its id or by `name` or `tenant/name`.
#[derive(Clone, Debug)]
pub enum Target {
    Id(AllocationId),
    Name(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Movable,
    Fixed,
    Managed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    Session,
    Persistent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    Device,
    Host,
    Disk,
}

#[derive(Clone, Debug)]
pub struct AllocationSpec {
    pub size: Bytes,
    /// UUID or index; `None` means the first device that the session sees.
    pub device: Option<String>,
    pub kind: Kind,
    pub lifetime: Lifetime,
    pub name: Option<String>,
    pub readers: Vec<String>,
    /// `None` means the daemon's default.
    pub part_size: Option<Bytes>,
    pub replace: bool,
    /// Its memory may begin with old content of the same tenant; otherwise it begins as zeros.
    pub uninitialized: bool,
    /// The allocation has no handle pin: no part is mapped until the client pins it. A part without room on
    /// its device starts in the tier below, so the allocation may be larger than the device.
    pub unpinned: bool,
    /// The client can recompute the content: parts leave their device without a copy and need no backing.
    pub discardable: bool,
}

#[derive(Clone, Debug)]
pub enum OperatorRequest {
    SetQuota {
        tenant: String,
        device: DeviceSelector,
        tier: Tier,
        guarantee: Option<Quantity>,
        limit: Option<Quantity>,
    },
    DeleteQuota {
        tenant: String,
        device: DeviceSelector,
        tier: Tier,
    },
    /// Sets what is given of class, weight and whether advice counts.
    SetTenant {
        tenant: String,
        class: Option<TenantClass>,
        weight: Option<u32>,
        advice: Option<AdvicePermission>,
    },
    /// Lets the tenant have what is configured for it again.
    ResetTenant {
        tenant: String,
    },
    EndSession {
        session: SessionId,
        kill: bool,
    },
    FreeAllocation(Target),
    /// Revokes every mapping of these parts. The next pin of a session maps them again.
    RevokeMappings {
        target: Target,
        /// Empty means all.
        parts: Vec<PartIndex>,
        /// Whether to wait until pins end; otherwise pinned parts are left alone.
        wait: bool,
    },
    /// Moves parts to a tier.
    MoveParts {
        target: Target,
        /// Empty means all.
        parts: Vec<PartIndex>,
        tier: Tier,
    },
    /// Writes parts back to their backing while they stay mapped on their device.
    WriteBackParts {
        target: Target,
        /// Empty means all.
        parts: Vec<PartIndex>,
    },
    /// Sets or ends an operator hold on parts.
    HoldParts {
        target: Target,
        /// Empty means all.
        parts: Vec<PartIndex>,
        hold: bool,
    },
    /// Advises which parts of the owner's tenant leave a device first, over what the owner says for these parts.
    AdviseParts {
        target: Target,
        /// `None` means all.
        parts: Option<PartSpan>,
        /// `None` clears what operators said: the owner's advice counts again.
        change: Option<Retention>,
    },
    /// Refuses a batch that waits for room, or all pin calls that wait for one part.
    CancelWait {
        /// [`crate::WaitView::id`].
        wait: WaitId,
    },
    /// Ends a prefetch request.
    CancelPrefetch {
        session: SessionId,
        /// [`crate::PrefetchView::number`].
        number: u64,
    },
    /// Asks the owner of a turn to yield, as if its quantum had ended.
    YieldTurn {
        session: SessionId,
        /// [`crate::WorkingSetView::name`].
        set: String,
    },
    /// Applies all of the change, or nothing.
    ChangeSettings(SettingsChange),
    Drain {
        draining: bool,
    },
}

/// The devices that an operator names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSelector {
    All,
    /// UUID or index.
    One(String),
}

/// A report of the driver.
#[derive(Clone, Debug)]
pub enum Completion {
    Created {
        extent: ExtentId,
        result: Result<(), CreateError>,
    },
    /// The daemon has closed the extent. `returned` says whether the memory is free again.
    Released {
        extent: ExtentId,
        returned: bool,
    },
    /// Memory that a process kept open after its release is free again.
    Returned {
        extent: ExtentId,
    },
    /// Answers [`crate::Command::Copy`]. A failed copy may have written part of its destination, and has not
    /// changed its source.
    Copied {
        to: ExtentId,
        result: Result<(), String>,
    },
    /// Also answers a copy: the source does not have the bytes that were written there. Only its content is
    /// lost.
    Damaged {
        to: ExtentId,
        problem: String,
    },
    /// A compared backing does not have the part's bytes. The driver copies the part all the same, and
    /// reports that separately.
    CleanBackingDiffers {
        to: ExtentId,
    },
    Digested {
        allocation: AllocationId,
        result: Result<[u8; 32], DigestError>,
    },
    /// Answers [`crate::Command::RevokeWords`].
    WordsRevoked {
        part: PartRef,
        outcome: WordsOutcome,
    },
    /// Answers [`crate::Command::ClearWritten`]: whether the bit was cleared, or the part was in use.
    WrittenCleared {
        part: PartRef,
        cleared: bool,
    },
    /// Reports a survey. `contexts` counts the clients that have a context on the device; their memory is not
    /// unbrokered.
    Surveyed {
        device: DeviceIndex,
        unbrokered: Bytes,
        contexts: u32,
        /// Bytes of the device's host tier that other programs have taken.
        host_missing: Bytes,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WordsOutcome {
    /// REVOKE is set in every word, except where the client is unmapping on its own. The clients' frames
    /// follow.
    Revoked,
    /// A session pins the part: no word was changed.
    Pinned { by: Vec<SessionId> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DigestError {
    /// The extent does not have the bytes that were written to it.
    Damaged {
        extent: ExtentId,
        problem: String,
    },
    Failed(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateError {
    OutOfMemory,
    /// The host has no memory left. The text names the limit that was reached.
    OutOfHostMemory(String),
    /// The disk has no room left.
    OutOfDisk(String),
    Failed(String),
}
