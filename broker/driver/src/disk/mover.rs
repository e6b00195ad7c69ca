//! Moves pieces from disk or to it. A piece goes through these stages:
//!
//! ```text
//! from disk   read ─► checksum, verify ─────────────► host memory      the disk reads right into it
//!             read ─► checksum, verify ─► store ────► device memory    through a buffer of the ring
//! to disk     checksum ─► write                       host memory
//!             fetch ─► checksum ─► write              device memory    through a buffer of the ring
//! ```
//!
//! As many pieces are in flight as there are buffers, in different stages. So the disk reads one piece while
//! other threads compute the checksums of some and the device takes another.

use std::{collections::VecDeque, num::NonZeroU64, ops::Range, sync::Arc, time::Duration};

use rustix::thread::set_current_timer_slack;

use super::{
    ALIGNMENT, PIECE, READS_MAX, RING_PIECES,
    checksum_threads::{ChecksumThreads, Checksummed, ToChecksum, checksum_threads},
    engine::{DiskDirection, Done, Engine, EngineChoice, IoFlaw, Op, Warn},
    extent::{DiskExtent, PieceRead},
    io_memory::clear,
    piece::{Checksumming, DiskOp, DiskWork, OnDisk, Piece, Stage, failed},
    side::Side,
};
use crate::{
    Completion, CopyError, DriverError,
    copies::{LaneEnd, Mover, lane},
};

/// A fraction of what a fast disk takes for a piece, of which many are in flight.
const BETWEEN_PIECES: Duration = Duration::from_micros(100);

#[derive(Debug)]
pub(crate) struct DiskMover<S: Side> {
    direction: DiskDirection,
    side: S,
    engine: Engine<S::Io>,
    checksum_threads: ChecksumThreads<S::Io>,
    /// In the order of their beginning.
    pieces: VecDeque<Piece<S>>,
    /// The number of the first piece.
    first: u64,
    /// The last poll found a result; there may be more by now.
    has_progress: bool,
    /// No buffer was free. Pieces that need one wait until the next poll.
    is_buffer_short: bool,
}

/// Runs until all senders are gone and all copies are done.
pub(crate) fn run_lane<L: Mover>(
    mover: L,
    end: LaneEnd<DiskDirection, L::Work>,
    report: impl Fn(Completion),
) {
    // Else every sleep takes 50 us longer.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    lane::run(mover, end.links, &end.orders, report);
}

impl<S: Side> DiskMover<S> {
    pub(crate) fn new(
        direction: DiskDirection,
        side: S,
        engine: EngineChoice,
        warn: Warn,
    ) -> Result<Self, DriverError> {
        let engine = Engine::new(engine, RING_PIECES, warn)?;
        let checksum_threads = checksum_threads()?;
        let pieces = VecDeque::new();
        Ok(Self {
            direction,
            side,
            engine,
            checksum_threads,
            pieces,
            first: 0,
            has_progress: false,
            is_buffer_short: false,
        })
    }

    /// Starts a piece, unless an earlier one goes to the same place: the disk keeps no order.
    fn start(&mut self, index: usize) {
        let Some(piece) = self.pieces.get(index).filter(|it| matches!(it.stage, Stage::Waiting)) else {
            return;
        };
        if self.pieces.range(..index).any(|earlier| earlier.is_in_the_way_of(piece, self.direction)) {
            return;
        }
        if self.direction == DiskDirection::FromDisk && self.on_disk() >= READS_MAX {
            return;
        }
        let (work, at, length) = (piece.work.clone(), piece.at, piece.length);
        let tag = self.first + index as u64;
        let begun = match self.direction {
            DiskDirection::FromDisk => self.begin_read(tag, &work, at, length),
            DiskDirection::ToDisk => self.begin_write(tag, &work, at, length),
        };
        self.pieces[index].stage = match begun {
            Ok(Some(stage)) => stage,
            // The piece waits for a buffer.
            Ok(None) => return,
            Err(error) => Stage::Ended(Err(error)),
        };
    }

    fn on_disk(&self) -> usize {
        self.pieces.iter().filter(|piece| matches!(piece.stage, Stage::OnDisk(_))).count()
    }

