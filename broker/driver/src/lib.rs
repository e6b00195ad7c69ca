//! The driver contract, and the drivers that keep it.
//!
//! A [`Driver`] owns the physical memory of its devices. It works by messages: [`Driver::submit`] never blocks,
//! and the driver reports the outcome of each submission through the sink that it was opened with. The broker
//! chooses the ids of extents. Other processes need an [`Export`] to map one. So a driver can run in a process
//! of its own one day, and the pure core runs without any driver.
//!
//! Extents lie on a device, in host memory or on disk. [`Submission::Copy`] moves bytes between any two of
//! them, unless both lie on disk. The driver does not know what a copy is for. An exchange, for example, is a
//! copy out of an extent and, once that has succeeded, a copy into it.
//!
//! `sim` makes device memory of memfds: real bytes, really mapped by other processes, with the lifetime rules
//! of the real driver. `cuda` owns memory of GPUs, through a driver library that it loads at run time. Both
//! pass the suite in [`contract`].

mod batch;
pub mod contract;
mod copies;
pub mod cuda;
mod digest;
mod disk;
mod error;
mod export;
mod file_lock;
mod free_pinned;
#[cfg(test)]
mod gate;
mod location;
pub mod sim;
mod threads;

use std::{fmt, os::fd::OwnedFd, sync::Arc, time::Duration};

use vramd_types::{Bytes, CopyId, DeviceIndex, ExtentId, HostNode};
pub use vramd_types::{CopyClass, Shares};

pub use broker_platform::{cgroup, left_to_other_programs, readings::DeviceReadings};
pub use copies::LaneId;
pub use disk::{DirectoryError, DiskConfig, DiskEngine, DiskFacts, probe_disk};
pub use error::{CopyError, DiskFlaw, DiskLimit, DriverError, HostLimit};
pub use export::{Export, SharedFd};
pub use file_lock::FileLock;

/// One GPU, MIG instance or simulated device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// `GPU-…` or `MIG-…`.
    pub uuid: String,
    pub name: String,
    /// Memory of the device.
    pub total: Bytes,
    /// Bytes that one process's context takes there; zero where there are no contexts.
    pub context: Bytes,
}

/// How other processes can share an extent, which decides the kind of its export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// By descriptor: [`Export::Memfd`] or [`Export::VmmFd`].
    Movable,
    /// By a legacy handle: [`Export::CudaIpc`]. Not every driver supports it.
    Fixed,
}

/// A measured link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkFacts {
    /// A name for people: `to device 0`, `uplink 0000:17:01.0 in`, `node 1`, `disk`.
    pub name: String,
    /// The lanes that use the link. There are several if the link is slower than these lanes together. Each
    /// comes with the speed of the link, in bytes per second, if this lane has the link for itself.
    pub lanes: Vec<(LaneId, u64)>,
}

/// The name and the speed for each lane, for people.
impl fmt::Display for LinkFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lane = |(lane, carries): &(LaneId, u64)| format!("{lane} {:.2} GB/s", *carries as f64 / 1e9);
        let lanes: Vec<String> = self.lanes.iter().map(lane).collect();
        write!(f, "{}: {}", self.name, lanes.join(", "))
    }
}

/// A range of a file.
#[derive(Clone, Debug)]
pub struct FileSpan {
    /// Open for reading, with direct IO where the file system supports it.
    pub file: Arc<OwnedFd>,
    pub offset: Bytes,
    pub bytes: Bytes,
}

/// Bytes that a lane has begun to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    pub lane: LaneId,
    /// By class, in the order of [`CopyClass`].
    pub begun: [Bytes; CopyClass::COUNT],
}

/// Pinned free memory of one host node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreePinnedFacts {
    pub node: HostNode,
    /// In pieces, which the driver pins ahead of need.
    pub ordinary: Bytes,
    /// In other sizes. These serve only extents of exactly their size.
    pub smaller: Bytes,
    pub larger: Bytes,
    /// How often the driver has begun to replace other sizes by pieces.
    pub rebuilds: u64,
}

/// How much host memory a driver pins ahead of need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PinPace {
    /// All of it, from the start. Extents then never wait for pinning, and other programs never have the memory.
    #[default]
    FromStart,
    /// Nothing until an extent is created, then half as much again as extents use, and at least one piece. The
    /// first extents wait while their memory is pinned.
    WithUse,
}

/// How long a driver may defer a release.
pub const RELEASE_WITHIN: Duration = Duration::from_secs(1);

