//! The lane of copies from disk or to it: what a piece goes through.
//!
//! ```text
//! from disk   read ─► verify ─────────────► memory of the host        the disk reads right into it
//!             read ─► verify ─► store ────► memory of a device        through a buffer of the ring
//! to disk     sum ─► write                  memory of the host
//!             fetch ─► sum ─► write         memory of a device        through a buffer of the ring
//! ```
//!
//! As many pieces as there are buffers are under way, each somewhere else on its way: so the disk reads one while the device
//! takes another.

use std::{
    collections::VecDeque,
    fmt,
    num::NonZeroU64,
    sync::{Arc, mpsc::Receiver},
    time::Duration,
};

use rustix::{io::Errno, thread::set_current_timer_slack};
use vramd_types::{Bytes, ExtentId};

use super::{
    ALIGNMENT, PIECE, RING_PIECES,
    engine::{DiskEngine, Done, Engine, Flaw, Op, Way},
    extent::DiskExtent,
    room::Room,
    sums::Sum,
};
use crate::{
    Completion, CopyError, DiskFlaw, DriverError,
    copies::{Link, lane, lane::Order},
};

/// A fraction of what a fast disk takes for a piece, of which there are many under way.
const BETWEEN_PIECES: Duration = Duration::from_micros(100);

/// What is copied between an extent on disk and memory. Both are kept for as long as it takes, even if they are released
/// meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct DiskWork<M> {
    pub(crate) disk: Arc<DiskExtent>,
    pub(crate) memory: M,
}

/// A driver's own way to get at its memory.
pub(crate) trait Side {
    type Memory: Clone + fmt::Debug;
    /// A buffer of the ring, or memory that needs none.
    type Room: Room + fmt::Debug;
    /// Bytes on their way between a buffer and memory.
    type Hop: fmt::Debug;

    /// Where the disk itself can read and write, if there is such.
    fn straight(&self, memory: &Self::Memory, at: u64, length: usize) -> Option<Self::Room>;

    /// A new buffer.
    fn buffer(&mut self, length: usize) -> Result<Self::Room, DriverError>;

    /// Begins to copy from memory to the beginning of a buffer. What fails has lost the buffer.
    fn fetch(
        &mut self,
        memory: &Self::Memory,
        at: u64,
        length: usize,
        buffer: Self::Room,
    ) -> Result<Self::Hop, DriverError>;

    /// Begins to copy from the beginning of a buffer to memory.
    fn store(
        &mut self,
        memory: &Self::Memory,
        at: u64,
        length: usize,
        buffer: Self::Room,
    ) -> Result<Self::Hop, DriverError>;

    /// The buffer once the bytes have arrived. Not asked again then, nor after an error.
    fn arrived(&mut self, hop: &mut Self::Hop) -> Result<Option<Self::Room>, DriverError>;
}

#[derive(Debug)]
pub(crate) struct DiskLink<S: Side> {
    way: Way,
    side: S,
    engine: Engine<S::Room>,
    /// Buffers that no piece has. Each is made when it is first needed, as pinning takes its time.
    idle: Vec<S::Room>,
    /// In the order of their beginning.
    pieces: VecDeque<Piece<S>>,
    /// The number of the first of them.
    first: u64,
}

struct Piece<S: Side> {
    work: DiskWork<S::Memory>,
    at: u64,
    length: usize,
    /// What is read must be, or what is written is.
    sum: Option<Sum>,
    is_straight: bool,
    stage: Stage<S::Hop>,
}

#[derive(Debug)]
enum Stage<H> {
    /// From memory to a buffer.
    Fetching(H),
    OnDisk,
    /// From a buffer to memory.
    Storing(H),
    Ended(Result<(), CopyError>),
}

/// Until nobody can send any more and all is done.
pub(crate) fn run_lane<L: Link>(link: L, orders: &Receiver<Order<L::Work>>, tell: impl Fn(Completion)) {
    // Else every sleep takes 50 us more.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    lane::run(link, orders, tell);
}

impl<S: Side> DiskLink<S> {
    pub(crate) fn new(way: Way, side: S, engine: DiskEngine) -> Result<Self, DriverError> {
        let engine = Engine::new(engine, RING_PIECES)?;
        Ok(Self { way, side, engine, idle: Vec::new(), pieces: VecDeque::new(), first: 0 })
    }

    fn begin_read(
        &mut self,
        work: &DiskWork<S::Memory>,
        at: u64,
        length: usize,
    ) -> Result<Piece<S>, CopyError> {
        let sum = work.disk.sums().expected(at, length)?;
        let blocks = sum.length.next_multiple_of(ALIGNMENT);
        // What is verified is all that was written there, of which memory may be to get a part only.
        let straight = (blocks == length).then(|| self.side.straight(&work.memory, at, blocks)).flatten();
        let is_straight = straight.is_some();
        let room = straight.map_or_else(|| self.buffer(), Ok)?;
        self.submit(&work.disk, at, blocks, room);
        Ok(Piece { work: work.clone(), at, length, sum: Some(sum), is_straight, stage: Stage::OnDisk })
    }

