//! The driver contract, and the drivers that keep it.
//!
//! A [`Driver`] owns the physical memory of its devices. It is message-shaped: [`Driver::submit`] never blocks, and
//! what became of a submission is told through the sink that the driver was opened with. Extents are named by ids
//! that the broker chose, and what other processes need to map one is a [`Handle`]. So a driver can run in a process
//! of its own one day, and the pure core can be run without any.
//!
//! Extents lie on a device, in the host's memory or on disk, and [`Submission::Copy`] moves bytes between any two of them,
//! unless both lie on disk. The driver keeps no thought of what a copy is for: an exchange, say, is a copy out of an extent,
//! and once that was told to have gone well a copy into it.
//!
//! `sim` makes device memory of memfds: real bytes, really mapped by other processes, with the life-time rules of
//! the real driver. `cuda` owns memory of GPUs, through a driver library that is found at run time. Both pass the suite
//! in [`contract`].

mod batch;
mod cgroup;
pub mod contract;
mod copies;
pub mod cuda;
mod digest;
mod disk;
mod error;
mod export;
mod free_pinned;
#[cfg(test)]
mod gate;
mod location;
mod other_programs;
pub mod sim;
mod threads;

use std::{fmt, os::fd::OwnedFd, sync::Arc, time::Duration};

use vramd_types::{Bytes, CopyId, DeviceIndex, ExtentId, HostNode};
pub use vramd_types::{CopyClass, Shares};

pub use cgroup::cgroup_memory_limit;
pub use copies::LaneId;
pub use disk::{DirectoryError, DiskConfig, DiskEngine, DiskFacts, probe_disk};
pub use error::{CopyError, DiskFlaw, DiskLimit, DriverError, HostLimit};
pub use export::{Export, SharedFd};
pub use other_programs::left_to_other_programs;

/// One GPU, MIG instance or simulated device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// `GPU-…` or `MIG-…`.
    pub uuid: String,
    pub name: String,
    /// What the device has.
    pub total: Bytes,
    /// What a context of one process takes there; zero where there are no contexts.
    pub context: Bytes,
}

/// How an extent can be shared, and what its handle is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// By descriptor: [`Handle::Memfd`] or [`Handle::VmmFd`].
    Movable,
    /// By a legacy handle: [`Handle::CudaIpc`]. Not every driver can.
    Fixed,
}

/// A link by which bytes move, as it was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkFacts {
    /// For people: `to device 0`, `uplink 0000:17:01.0 in`, `node 1`, `disk`.
    pub name: String,
    /// Several where they share it and it carries less than all of them together; each with what the link carries if that
    /// lane has it for itself, in bytes per second.
    pub lanes: Vec<(LaneId, u64)>,
}

/// For people: with what it carries for each lane.
impl fmt::Display for LinkFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lane = |(lane, carries): &(LaneId, u64)| format!("{lane} {:.2} GB/s", *carries as f64 / 1e9);
        let lanes: Vec<String> = self.lanes.iter().map(lane).collect();
        write!(f, "{}: {}", self.name, lanes.join(", "))
    }
}

/// Bytes of a file.
#[derive(Clone, Debug)]
pub struct FileSpan {
    /// Open for reading, past the page cache where its file system can.
    pub file: Arc<OwnedFd>,
    pub offset: Bytes,
    pub bytes: Bytes,
}

/// What was begun on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    pub lane: LaneId,
    /// Of each class, in their order.
    pub begun: [Bytes; CopyClass::COUNT],
}

/// What is kept of one node's memory of the host, and is no extent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreePinnedFacts {
    pub node: HostNode,
    /// In the pieces that are pinned ahead of need.
    pub ordinary: Bytes,
    /// In other sizes, which serve extents of just these.
    pub smaller: Bytes,
    pub larger: Bytes,
    /// How often it was begun to pin pieces in the place of other sizes.
    pub rebuilds: u64,
}

/// For how long a release may be put off.
pub const RELEASE_WITHIN: Duration = Duration::from_secs(1);

