//! What happens to the broker. The shell turns everything from outside into one of these.

use std::{sync::Arc, time::Duration};

use vramd_types::{AllocationId, Bytes, DeviceIndex, ExtentId, PartIndex, Quantity, SessionId};

use crate::settings::SettingsChange;

/// One request, to be answered by one [`crate::Command::Reply`] with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// One connection on `channel.sock`, numbered by the shell and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u64);

/// The process that makes a call, by the kernel's word. The shell has seen that it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub pid: u32,
    pub uid: u32,
}

/// A mutation's name for itself, so that a repeated one is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKey {
    pub id: [u8; 16],
    /// A hash of the request's content: another content under the same id is an error.
    pub fingerprint: [u8; 16],
}

#[derive(Clone, Debug)]
pub enum Event {
    /// A client process said hello on a new channel, and the shell has found out who it is.
    Hello {
        channel: ChannelId,
        hello: Hello,
    },
    /// A frame after the first.
    Frame {
        channel: ChannelId,
        frame: ClientFrame,
    },
    /// What came was no frame, or not from the session's process.
    Malformed {
        channel: ChannelId,
        problem: String,
    },
    /// The channel has ended, whoever closed it.
    ChannelEnded {
        channel: ChannelId,
    },
    /// The process behind the channel has ended.
    ProcessEnded {
        channel: ChannelId,
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
    /// What the words of sessions say of use since the last time. Parts that were neither used nor written, nor pinned or unpinned,
    /// are not among it.
    PartsUsed(Vec<PartUse>),
    /// Nothing but time has passed.
    Tick,
}

/// One part in the words of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartUse {
    pub session: SessionId,
    pub part: PartRef,
    /// Whether it was pinned at that moment.
    pub pinned: bool,
    /// Whether its word said at that moment that it was written, since that was cleared there last.
    pub written: bool,
}

/// Where a part's words are in the word table of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// Who said hello, and what it said. Uid, pid and tenant are the kernel's and the operator's word, not its own.
#[derive(Clone, Debug)]
pub struct Hello {
    pub tenant: String,
    pub pid: u32,
    pub uid: u32,
    pub client_name: String,
    /// UUIDs that the process sees; `None` is all.
    pub devices: Option<Vec<String>>,
    /// Earlier sessions of the same process that have unmapped everything.
    pub unmapped_sessions: Vec<SessionId>,
    /// Both sides speak pins: the session has a word table, and what it does not pin may be revoked.
    pub pins: bool,
    /// It wants to be told how full devices are.
    pub pressure: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartRef {
    pub allocation: AllocationId,
    pub part: PartIndex,
}

impl PartRef {
    /// Before all others.
    pub(crate) const FIRST: Self = Self { allocation: AllocationId::from_raw(0), part: PartIndex(0) };
}

#[derive(Clone, Debug)]
pub enum ClientFrame {
    /// The client has mapped its word table. Of a session with pins it is the first.
    WordsMapped,
    Mapped(Vec<PartRef>),
    Unmapped(Vec<UnmappedPart>),
    /// All of these are to be mapped, and none to be revoked until `PinEnded`.
    Pin {
        /// Greater than any before in the session.
        call: u64,
        parts: Vec<PartRef>,
        write: bool,
        /// How long it waits to be answered; zero is as long as it takes.
        wait: Duration,
    },
    /// The client has pinned the set by its words, or has given it up.
    PinEnded {
        call: u64,
    },
}

#[derive(Clone, Debug)]
pub struct UnmappedPart {
    pub part: PartRef,
    /// Why it never was mapped, if so.
    pub failure: Option<String>,
    /// By its word it was written since that was looked at last.
    pub written: bool,
}

#[derive(Clone, Debug)]
pub enum ClientRequest {
    /// All or none. What finds no room on its device waits so long for it, in the order of asking.
    AllocateBatch {
        items: Vec<AllocationSpec>,
        wait: Duration,
    },
    FreeBatch(Vec<AllocationId>),
    Attach(Target),
    /// The same, and nothing of it is sent before it is pinned.
    AttachUnpinned(Target),
    Detach(Vec<AllocationId>),
    Seal(AllocationId),
    Advise(AllocationId, Advice),
    /// A sealed allocation whose bytes are those of a file that nobody changes.
    Load {
        spec: AllocationSpec,
        file: FileSpan,
    },
}

/// What an owner knows about the use of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Its device reads and writes it in place: what of it lies in the host's memory is mapped there.
    SetAccessedBy,
    /// No more: it comes to its device for who pins it, as soon as nobody maps it where it lies.
    UnsetAccessedBy,
}

