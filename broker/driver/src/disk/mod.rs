//! Extents on disk: what is the same for every driver.
//!
//! ```text
//!  CreateDisk, Release ─► maker: preallocates and deletes files ─► Directory: the lock, the capacity, what was left over
//!  OpenFile ────────────► maker: a piece of a file that is somebody's
//!
//!  Copy ─► Lanes ── a queue from disk and one to it ──► lane::run, a thread each
//!                                                         └─► DiskLink: pieces, checksums, the ring of buffers
//!                                                               ├─► Side: the driver's own; memory to buffer and back
//!                                                               ├─► Summers: checksums, on threads
//!                                                               └─► Engine: io_uring, or threads
//! ```
//!
//! All IO is direct, of whole blocks: the page cache would hold in memory what is on disk because memory is short. An extent
//! is a preallocated file named by its id. None outlives the daemon, so nothing is ever synced, and what each piece must be
//! is kept in memory. An extent may also be a piece of a file that is not ours: that is read alone, and must be what it was when it
//! was read first.

mod directory;
mod engine;
mod extent;
mod link;
mod maker;
mod measure;
mod piece;
mod problem;
mod reader;
mod room;
mod side;
mod summing;
mod sums;
mod workers;

use std::{path::PathBuf, sync::Arc};

use vramd_types::Bytes;

use self::directory::Directory;
pub use self::{engine::DiskEngine, problem::DirectoryError};
pub(crate) use self::{
    engine::{Chosen, Warn, Way, uring_works, usable},
    extent::DiskExtent,
    link::{DiskLink, run_lane},
    maker::{DiskOrder, Registry, run},
    measure::MEASURED_BY,
    piece::DiskWork,
    reader::{HandedOn, READ_BUFFER, read_each},
    room::{Buffer, Room},
    side::Side,
};

/// What direct IO is of, in memory and on disk: no disk has larger blocks that we know of, and who has is found out when
/// the directory is opened.
const ALIGNMENT: usize = 4096;

/// What is read or written at once, and has a checksum: from here on larger ones are no faster.
const PIECE: u64 = 2 << 20;

/// So many are under way in each direction, each with a buffer: 32 MiB are what a disk of 14 GB/s moves in more than twice its
/// latency, and some of them are on the device's side.
const RING_PIECES: usize = 16;

/// What the buffers of both directions take.
pub(crate) const RINGS: Bytes = Bytes::new(2 * RING_PIECES as u64 * PIECE);

/// So many are read by the disk at once: 8 MiB are what a disk of 14 GB/s moves in half a millisecond, which is several times its latency. The
/// other buffers are on their way to the device. On the one disk that was measured, a virtual one, a driver alone reached 99 % of plain reads with
/// four, 83 to 85 with eight and 78 with sixteen, one run each. Why more are slower there is a guess (`docs/benchmarks/tiers`).
const READS_MAX: usize = RING_PIECES / 4;

/// Where extents may lie on disk, and how much of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// Nobody else's: files named like ours are deleted.
    pub directory: PathBuf,
    pub capacity: Bytes,
    /// io_uring where it is to be had, unless one is named.
    pub engine: Option<DiskEngine>,
}

/// What was found out about it when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskFacts {
    pub directory: PathBuf,
    pub capacity: Bytes,
    pub engine: DiskEngine,
    /// Why io_uring can't be used, where it was wanted.
    pub no_uring: Option<String>,
}

/// What extents on disk need: a directory, or else they can be pieces of files alone.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    engine: Chosen,
    room: Option<DiskRoom>,
}

/// The directory, opened.
#[derive(Clone, Debug)]
struct DiskRoom {
    directory: Arc<Directory>,
    facts: DiskFacts,
}

/// Whether a driver could be opened with it now: as that does, it deletes what a daemon has left there that is no more.
pub fn try_disk(config: &DiskConfig) -> Result<DiskFacts, DirectoryError> {
    DiskRoom::open(config).map(|room| room.facts)
}

impl Disk {
    /// `None` where there is no directory, and no files are to be read either.
    pub(crate) fn open(config: Option<&DiskConfig>, files: bool) -> Result<Option<Self>, DirectoryError> {
        let room = config.map(DiskRoom::open).transpose()?;
        let engine = match &room {
            Some(room) => Some(room.facts.engine),
            None if files => Some(engine::choose(None).map_err(DirectoryError::NoUring)?.0),
            None => None,
        };
        let is_named = config.is_some_and(|config| config.engine.is_some());
        Ok(engine.map(|engine| Self { engine: Chosen { engine, is_named }, room }))
    }

    pub(crate) fn engine(&self) -> Chosen {
        self.engine
    }

    /// Of its directory.
    pub(crate) fn facts(&self) -> Option<&DiskFacts> {
        self.room.as_ref().map(|room| &room.facts)
    }
}

impl DiskRoom {
    fn open(config: &DiskConfig) -> Result<Self, DirectoryError> {
        let (engine, no_uring) = engine::choose(config.engine).map_err(DirectoryError::NoUring)?;
        let directory = Directory::open(&config.directory, config.capacity)?;
        let facts = DiskFacts {
            directory: directory.path().to_owned(),
            capacity: directory.capacity(),
            engine,
            no_uring,
        };
        Ok(Self { directory: Arc::new(directory), facts })
    }
}