/// Something for the driver to do. Each, but for [`CancelCopy`](Self::CancelCopy), [`HastenCopy`](Self::HastenCopy),
/// [`ShareBy`](Self::ShareBy) and [`ReleaseNow`](Self::ReleaseNow), is answered by exactly one [`Completion`] that names the same extent, copy, ticket, node or device; completions come in any
/// order.
#[derive(Debug)]
pub enum Submission {
    /// Makes an extent of zeroed memory. The id is new; the size is a multiple of 2 MiB.
    Create { extent: ExtentId, device: DeviceIndex, size: Bytes, kind: ExtentKind },
    /// Makes an extent of pinned memory of the host. Answered like [`Create`](Self::Create); the id is new, the size
    /// is a multiple of 2 MiB. Unless it is to be zeroed it may hold old bytes of anybody: the caller writes all of it
    /// before it lets anybody read it or have its handle. Pinning takes its time (about a second for 5 GiB), and holds
    /// up nothing that concerns devices.
    CreateHost { extent: ExtentId, node: HostNode, size: Bytes, zeroed: bool },
    /// From now on there is at most so much memory of that node, what is kept and what extents have. What is released
    /// is kept for extents of the same size to come, unless anybody has asked for its descriptor. What finds no room
    /// beside it has kept memory given up; what is missing is pinned ahead of need, in the background, in pieces of
    /// this size. So many pieces are kept at most, each of which has a descriptor. Where somebody wants a piece and other sizes
    /// alone are kept, these are given up for pieces, until they are no more than the pieces are: in the background too, and whoever
    /// comes waits for one piece of it at most. Answered once there is no room for
    /// another piece, or no memory for it; asked for once for each node, before anything is made there.
    PinAhead { node: HostNode, size: Bytes, piece: Bytes, pieces_max: usize },
    /// Makes an extent on disk, in the directory that the driver was opened with. The id is new, the size is a multiple of
    /// 2 MiB. Nobody else can have it, and it is read only where it was written. Answered by
    /// [`Completion::DiskCreated`].
    CreateDisk { extent: ExtentId, size: Bytes },
    /// Makes an extent that is a piece of a file that is not the driver's: it takes no room and is never written. The id is new, the size is
    /// a multiple of 2 MiB; what is behind the piece is zeros. Of what is read there first, in each 2 MiB, the driver keeps a checksum: anything else is
    /// damage from then on. Answered by [`Completion::DiskCreated`].
    OpenFile { extent: ExtentId, size: Bytes, span: FileSpan },
    /// Copies the first bytes of one extent onto the first of another. Those from the host to a device, from a device
    /// to the host, and from a device to any device are done apart from each other and for each device, and so are those from
    /// disk and those to disk: of one class in the order of their submission, and those of a class before those below it. From
    /// disk to disk there are none. The caller sees to it that nobody else uses the second's bytes meanwhile; what somebody
    /// writes to the first's may be copied or not, and where it is copied to disk that may be found damaged. Of what lies on
    /// disk each 2 MiB are written as a whole: where the last of a copy are fewer, what was behind them is as if it had not been
    /// written. The id is new.
    Copy { copy: CopyId, from: ExtentId, to: ExtentId, size: Bytes, class: CopyClass },
    /// Somebody waits for that copy now: it is of the class [`Demand`](CopyClass::Demand) from here on. Has no answer of its own.
    HastenCopy { copy: CopyId },
    /// What each class of copies has of a link at least, from the next chunk on. Has no answer of its own. Until it is told, a
    /// driver goes by [`Shares::default`].
    SetShares { shares: Shares },
    /// Nothing of that copy is begun any more: it is answered soon, as cancelled or, where all of it was under way, as
    /// done. Of one that was answered, or never was, nothing follows. Has no answer of its own.
    CancelCopy { copy: CopyId },
    /// Ends the driver's own hold on an extent, whose handle the caller has dropped. Memory lives on while any
    /// process maps it or holds its descriptor. Who else holds memory of the host, a driver need not be able to see.
    ///
    /// While bytes arrive on the device from the host it may be put off, for [`RELEASE_WITHIN`] at most: some devices clear what is
    /// released with the engine by which bytes arrive.
    Release { extent: ExtentId },
    /// What was released of the device until now is put off no longer. Has no answer of its own.
    ReleaseNow { device: DeviceIndex },
    /// Hashes the first bytes of these extents, one after the other, on the driver's own mapping. What was never written on disk is
    /// zeros there.
    Digest { ticket: u64, spans: Vec<(ExtentId, Bytes)> },
    /// Looks, independent of any ledger, at who holds memory of the device. Extents that have come back since
    /// their release are reported as [`Completion::Returned`] before the answer, or, where one look can't be sure, a
    /// moment after it. `clients` are the processes of live
    /// sessions: what their contexts take is not unbrokered, since room is reserved for it.
    Survey { device: DeviceIndex, clients: Vec<u32> },
}