    fn begin_write(
        &mut self,
        work: &DiskWork<S::Memory>,
        at: u64,
        length: usize,
    ) -> Result<Piece<S>, CopyError> {
        let sums = work.disk.sums();
        let blocks = length.next_multiple_of(ALIGNMENT);
        let piece =
            |sum, is_straight, stage| Piece { work: work.clone(), at, length, sum, is_straight, stage };
        if let Some(room) = self.side.straight(&work.memory, at, blocks) {
            let sum = sums.of(at, &room.bytes()[..length]);
            sums.forget(at);
            self.submit(&work.disk, at, blocks, room);
            return Ok(piece(Some(sum), true, Stage::OnDisk));
        }
        let buffer = self.buffer()?;
        let hop = self.side.fetch(&work.memory, at, length, buffer)?;
        Ok(piece(None, false, Stage::Fetching(hop)))
    }

    /// For the piece that is begun now.
    fn submit(&mut self, disk: &DiskExtent, at: u64, length: usize, room: S::Room) {
        let tag = self.first + self.pieces.len() as u64;
        self.engine.begin(Op { tag, file: Arc::clone(disk.file()), way: self.way, at, length, room });
    }

    fn buffer(&mut self) -> Result<S::Room, DriverError> {
        match self.idle.pop() {
            Some(buffer) => Ok(buffer),
            None => self.side.buffer(usize::try_from(PIECE).unwrap_or(usize::MAX)),
        }
    }

    /// Takes every piece as far as it goes now.
    fn advance(&mut self) {
        while let Some(done) = self.engine.poll() {
            self.disk_has_done(done);
        }
        for (tag, piece) in (self.first..).zip(&mut self.pieces) {
            let (hop, is_storing) = match &mut piece.stage {
                Stage::Fetching(hop) => (hop, false),
                Stage::Storing(hop) => (hop, true),
                Stage::OnDisk | Stage::Ended(_) => continue,
            };
            match self.side.arrived(hop) {
                Ok(None) => {}
                Err(error) => piece.stage = Stage::Ended(Err(error.into())),
                Ok(Some(buffer)) if is_storing => {
                    self.idle.push(buffer);
                    piece.stage = Stage::Ended(Ok(()));
                }
                Ok(Some(buffer)) => {
                    let (disk, at) = (&piece.work.disk, piece.at);
                    piece.sum = Some(disk.sums().of(at, &buffer.bytes()[..piece.length]));
                    disk.sums().forget(at);
                    let length = piece.length.next_multiple_of(ALIGNMENT);
                    let file = Arc::clone(disk.file());
                    self.engine.begin(Op { tag, file, way: self.way, at, length, room: buffer });
                    piece.stage = Stage::OnDisk;
                }
            }
        }
    }

    fn disk_has_done(&mut self, done: Done<S::Room>) {
        let Done { tag, room, result } = done;
        let at = tag.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let piece = at.and_then(|at| self.pieces.get_mut(at)).expect("a piece waits for the disk");
        let extent = piece.work.disk.id();
        let result = match (result, piece.sum) {
            (Err(flaw), _) => Err(failed(extent, piece.at, self.way, flaw)),
            (Ok(()), Some(sum)) if self.way == Way::FromDisk => {
                piece.work.disk.sums().verify(piece.at, sum, &room.bytes()[..sum.length])
            }
            (Ok(()), sum) => {
                sum.into_iter().for_each(|sum| piece.work.disk.sums().enter(piece.at, sum));
                Ok(())
            }
        };
        if self.way == Way::FromDisk && result.is_ok() && !piece.is_straight {
            let stored = self.side.store(&piece.work.memory, piece.at, piece.length, room);
            piece.stage = stored.map_or_else(|error| Stage::Ended(Err(error.into())), Stage::Storing);
            return;
        }
        if !piece.is_straight {
            self.idle.push(room);
        }
        piece.stage = Stage::Ended(result);
    }
}

fn failed(extent: ExtentId, at: u64, way: Way, flaw: Flaw) -> CopyError {
    let at = Bytes::new(at);
    let flaw = match flaw {
        Flaw::Short(bytes) => DiskFlaw::Short(Bytes::new(bytes as u64)),
        Flaw::Failed(error) => DiskFlaw::Failed(Errno::raw_os_error(error)),
    };
    match way {
        Way::FromDisk => CopyError::Unreadable { extent, at, flaw },
        Way::ToDisk => CopyError::Unwritable { extent, at, flaw },
    }
}

impl<S: Side> Link for DiskLink<S> {
    const CHUNK: u64 = PIECE;
    const UNDER_WAY_MAX: usize = RING_PIECES;

    type Work = DiskWork<S::Memory>;
    /// The piece's number.
    type Chunk = u64;

    fn begin(&mut self, work: &Self::Work, at: u64, length: u64) -> Result<u64, CopyError> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let piece = match self.way {
            Way::FromDisk => self.begin_read(work, at, length)?,
            Way::ToDisk => self.begin_write(work, at, length)?,
        };
        self.pieces.push_back(piece);
        Ok(self.first + self.pieces.len() as u64 - 1)
    }

    /// Asked of the first alone: the others wait in line behind it.
    fn has_ended(&mut self, number: &mut u64) -> Result<bool, CopyError> {
        self.advance();
        debug_assert_eq!(*number, self.first, "pieces are asked for in their order");
        match self.pieces.pop_front() {
            Some(Piece { stage: Stage::Ended(result), .. }) => {
                self.first += 1;
                result.map(|()| true)
            }
            Some(piece) => {
                self.pieces.push_front(piece);
                Ok(false)
            }
            None => Ok(true),
        }
    }

    fn patience(&self, _: &u64, _is_last: bool) -> Duration {
        BETWEEN_PIECES
    }
}

impl<S: Side> fmt::Debug for Piece<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piece").field("at", &self.at).field("stage", &self.stage).finish_non_exhaustive()
    }
}
