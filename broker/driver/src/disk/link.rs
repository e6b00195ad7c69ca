//! The lane of copies from disk or to it: what a piece goes through.
//!
//! ```text
//! from disk   read ─► sum, verify ─────────────► memory of the host        the disk reads right into it
//!             read ─► sum, verify ─► store ────► memory of a device        through a buffer of the ring
//! to disk     sum ─► write                       memory of the host
//!             fetch ─► sum ─► write              memory of a device        through a buffer of the ring
//! ```
//!
//! As many pieces as there are buffers are under way, each somewhere else on its way: so the disk reads one while others are
//! summed up, by other threads, and the device takes another.

use std::{collections::VecDeque, num::NonZeroU64, ops::Range, sync::Arc, time::Duration};

use rustix::thread::set_current_timer_slack;

use super::{
    ALIGNMENT, PIECE, READS_MAX, RING_PIECES,
    engine::{Chosen, Done, Engine, Flaw, Op, Warn, Way},
    extent::{DiskExtent, Reading},
    piece::{DiskWork, Doing, OnDisk, Piece, Stage, Summing, failed},
    room::clear,
    side::Side,
    summing::{Summed, Summers, ToSum, summers},
};
use crate::{
    Completion, CopyError, DriverError,
    copies::{LaneEnd, Link, lane},
};

/// A fraction of what a fast disk takes for a piece, of which there are many under way.
const BETWEEN_PIECES: Duration = Duration::from_micros(100);

#[derive(Debug)]
pub(crate) struct DiskLink<S: Side> {
    way: Way,
    side: S,
    engine: Engine<S::Room>,
    summers: Summers<S::Room>,
    /// In the order of their beginning.
    pieces: VecDeque<Piece<S>>,
    /// The number of the first of them.
    first: u64,
    /// Something had been done; more may be by now.
    is_behind: bool,
    /// No buffer could be had: until it is looked at again pieces wait that need one.
    is_short: bool,
}

/// Until nobody can send any more and all is done.
pub(crate) fn run_lane<L: Link>(link: L, end: LaneEnd<Way, L::Work>, tell: impl Fn(Completion)) {
    // Else every sleep takes 50 us more.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    lane::run(link, end.links, &end.orders, tell);
}

impl<S: Side> DiskLink<S> {
    pub(crate) fn new(way: Way, side: S, engine: Chosen, warn: Warn) -> Result<Self, DriverError> {
        let engine = Engine::new(engine, RING_PIECES, warn)?;
        let summers = summers()?;
        let pieces = VecDeque::new();
        Ok(Self { way, side, engine, summers, pieces, first: 0, is_behind: false, is_short: false })
    }

    /// The piece of that index, unless another is to be at its place before it: the disk keeps no order.
    fn start(&mut self, index: usize) {
        let Some(piece) = self.pieces.get(index).filter(|it| matches!(it.stage, Stage::Waiting)) else {
            return;
        };
        if self.pieces.range(..index).any(|earlier| earlier.is_in_the_way_of(piece, self.way)) {
            return;
        }
        if self.way == Way::FromDisk && self.on_disk() >= READS_MAX {
            return;
        }
        let (work, at, length) = (piece.work.clone(), piece.at, piece.length);
        let tag = self.first + index as u64;
        let begun = match self.way {
            Way::FromDisk => self.begin_read(tag, &work, at, length),
            Way::ToDisk => self.begin_write(tag, &work, at, length),
        };
        self.pieces[index].stage = match begun {
            Ok(Some(stage)) => stage,
            // It waits for a buffer.
            Ok(None) => return,
            Err(error) => Stage::Ended(Err(error)),
        };
    }

    fn on_disk(&self) -> usize {
        self.pieces.iter().filter(|piece| matches!(piece.stage, Stage::OnDisk(_))).count()
    }