/// What became of a submission.
#[derive(Debug)]
pub enum Completion {
    Created {
        extent: ExtentId,
        result: Result<Export, DriverError>,
    },
    /// It has no handle: no process maps what is on disk.
    DiskCreated {
        extent: ExtentId,
        result: Result<(), DriverError>,
    },
    /// `returned` is false where some process still holds the memory: it is not free yet.
    Released {
        extent: ExtentId,
        returned: bool,
    },
    /// An extent whose release had not freed it is free now. Answers nothing; comes at any time after it.
    Returned {
        extent: ExtentId,
    },
    /// All bytes have arrived, or why not.
    Copied {
        copy: CopyId,
        result: Result<(), CopyError>,
    },
    /// The BLAKE3 digest.
    Digested {
        ticket: u64,
        result: Result<[u8; 32], CopyError>,
    },
    /// Memory of the device held by processes that no extent of this driver explains: neither live ones nor those
    /// whose return is awaited, nor contexts of the clients named. `contexts` counts those that have one there. `host_lacking`
    /// is what could not be had now of the memory of the host that is to be kept for the device.
    Surveyed {
        device: DeviceIndex,
        unbrokered: Bytes,
        contexts: u32,
        host_missing: Bytes,
    },
    /// So much is kept now; or that nothing more can be, nor will be tried, and why.
    PinnedAhead {
        node: HostNode,
        free: Bytes,
        problem: Option<DriverError>,
    },
    /// Something that operators should know, though the driver goes on. Answers nothing.
    Warning {
        problem: String,
    },
    /// The driver cannot go on: a context of its own is poisoned, say. Nothing more is answered; memory that other
    /// processes map stays theirs. Answers nothing.
    Lost {
        problem: String,
    },
}

/// Where completions go. Called from the driver's threads; must not block. The last that a driver gives up as it ends.
pub type Sink = Arc<dyn Fn(Completion) + Send + Sync>;

/// A driver. Dropping it ends its threads after what was submitted is done, but for memory that is pinned ahead of need:
/// of that no more is; memory that other processes map lives on, and what is on disk is deleted.
pub trait Driver: Send + Sync + std::fmt::Debug {
    /// `sim` or `cuda`.
    fn name(&self) -> &'static str;

    /// In the order of [`DeviceIndex`].
    fn devices(&self) -> &[DeviceInfo];

    /// Whether it can make extents of that kind.
    fn supports(&self, kind: ExtentKind) -> bool;

    /// The piece of the host's memory that is nearest to a device.
    fn host_node(&self, device: DeviceIndex) -> HostNode;

    /// Whether other processes can map memory of the host as they map a device's: from there a device reaches it in place.
    fn can_map_host(&self) -> bool {
        false
    }

    /// Where extents lie on disk, if they may.
    fn disk(&self) -> Option<&DiskFacts> {
        None
    }

    /// What was found out about the links by which bytes move, when the driver was opened.
    fn links(&self) -> &[LinkFacts] {
        &[]
    }

    /// What was begun on each lane since then.
    fn traffic(&self) -> Vec<Traffic> {
        Vec::new()
    }

    /// What was read of disks and files since then to be hashed, which goes by no lane.
    fn hashed_bytes(&self) -> Bytes {
        Bytes::ZERO
    }

    /// What is kept of each node's memory that is to be kept.
    fn free_pinned(&self) -> Vec<FreePinnedFacts> {
        Vec::new()
    }

    /// How far a copy has come that was not answered yet.
    fn copied_bytes(&self, copy: CopyId) -> Option<Bytes>;

    /// Takes a submission and returns at once.
    fn submit(&self, submission: Submission);
}