/// An order to the driver. The driver answers each with exactly one [`Completion`] that names the same extent,
/// copy, ticket, node or device. [`CancelCopy`](Self::CancelCopy), [`HastenCopy`](Self::HastenCopy),
/// [`SetShares`](Self::SetShares) and [`ReleaseNow`](Self::ReleaseNow) have no answer. Completions come in any
/// order.
#[derive(Debug)]
pub enum Submission {
    /// Creates an extent of zeroed memory. The id is new; the size is a multiple of 2 MiB.
    Create { extent: ExtentId, device: DeviceIndex, size: Bytes, kind: ExtentKind },
    /// Creates an extent of pinned host memory. The answer is that of [`Create`](Self::Create); the id is new,
    /// the size is a multiple of 2 MiB. Without `zeroed` the extent may hold old bytes of any tenant: the
    /// caller writes all of it before any process may read it or get its export. Pinning takes time, about a
    /// second for 5 GiB, but delays nothing that concerns devices.
    CreateHost { extent: ExtentId, node: HostNode, size: Bytes, zeroed: bool },
    /// Limits the memory of a node, and has the driver pin it ahead of need. From now on free and used memory
    /// of the node together stay within `size`.
    /// - Released memory stays pinned for later extents of the same size, unless a caller has asked for its
    ///   descriptor.
    /// - The driver unpins free memory that stands in the way of a new extent.
    /// - The driver pins what is missing ahead of need, in the background, in pieces of size `piece`, as far as
    ///   `pace` says. At most `pieces_max` free pieces exist; each has a descriptor.
    /// - If a caller wants a piece and only other sizes are free, the driver replaces these by pieces until
    ///   they are no more than the pieces. It works in the background, and a new submission waits for one piece
    ///   of that work at most.
    ///
    /// The driver answers once there is no room for another piece, or no memory for it; with
    /// [`PinPace::WithUse`] at once. The caller submits this once for each node, before it creates any extent
    /// there.
    PinAhead { node: HostNode, size: Bytes, piece: Bytes, pieces_max: usize, pace: PinPace },
    /// Creates an extent on disk, in the directory that the driver was opened with. The id is new, the size is
    /// a multiple of 2 MiB. The extent has no export. Only written ranges can be read. The answer is
    /// [`Completion::DiskCreated`].
    CreateDisk { extent: ExtentId, size: Bytes },
    /// Creates an extent that is a range of a file which the driver does not own. The extent takes no room and
    /// is never written. The id is new, the size is a multiple of 2 MiB; bytes beyond the span read as zeros.
    /// The driver keeps a checksum of what it first reads in each 2 MiB. Any other content is damage from then
    /// on. The answer is [`Completion::DiskCreated`].
    OpenFile { extent: ExtentId, size: Bytes, span: FileSpan },
    /// Copies the first bytes of one extent to the start of another. The id is new.
    /// - Copies run in separate lanes for each device: host to device, device to host, and device to any
    ///   device. Copies from disk and copies to disk have a lane each. A copy from disk to disk is refused.
    /// - In each lane, copies of one class run in the order of their submission, and a class runs before those
    ///   below it.
    /// - The caller ensures that no process uses the bytes of the destination meanwhile. Bytes that a process
    ///   writes to the source meanwhile may be copied or not; on disk they may later be found damaged.
    /// - The driver writes each 2 MiB on disk as a whole. If the last piece of a copy is shorter, the bytes
    ///   behind it count as never written.
    Copy { copy: CopyId, from: ExtentId, to: ExtentId, size: Bytes, class: CopyClass },
    /// Raises that copy to the class [`Demand`](CopyClass::Demand), since a client now waits for it. There is
    /// no answer.
    HastenCopy { copy: CopyId },
    /// Sets the share of a link that each class gets at least, from the next chunk on. There is no answer.
    /// Before the first such submission a driver uses [`Shares::default`].
    SetShares { shares: Shares },
    /// Begins no more chunks of that copy. The driver soon answers the copy as cancelled or, if all of it was
    /// in flight, as done. For a copy that was answered or never existed, nothing follows. There is no answer.
    CancelCopy { copy: CopyId },
    /// Ends the driver's own use of an extent whose export the caller has dropped. The memory lives on while
    /// any process maps it or holds its descriptor. A driver need not be able to see the holders of host
    /// memory.
    ///
    /// While bytes arrive on the device from the host the driver may defer the release, for [`RELEASE_WITHIN`]
    /// at most. Some devices clear released memory with the engine that receives those bytes.
    Release { extent: ExtentId },
    /// Ends the deferral of all releases on the device so far. There is no answer.
    ReleaseNow { device: DeviceIndex },
    /// Hashes the first bytes of these extents, one after the other, on the driver's own mapping. Unwritten
    /// ranges on disk count as zeros.
    Digest { ticket: u64, spans: Vec<(ExtentId, Bytes)> },
    /// Surveys the device: finds out which processes hold memory there, independent of any ledger. The driver
    /// reports extents that have returned since their release as [`Completion::Returned`] before the answer, or
    /// a moment after it if one survey cannot be sure. `clients` are the processes of live sessions. Memory of
    /// their contexts is not unbrokered, since the broker reserves room for it.
    Survey { device: DeviceIndex, clients: Vec<u32> },
}