    /// None where there is no buffer for it now.
    fn begin_read(
        &mut self,
        tag: u64,
        work: &DiskWork<S::Memory>,
        at: u64,
        length: usize,
    ) -> Result<Option<Stage<S::Hop>>, CopyError> {
        let reading = work.disk.reading(at, length)?;
        let Reading { blocks, skip, .. } = reading;
        // What is verified is all that is there, of which memory may be to get a part only, or more.
        let is_whole = skip == 0 && blocks == length && reading.length == length;
        let straight = is_whole.then(|| self.side.straight(&work.memory, at, blocks)).flatten();
        let is_straight = straight.is_some();
        let room = match straight {
            Some(room) => Some(room),
            None => self.buffer(blocks.max(skip + length))?,
        };
        let Some(room) = room else { return Ok(None) };
        if blocks == 0 {
            let summing = Summing { read: Some(reading), is_straight };
            return Ok(Some(self.sum_up(tag, &work.disk, at, 0..0, room, summing)));
        }
        self.submit(tag, &work.disk, reading.at, blocks, room);
        Ok(Some(Stage::OnDisk(OnDisk { is: Doing::Reads(reading), is_straight })))
    }

    /// Likewise.
    fn begin_write(
        &mut self,
        tag: u64,
        work: &DiskWork<S::Memory>,
        at: u64,
        length: usize,
    ) -> Result<Option<Stage<S::Hop>>, CopyError> {
        if !work.disk.is_own() {
            let problem = format!("{} is a piece of a file that is not ours", work.disk.id());
            return Err(DriverError::Failed(problem).into());
        }
        let blocks = length.next_multiple_of(ALIGNMENT);
        if let Some(room) = self.side.straight(&work.memory, at, blocks) {
            let summing = Summing { read: None, is_straight: true };
            return Ok(Some(self.sum_up(tag, &work.disk, at, 0..length, room, summing)));
        }
        let Some(buffer) = self.buffer(blocks)? else { return Ok(None) };
        Ok(Some(Stage::Fetching(self.side.fetch(&work.memory, at, length, buffer)?)))
    }

    /// What comes of it is verified, or else the piece is written.
    fn sum_up(
        &self,
        tag: u64,
        disk: &Arc<DiskExtent>,
        at: u64,
        range: Range<usize>,
        room: S::Room,
        summing: Summing,
    ) -> Stage<S::Hop> {
        let (skip, length) = (range.start, range.len());
        self.summers.begin(ToSum { tag, disk: Arc::clone(disk), at, skip, length, room });
        Stage::Summing(summing)
    }

    fn submit(&mut self, tag: u64, disk: &DiskExtent, at: u64, length: usize, room: S::Room) {
        self.engine.begin(Op { tag, file: Arc::clone(disk.file()), way: self.way, at, length, room });
    }

    /// Of so many bytes at least, if there is one: of a piece, or of that and the blocks around it.
    fn buffer(&mut self, length: usize) -> Result<Option<S::Room>, DriverError> {
        if self.is_short {
            return Ok(None);
        }
        let piece = usize::try_from(PIECE).unwrap_or(usize::MAX);
        let buffer = self.side.buffer(if length > piece { piece + ALIGNMENT } else { piece })?;
        self.is_short = buffer.is_none();
        Ok(buffer)
    }

    /// Takes every piece as far as it goes now.
    fn advance(&mut self) {
        self.is_behind = false;
        while let Some(done) = self.engine.poll() {
            self.is_behind = true;
            self.disk_has_done(done);
        }
        while let Some(summed) = self.summers.poll() {
            self.is_behind = true;
            self.has_been_summed(summed);
        }
        for index in 0..self.pieces.len() {
            self.hop(index);
        }
        // What was in the way of a piece has ended now, or will be looked at again; and a buffer may have come back.
        self.is_short = false;
        for index in 0..self.pieces.len() {
            self.start(index);
        }
    }

