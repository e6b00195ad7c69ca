//! Extents on disk: the parts that every driver shares.
//!
//! ```text
//!  CreateDisk, Release ─► maker: preallocates and deletes files ─► Directory: the lock, the capacity, left-over files
//!  OpenFile ────────────► maker: a range of a foreign file
//!
//!  Copy ─► Lanes ── a queue from disk and one to it ──► lane::run, a thread each
//!                                                         └─► DiskMover: pieces, checksums, the ring of buffers
//!                                                               ├─► Side: the driver's own; memory to buffer and back
//!                                                               ├─► ChecksumThreads
//!                                                               └─► Engine: io_uring, or threads
//! ```
//!
//! All IO is direct, in whole blocks: the page cache would keep in memory what is on disk because memory is
//! short. An extent is a preallocated file named by its id. No extent outlives the daemon, so nothing is ever
//! synced, and the checksums of the pieces stay in memory. An extent may also be a range of a foreign file. The
//! driver only reads it, and its content must stay as it was when it was first read.

mod checksum_threads;
mod checksums;
mod directory;
mod directory_error;
mod engine;
mod extent;
mod io_memory;
mod maker;
mod measure;
mod mover;
mod piece;
mod reader;
mod side;
mod workers;

use std::{path::PathBuf, sync::Arc};

use vramd_types::Bytes;

use self::directory::Directory;
pub use self::{directory_error::DirectoryError, engine::DiskEngine};
pub(crate) use self::{
    engine::{DiskDirection, EngineChoice, Warn, check_uring, usable_engines},
    extent::DiskExtent,
    io_memory::{Buffer, IoMemory},
    maker::{DiskOrder, Registry, run},
    measure::MEASURE_BUFFERS,
    mover::{DiskMover, run_lane},
    piece::DiskWork,
    reader::{HashedBytes, READ_BUFFER, read_each},
    side::Side,
};

/// The block size of direct IO, in memory and on disk. No known disk has larger blocks; opening the directory
/// finds out.
const ALIGNMENT: usize = 4096;

/// The unit of IO and of checksums. Larger ones are no faster.
const PIECE: u64 = 2 << 20;

/// Pieces in flight in each direction, each with a buffer. 32 MiB are what a disk of 14 GB/s moves in more than
/// twice its latency, and some of them are on the device's side.
const RING_PIECES: usize = 16;

/// The buffers of both directions.
pub(crate) const RING_BUFFERS: Bytes = Bytes::new(2 * RING_PIECES as u64 * PIECE);

/// The most pieces that the disk reads at once. 8 MiB are what a disk of 14 GB/s moves in half a millisecond,
/// several times its latency. The other buffers are on their way to the device.
///
/// On the one disk that was measured, a virtual one, a driver alone reached 99 % of plain reads with four, 83
/// to 85 with eight and 78 with sixteen, one run each. The reason is a guess (`docs/benchmarks/tiers`).
const READS_MAX: usize = RING_PIECES / 4;

/// The directory for extents on disk, and its capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// For this daemon only: files named like its extents are deleted.
    pub directory: PathBuf,
    pub capacity: Bytes,
    /// The engine to use. None chooses io_uring if the kernel permits it.
    pub engine: Option<DiskEngine>,
}

/// The directory as it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskFacts {
    pub directory: PathBuf,
    pub capacity: Bytes,
    pub engine: DiskEngine,
    /// Why io_uring was not chosen, if it was preferred.
    pub no_uring: Option<String>,
}

/// The engine and directory for extents on disk. Without a directory, only ranges of foreign files are possible.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    engine: EngineChoice,
    store: Option<DiskStore>,
}

/// The opened directory.
#[derive(Clone, Debug)]
struct DiskStore {
    directory: Arc<Directory>,
    facts: DiskFacts,
}

/// Checks that a driver could be opened with that disk now. Like opening, it deletes the files of an earlier
/// daemon.
pub fn probe_disk(config: &DiskConfig) -> Result<DiskFacts, DirectoryError> {
    DiskStore::open(config).map(|store| store.facts)
}

impl Disk {
    /// `None` without a directory and without foreign files.
    pub(crate) fn open(config: Option<&DiskConfig>, files: bool) -> Result<Option<Self>, DirectoryError> {
        let store = config.map(DiskStore::open).transpose()?;
        let engine = match &store {
            Some(store) => Some(store.facts.engine),
            None if files => Some(engine::choose(None).map_err(DirectoryError::NoUring)?.0),
            None => None,
        };
        let is_named = config.is_some_and(|config| config.engine.is_some());
        Ok(engine.map(|engine| Self { engine: EngineChoice { engine, is_named }, store }))
    }

    pub(crate) fn engine(&self) -> EngineChoice {
        self.engine
    }

    /// The facts of the directory.
    pub(crate) fn facts(&self) -> Option<&DiskFacts> {
        self.store.as_ref().map(|store| &store.facts)
    }
}

impl DiskStore {
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