/// The outcome of a submission.
#[derive(Debug)]
pub enum Completion {
    Created {
        extent: ExtentId,
        result: Result<Export, DriverError>,
    },
    /// There is no export: no process maps memory on disk.
    DiskCreated {
        extent: ExtentId,
        result: Result<(), DriverError>,
    },
    /// `returned` is false if some process still holds the memory, so that it is not free yet.
    Released {
        extent: ExtentId,
        returned: bool,
    },
    /// An extent is free now that some process held at its release. Comes at any time after the release and
    /// answers nothing.
    Returned {
        extent: ExtentId,
    },
    /// All bytes have arrived, or the reason why not.
    Copied {
        copy: CopyId,
        result: Result<(), CopyError>,
    },
    /// The BLAKE3 digest.
    Digested {
        ticket: u64,
        result: Result<[u8; 32], CopyError>,
    },
    /// Device memory of processes that no extent of this driver explains: neither a live one, nor one whose
    /// return is awaited, nor a context of the named clients. `contexts` counts the clients that have a context
    /// there. `host_missing` is the part of the host memory for this device that could not be pinned now.
    Surveyed {
        device: DeviceIndex,
        unbrokered: Bytes,
        contexts: u32,
        host_missing: Bytes,
    },
    /// How much pinned memory is free now. With a problem: pinning ahead has ended, and why.
    PinnedAhead {
        node: HostNode,
        free: Bytes,
        problem: Option<DriverError>,
    },
    /// A fact for operators; the driver goes on. Answers nothing.
    Warning {
        problem: String,
    },
    /// The driver cannot go on, for example because an error has ended its context. It answers nothing any
    /// more. Other processes keep the memory that they map. Answers nothing.
    Lost {
        problem: String,
    },
}

/// Receives completions. The driver calls it from its threads; it must not block. An ending driver drops it
/// last.
pub type Sink = Arc<dyn Fn(Completion) + Send + Sync>;

/// A driver. Dropping it ends its threads after they have done all submissions; only pinning ahead of need
/// stops at once. Memory that other processes map lives on. Extents on disk are deleted.
pub trait Driver: Send + Sync + std::fmt::Debug {
    /// `sim` or `cuda`.
    fn name(&self) -> &'static str;

    /// Ordered by [`DeviceIndex`].
    fn devices(&self) -> &[DeviceInfo];

    /// Whether it can create extents of that kind.
    fn supports(&self, kind: ExtentKind) -> bool;

    /// Readings of the devices that tell the platform. They are in the order of [`devices`](Self::devices).
    fn readings(&self) -> Vec<DeviceReadings> {
        Vec::new()
    }

    /// The host node nearest to a device.
    fn host_node(&self, device: DeviceIndex) -> HostNode;

    /// Whether other processes can map host memory the way they map device memory, so that a device accesses it
    /// in place.
    fn can_map_host(&self) -> bool {
        false
    }

    /// The directory for extents on disk, if there is one.
    fn disk(&self) -> Option<&DiskFacts> {
        None
    }

    /// The links as they were measured when the driver was opened.
    fn links(&self) -> &[LinkFacts] {
        &[]
    }

    /// Bytes that each lane has begun to copy since the driver was opened.
    fn traffic(&self) -> Vec<Traffic> {
        Vec::new()
    }

    /// Bytes of disk extents and files that were read for digests since the driver was opened. No lane carries
    /// them.
    fn hashed_bytes(&self) -> Bytes {
        Bytes::ZERO
    }

    /// Pinned free memory of each node that has a [`PinAhead`](Submission::PinAhead).
    fn free_pinned(&self) -> Vec<FreePinnedFacts> {
        Vec::new()
    }

    /// The bytes that have arrived of an unanswered copy.
    fn copied_bytes(&self, copy: CopyId) -> Option<Bytes>;

    /// Takes a submission and returns at once.
    fn submit(&self, submission: Submission);
}