    /// Takes a piece further whose bytes have come to a buffer, or from it.
    fn hop(&mut self, index: usize) {
        let Some(piece) = self.pieces.get_mut(index) else { return };
        let (hop, is_storing) = match &mut piece.stage {
            Stage::Fetching(hop) => (hop, false),
            Stage::Storing(hop) => (hop, true),
            Stage::Waiting | Stage::OnDisk(_) | Stage::Summing(_) | Stage::Ended(_) => return,
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
                let summing = Summing { read: None, is_straight: false };
                self.sum_up(self.first + index as u64, &disk, at, 0..length, buffer, summing)
            }
        };
        self.pieces[index].stage = stage;
    }

    fn disk_has_done(&mut self, done: Done<S::Room>) {
        let Done { tag, room, result } = done;
        let index = self.index(tag);
        let piece = &self.pieces[index];
        let Stage::OnDisk(OnDisk { is, is_straight }) = piece.stage else {
            unreachable!("the disk answers each once");
        };
        let (disk, at) = (Arc::clone(&piece.work.disk), piece.at);
        let failure = self.side.disk_fails(&piece.work.memory, at..at + piece.length as u64);
        let result = failure.map_or(result, |error| Err(Flaw::Failed(error)));
        let result = match is {
            Doing::Reads(read) => read.check(result),
            Doing::Writes(_) => result,
        };
        let stage = match (is, result) {
            (Doing::Reads(read), Ok(())) => {
                let summing = Summing { read: Some(read), is_straight };
                self.sum_up(tag, &disk, at, read.skip..read.skip + read.length, room, summing)
            }
            (_, Err(flaw)) => self.end(room, is_straight, Err(failed(disk.id(), at, self.way, flaw))),
            (Doing::Writes(sum), Ok(())) => {
                disk.sums().enter(at, sum);
                self.end(room, is_straight, Ok(()))
            }
        };
        self.pieces[index].stage = stage;
    }

    fn has_been_summed(&mut self, summed: Summed<S::Room>) {
        let Summed { tag, mut room, sum } = summed;
        let index = self.index(tag);
        let piece = &self.pieces[index];
        let Stage::Summing(Summing { read, is_straight }) = piece.stage else {
            unreachable!("each is summed up once");
        };
        let (disk, at, length) = (Arc::clone(&piece.work.disk), piece.at, piece.length);
        let Some(read) = read else {
            disk.sums().forget(at);
            self.submit(tag, &disk, at, length.next_multiple_of(ALIGNMENT), room);
            self.pieces[index].stage = Stage::OnDisk(OnDisk { is: Doing::Writes(sum), is_straight });
            return;
        };
        let stage = match disk.verify(at, read.expected, sum) {
            Ok(()) if !is_straight => {
                let range = read.skip..read.skip + length;
                clear(&mut room, (read.skip + read.length).min(range.end)..range.end);
                let stored = self.side.store(&piece.work.memory, at, range, room);
                stored.map_or_else(|error| Stage::Ended(Err(error.into())), Stage::Storing)
            }
            result => self.end(room, is_straight, result),
        };
        self.pieces[index].stage = stage;
    }

    /// Its buffer is free for others.
    fn end(&mut self, room: S::Room, is_straight: bool, result: Result<(), CopyError>) -> Stage<S::Hop> {
        if !is_straight {
            self.side.give_back(room);
        }
        Stage::Ended(result)
    }

    /// Of the piece of that number.
    fn index(&self, tag: u64) -> usize {
        let index = tag.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        index.filter(|index| *index < self.pieces.len()).expect("a piece waits for it")
    }
}

impl<S: Side> Link for DiskLink<S> {
    const CHUNK: u64 = PIECE;
    const BACKGROUND_CHUNK: u64 = PIECE;
    const UNDER_WAY_MAX: usize = RING_PIECES;

    type Work = DiskWork<S::Memory>;
    /// The piece's number.
    type Chunk = u64;

    /// Some of these are in memory: with fewer the disk would wait for us. With more whoever comes would wait for what the disk has not even begun.
    fn background_under_way_max(&self) -> usize {
        match self.way {
            Way::FromDisk => READS_MAX + READS_MAX / 2,
            Way::ToDisk => RING_PIECES - RING_PIECES / 4,
        }
    }

    fn begin(&mut self, work: &Self::Work, at: u64, length: u64) -> Result<u64, CopyError> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let index = self.pieces.len();
        self.pieces.push_back(Piece::new(work.clone(), at, length));
        self.start(index);
        Ok(self.first + index as u64)
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
        if self.is_behind { Duration::ZERO } else { BETWEEN_PIECES }
    }
}