    /// Begins to read. None if no buffer is free now.
    fn begin_read(
        &mut self,
        tag: u64,
        work: &DiskWork<S::Memory>,
        at: u64,
        length: usize,
    ) -> Result<Option<Stage<S::Hop>>, CopyError> {
        let reading = work.disk.reading(at, length)?;
        let PieceRead { blocks, skip, .. } = reading;
        // All bytes under the checksum are read. The memory may be due to get only a part of them, or more.
        let is_whole = skip == 0 && blocks == length && reading.length == length;
        let unbuffered = is_whole.then(|| self.side.unbuffered(&work.memory, at, blocks)).flatten();
        let is_unbuffered = unbuffered.is_some();
        let buffer = match unbuffered {
            Some(buffer) => Some(buffer),
            None => self.buffer(blocks.max(skip + length))?,
        };
        let Some(buffer) = buffer else { return Ok(None) };
        if blocks == 0 {
            let checksum_threads = Checksumming { read: Some(reading), is_unbuffered };
            return Ok(Some(self.checksum(tag, &work.disk, at, 0..0, buffer, checksum_threads)));
        }
        self.submit(tag, &work.disk, reading.at, blocks, buffer);
        Ok(Some(Stage::OnDisk(OnDisk { op: DiskOp::Reads(reading), is_unbuffered })))
    }

    /// Begins to write, likewise.
    fn begin_write(
        &mut self,
        tag: u64,
        work: &DiskWork<S::Memory>,
        at: u64,
        length: usize,
    ) -> Result<Option<Stage<S::Hop>>, CopyError> {
        if !work.disk.is_own() {
            let problem =
                format!("extent {} is a range of a foreign file, which is never written", work.disk.id());
            return Err(DriverError::Failed(problem).into());
        }
        let blocks = length.next_multiple_of(ALIGNMENT);
        if let Some(buffer) = self.side.unbuffered(&work.memory, at, blocks) {
            let checksum_threads = Checksumming { read: None, is_unbuffered: true };
            return Ok(Some(self.checksum(tag, &work.disk, at, 0..length, buffer, checksum_threads)));
        }
        let Some(buffer) = self.buffer(blocks)? else { return Ok(None) };
        Ok(Some(Stage::Fetching(self.side.fetch(&work.memory, at, length, buffer)?)))
    }

    /// Has the checksum computed. Then the piece is verified, or written.
    fn checksum(
        &self,
        tag: u64,
        disk: &Arc<DiskExtent>,
        at: u64,
        range: Range<usize>,
        buffer: S::Io,
        checksum_threads: Checksumming,
    ) -> Stage<S::Hop> {
        let (skip, length) = (range.start, range.len());
        self.checksum_threads.begin(ToChecksum { tag, disk: Arc::clone(disk), at, skip, length, buffer });
        Stage::Checksumming(checksum_threads)
    }

    fn submit(&mut self, tag: u64, disk: &DiskExtent, at: u64, length: usize, buffer: S::Io) {
        self.engine.begin(Op {
            tag,
            file: Arc::clone(disk.file()),
            direction: self.direction,
            at,
            length,
            buffer,
        });
    }

    /// A buffer of at least so many bytes, if one is free: for a piece, or for a piece and the blocks around
    /// it.
    fn buffer(&mut self, length: usize) -> Result<Option<S::Io>, DriverError> {
        if self.is_buffer_short {
            return Ok(None);
        }
        let piece = usize::try_from(PIECE).unwrap_or(usize::MAX);
        let buffer = self.side.buffer(if length > piece { piece + ALIGNMENT } else { piece })?;
        self.is_buffer_short = buffer.is_none();
        Ok(buffer)
    }

    /// Moves every piece as far as it goes now.
    fn advance(&mut self) {
        self.has_progress = false;
        while let Some(done) = self.engine.poll() {
            self.has_progress = true;
            self.finish_io(done);
        }
        while let Some(summed) = self.checksum_threads.poll() {
            self.has_progress = true;
            self.finish_checksum(summed);
        }
        for index in 0..self.pieces.len() {
            self.poll_hop(index);
        }
        // The obstacle of a waiting piece may be gone now, and a buffer may be free.
        self.is_buffer_short = false;
        for index in 0..self.pieces.len() {
            self.start(index);
        }
    }

    /// Moves on a piece whose bytes have arrived in a buffer, or left it.
    fn poll_hop(&mut self, index: usize) {
        let Some(piece) = self.pieces.get_mut(index) else { return };
        let (hop, is_storing) = match &mut piece.stage {
            Stage::Fetching(hop) => (hop, false),
            Stage::Storing(hop) => (hop, true),
            Stage::Waiting | Stage::OnDisk(_) | Stage::Checksumming(_) | Stage::Ended(_) => return,
        };
        let stage = match self.side.arrived(hop) {
            Ok(None) => return,
            Err(error) => Stage::Ended(Err(error.into())),
            Ok(Some(buffer)) if is_storing => {
                self.side.give_back(buffer);
                Stage::Ended(Ok(()))
            }
            Ok(Some(buffer)) => {
                let (disk, at, length) = (Arc::clone(&piece.work.disk), piece.at, piece.length);
                let checksum_threads = Checksumming { read: None, is_unbuffered: false };
                self.checksum(self.first + index as u64, &disk, at, 0..length, buffer, checksum_threads)
            }
        };
        self.pieces[index].stage = stage;
    }

