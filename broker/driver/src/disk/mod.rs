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

/// What direct IO is of, in memory and on disk: no disk has larger blocks that we know of, and who has is found out when
/// the directory is opened.
const ALIGNMENT: usize = 4096;

/// What is read or written at once, and has a checksum: from here on larger ones are no faster.
const PIECE: u64 = 2 << 20;

/// So many are under way in each direction, each with a buffer: 32 MiB are what a disk of 14 GB/s moves in more than twice its
/// latency, and some of them are on the device's side.
const RING_PIECES: usize = 16;

/// What the buffers of both directions take.
pub(crate) const RING_BUFFERS: Bytes = Bytes::new(2 * RING_PIECES as u64 * PIECE);

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
    engine: EngineChoice,
    store: Option<DiskStore>,
}

/// The directory, opened.
#[derive(Clone, Debug)]
struct DiskStore {
    directory: Arc<Directory>,
    facts: DiskFacts,
}

/// Whether a driver could be opened with it now: as that does, it deletes what a daemon has left there that is no more.
pub fn probe_disk(config: &DiskConfig) -> Result<DiskFacts, DirectoryError> {
    DiskStore::open(config).map(|store| store.facts)
}

impl Disk {
    /// `None` where there is no directory, and no files are to be read either.
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

    /// Of its directory.
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