/// A file that the shell has opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub u64);

/// The bytes of a file from some place on, as many as the allocation has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSpan {
    pub file: FileId,
    /// For people.
    pub path: Arc<str>,
    pub offset: Bytes,
}

impl ClientRequest {
    /// A batch that does not wait for others to make room.
    pub const fn allocate(items: Vec<AllocationSpec>) -> Self {
        Self::AllocateBatch { items, wait: Duration::ZERO }
    }
}

/// One allocation, by its id or by `name` or `tenant/name`.
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
    /// UUID or index; `None` is the first that the session sees.
    pub device: Option<String>,
    pub kind: Kind,
    pub lifetime: Lifetime,
    pub name: Option<String>,
    pub readers: Vec<String>,
    /// `None` is the daemon's.
    pub part_size: Option<Bytes>,
    pub replace: bool,
    /// It may begin with whatever the tenant's own memory held before; else it begins as zeros.
    pub uninitialized: bool,
    /// Nothing of it is mapped until it is pinned. What finds no room on its device begins in the tier below, so it may be
    /// larger than the device.
    pub unpinned: bool,
    /// Its content need not outlive its leaving the device: then it is not copied, and it needs nothing below.
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
    EndSession {
        session: SessionId,
        kill: bool,
    },
    FreeAllocation(Target),
    /// Has everybody unmap these parts; who pins them again maps them again.
    RevokeMappings {
        target: Target,
        /// None is all.
        parts: Vec<PartIndex>,
        /// Whether to wait for pins to end; else what is pinned is left alone.
        wait: bool,
    },
    /// Has parts moved to a tier.
    MoveParts {
        target: Target,
        /// None is all.
        parts: Vec<PartIndex>,
        tier: Tier,
    },
    /// Has what parts hold on their device copied to what they have below, while they stay mapped.
    WriteBackParts {
        target: Target,
        /// None is all.
        parts: Vec<PartIndex>,
    },
    /// Holds parts on their device, or lets them go.
    HoldParts {
        target: Target,
        /// None is all.
        parts: Vec<PartIndex>,
        hold: bool,
    },
    /// Refuses a request that waits for room, or all pin calls that wait for one part.
    CancelWait {
        /// [`crate::WaitView::id`].
        wait: u64,
    },
    /// All of it holds from now on, or nothing.
    ChangeSettings(SettingsChange),
    Drain {
        draining: bool,
    },
}

/// Which devices an operator means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSelector {
    All,
    /// UUID or index.
    One(String),
}

/// What the driver reports.
#[derive(Clone, Debug)]
pub enum Completion {
    Created {
        extent: ExtentId,
        result: Result<(), CreateError>,
    },
    /// The broker's own hold on it has ended; `returned` says whether the memory is free again.
    Released {
        extent: ExtentId,
        returned: bool,
    },
    /// Memory that some process held on to after its release is free at last.
    Returned {
        extent: ExtentId,
    },
    /// Answers [`crate::Command::Copy`]. What failed may have written some of its destination, and has left its source alone.
    Copied {
        to: ExtentId,
        result: Result<(), String>,
    },
    /// Answers that too: what was to be read is not what was written there. Its source is lost, and nothing else.
    Damaged {
        to: ExtentId,
        problem: String,
    },
    /// A shadow that was compared holds something else: it is copied to all the same, and that is answered apart.
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
    /// Answers [`crate::Command::ClearWritten`]: whether it was done, or the part was in use.
    WrittenCleared {
        part: PartRef,
        cleared: bool,
    },
    /// `contexts` counts the clients that have a context there; what these take is not unbrokered.
    Surveyed {
        device: DeviceIndex,
        unbrokered: Bytes,
        contexts: u32,
        /// Of its host tier, what others have left nothing for.
        host_missing: Bytes,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WordsOutcome {
    /// REVOKE stands in every word whose client is not unmapping on its own: their frames are to follow.
    Revoked,
    /// In use: all words are as they were.
    Pinned { by: Vec<SessionId> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DigestError {
    /// What lies in that extent is not what was written there.
    Damaged {
        extent: ExtentId,
        problem: String,
    },
    Failed(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateError {
    OutOfMemory,
    /// The same of the host, whose limits are many: which one it was.
    OutOfHostMemory(String),
    /// And of the disk.
    OutOfDisk(String),
    Failed(String),
}