    fn finish_io(&mut self, done: Done<S::Io>) {
        let Done { tag, buffer, result } = done;
        let index = self.index(tag);
        let piece = &self.pieces[index];
        let Stage::OnDisk(OnDisk { op, is_unbuffered }) = piece.stage else {
            unreachable!("the disk answers each once");
        };
        let (disk, at) = (Arc::clone(&piece.work.disk), piece.at);
        let failure = self.side.disk_fails(&piece.work.memory, at..at + piece.length as u64);
        let result = failure.map_or(result, |error| Err(IoFlaw::Failed(error)));
        let result = match op {
            DiskOp::Reads(read) => read.check(result),
            DiskOp::Writes(_) => result,
        };
        let stage = match (op, result) {
            (DiskOp::Reads(read), Ok(())) => {
                let checksum_threads = Checksumming { read: Some(read), is_unbuffered };
                self.checksum(tag, &disk, at, read.skip..read.skip + read.length, buffer, checksum_threads)
            }
            (_, Err(flaw)) => {
                self.end(buffer, is_unbuffered, Err(failed(disk.id(), at, self.direction, flaw)))
            }
            (DiskOp::Writes(sum), Ok(())) => {
                disk.checksums().enter(at, sum);
                self.end(buffer, is_unbuffered, Ok(()))
            }
        };
        self.pieces[index].stage = stage;
    }

    fn finish_checksum(&mut self, summed: Checksummed<S::Io>) {
        let Checksummed { tag, mut buffer, sum } = summed;
        let index = self.index(tag);
        let piece = &self.pieces[index];
        let Stage::Checksumming(Checksumming { read, is_unbuffered }) = piece.stage else {
            unreachable!("each is summed up once");
        };
        let (disk, at, length) = (Arc::clone(&piece.work.disk), piece.at, piece.length);
        let Some(read) = read else {
            disk.checksums().forget(at);
            self.submit(tag, &disk, at, length.next_multiple_of(ALIGNMENT), buffer);
            self.pieces[index].stage = Stage::OnDisk(OnDisk { op: DiskOp::Writes(sum), is_unbuffered });
            return;
        };
        let stage = match disk.verify(at, read.expected, sum) {
            Ok(()) if !is_unbuffered => {
                let range = read.skip..read.skip + length;
                clear(&mut buffer, (read.skip + read.length).min(range.end)..range.end);
                let stored = self.side.store(&piece.work.memory, at, range, buffer);
                stored.map_or_else(|error| Stage::Ended(Err(error.into())), Stage::Storing)
            }
            result => self.end(buffer, is_unbuffered, result),
        };
        self.pieces[index].stage = stage;
    }

    /// Ends a piece and frees its buffer.
    fn end(&mut self, buffer: S::Io, is_unbuffered: bool, result: Result<(), CopyError>) -> Stage<S::Hop> {
        if !is_unbuffered {
            self.side.give_back(buffer);
        }
        Stage::Ended(result)
    }

    /// The index of the piece with that number.
    fn index(&self, tag: u64) -> usize {
        let index = tag.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        index.filter(|index| *index < self.pieces.len()).expect("a piece waits for it")
    }
}

impl<S: Side> Mover for DiskMover<S> {
    const CHUNK: u64 = PIECE;
    const BACKGROUND_CHUNK: u64 = PIECE;
    const IN_FLIGHT_MAX: usize = RING_PIECES;

    type Work = DiskWork<S::Memory>;
    /// The number of the piece.
    type Chunk = u64;

    /// Some of these are in memory: with fewer the disk would wait for the driver. With more, a demand copy
    /// would wait for pieces that the disk has not even begun.
    fn background_in_flight_max(&self) -> usize {
        match self.direction {
            DiskDirection::FromDisk => READS_MAX + READS_MAX / 2,
            DiskDirection::ToDisk => RING_PIECES - RING_PIECES / 4,
        }
    }

    fn begin(&mut self, work: &Self::Work, at: u64, length: u64) -> Result<u64, CopyError> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let index = self.pieces.len();
        self.pieces.push_back(Piece::new(work.clone(), at, length));
        self.start(index);
        Ok(self.first + index as u64)
    }

    /// Called only for the first piece; the others are behind it in line.
    fn poll(&mut self, number: &mut u64) -> Result<bool, CopyError> {
        self.advance();
        debug_assert_eq!(*number, self.first, "pieces are polled in their order");
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

    fn poll_after(&self, _: &u64, _is_last: bool) -> Duration {
        if self.has_progress { Duration::ZERO } else { BETWEEN_PIECES }
    }
}
