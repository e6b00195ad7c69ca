//! What the disk carries, measured when the driver is opened: reads alone, writes alone, and both at once.

use std::{
    mem::ManuallyDrop,
    os::fd::OwnedFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use vramd_types::{Bytes, ExtentId};

use super::{
    Disk, PIECE, READS_MAX, RING_PIECES,
    directory::ExtentFile,
    engine::{Engine, Op, Warn, Way},
    room::{Buffer, Room as _},
};
use crate::{DriverError, LaneId, LinkFacts, copies};

/// Of each measure, unless the disk is so slow that [`LEAST`] pieces take longer.
const LASTS: Duration = Duration::from_millis(100);
const LEAST: u64 = 8;
/// Larger than what a disk keeps for itself it should not be: this is for who goes first, not for a page of figures.
const FILE: Bytes = Bytes::mib(128);
/// A disk of 20 MB/s, which takes some seconds for all of this.
const ONE_WITHIN: Duration = Duration::from_millis(100);
/// The buffers of both ways, which are given up afterwards.
pub(crate) const MEASURED_BY: Bytes = Bytes::new((READS_MAX + RING_PIECES) as u64 * PIECE);
/// What cannot be written by then is not read either.
const WRITTEN_WITHIN: Duration = Duration::from_millis(500);
/// A disk that does not answer for so long is measured no further: a start does not wait for it.
const GIVES_UP: Duration = Duration::from_secs(2);

/// Of what is written, in bytes.
const WORD: usize = size_of::<u64>();

impl Disk {
    /// Of its directory, where it leaves nothing behind.
    pub(crate) fn measure(&self) -> Result<Vec<LinkFacts>, DriverError> {
        let Some(room) = &self.room else { return Ok(Vec::new()) };
        let size = FILE.min(room.facts.capacity);
        // No extent of the caller's has that id.
        let file = room.directory.make(ExtentId::from_raw(0), size)?;
        let new = |way| Run::new(self, &file, way, size);
        let [read, write, both] = carried(new(Way::ToDisk)?, new(Way::FromDisk)?)?;
        let alone = [(LaneId::FromDisk, read[0]), (LaneId::ToDisk, write[0])];
        let links = alone.map(|lane| LinkFacts { name: lane.0.to_string(), lanes: vec![lane] });
        Ok(links.into_iter().chain(copies::shared("disk", &alone, &both)).collect())
    }
}

/// What reads and writes carry alone, and both at once.
fn carried(mut writes: Run, mut reads: Run) -> Result<[Vec<u64>; 3], DriverError> {
    let measured = measured(&mut writes, &mut reads);
    if measured.is_err() {
        leave([writes, reads]);
    }
    measured
}

fn measured(writes: &mut Run, reads: &mut Run) -> Result<[Vec<u64>; 3], DriverError> {
    writes.try_one()?;
    reads.pieces = writes.fill()?;
    let (write, read) = (together(&mut [writes])?, together(&mut [reads])?);
    Ok([read, write, together(&mut [reads, writes])?])
}

/// What is under way may end late, or never: its memory is given up then, and nobody waits for that.
fn leave(runs: [Run; 2]) {
    let runs = ManuallyDrop::new(runs);
    let wait = move || drop(ManuallyDrop::into_inner(runs));
    // Without a thread it is never given up.
    let _ = thread::Builder::new().name("disk-measure".to_owned()).spawn(wait);
}

/// So many pieces are under way, as in a lane.
fn depth(way: Way) -> usize {
    match way {
        Way::FromDisk => READS_MAX,
        Way::ToDisk => RING_PIECES,
    }
}

/// Pieces that follow each other, round and round.
struct Run {
    engine: Engine<Buffer>,
    file: Arc<OwnedFd>,
    way: Way,
    idle: Vec<Buffer>,
    next: u64,
    /// So many are there to go round.
    pieces: u64,
}

impl Run {
    fn new(disk: &Disk, file: &ExtentFile, way: Way, size: Bytes) -> Result<Self, DriverError> {
        let length = usize::try_from(PIECE).unwrap_or(usize::MAX);
        // Some disks look whether it is all the same: in each buffer it lies a word further on, so that no block is like another.
        let mut text = Vec::with_capacity(length + WORD * depth(way));
        for word in 0..length / WORD + depth(way) {
            text.extend_from_slice(&mixed(word));
        }
        let buffer = |at: usize| {
            let mut buffer = Buffer::new(length)?;
            buffer.fill(text.get(at * WORD..).and_then(|text| text.get(..length)).unwrap_or_default());
            Ok(buffer)
        };
        let buffers: std::io::Result<Vec<Buffer>> = (0..depth(way)).map(buffer).collect();
        let idle = buffers.map_err(|error| DriverError::Failed(format!("make a buffer: {error}")))?;
        // Of a ring that breaks the lanes tell.
        let engine = Engine::new(disk.engine, depth(way), Warn::by(drop))?;
        Ok(Self { engine, file: Arc::clone(&file.fd), way, idle, next: 0, pieces: size.get() / PIECE })
    }

    /// Begins as many as there are buffers for.
    fn begin(&mut self) {
        while self.begin_one() {}
    }

    /// Unless all buffers are under way.
    fn begin_one(&mut self) -> bool {
        let Some(room) = self.idle.pop() else { return false };
        let at = self.next % self.pieces.max(1) * PIECE;
        let (file, length) = (Arc::clone(&self.file), room.bytes().len());
        self.engine.begin(Op { tag: self.next, file, way: self.way, at, length, room });
        self.next += 1;
        true
    }

    /// How many have ended by now.
    fn end(&mut self) -> Result<u64, DriverError> {
        let mut ended = 0;
        while let Some(done) = self.engine.poll() {
            done.result.map_err(|flaw| DriverError::Failed(format!("measure the disk: {flaw:?}")))?;
            self.idle.push(done.room);
            ended += 1;
        }
        Ok(ended)
    }

    fn drain(&mut self) -> Result<(), DriverError> {
        let mut heard = Instant::now();
        while self.idle.len() < depth(self.way) {
            if self.end()? > 0 {
                heard = Instant::now();
            }
            answers_since(heard)?;
            thread::yield_now();
        }
        Ok(())
    }

    /// What is slower than that is not measured: a start would take too long.
    fn try_one(&mut self) -> Result<(), DriverError> {
        let began = Instant::now();
        self.begin_one();
        self.drain()?;
        if began.elapsed() > ONE_WITHIN {
            let problem =
                format!("it took {:?} to write {PIECE} bytes: the disk is not measured", began.elapsed());
            return Err(DriverError::Failed(problem));
        }
        Ok(())
    }

    /// Writes each piece once, as far as that goes. How many were written.
    fn fill(&mut self) -> Result<u64, DriverError> {
        let began = Instant::now();
        while self.next < self.pieces && began.elapsed() < WRITTEN_WITHIN {
            self.begin();
            self.end()?;
            thread::yield_now();
        }
        self.drain()?;
        Ok(self.next.min(self.pieces))
    }
}

/// What each carries in bytes per second, while all are at it.
fn together(runs: &mut [&mut Run]) -> Result<Vec<u64>, DriverError> {
    let mut ended = vec![0; runs.len()];
    let began = Instant::now();
    let mut heard = began;
    while began.elapsed() < LASTS || ended.iter().any(|ended| *ended < LEAST) {
        for (run, ended) in runs.iter_mut().zip(&mut ended) {
            run.begin();
            let now = run.end()?;
            if now > 0 {
                heard = Instant::now();
            }
            *ended += now;
        }
        answers_since(heard)?;
        thread::yield_now();
    }
    let took = began.elapsed().as_nanos().max(1);
    runs.iter_mut().try_for_each(|run| run.drain())?;
    let rate = |ended: u64| u128::from(ended) * u128::from(PIECE) * 1_000_000_000 / took;
    Ok(ended.into_iter().map(|ended| u64::try_from(rate(ended)).unwrap_or(u64::MAX)).collect())
}

/// Whether it is not too long ago that anything has ended.
fn answers_since(heard: Instant) -> Result<(), DriverError> {
    match heard.elapsed() > GIVES_UP {
        true => Err(DriverError::Failed(format!("the disk has not answered within {GIVES_UP:?}"))),
        false => Ok(()),
    }
}

/// Eight bytes that follow from nothing before them.
fn mixed(word: usize) -> [u8; WORD] {
    let seed = word as u64;
    let mixed = (seed ^ seed >> 7).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9).to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        DirectoryError, DiskConfig, DiskEngine,
        disk::{engine::Chosen, uring_works},
    };

    fn run(way: Way, file: OwnedFd) -> Run {
        let idle = (0..depth(way)).map(|_| Buffer::new(4096).unwrap()).collect();
        let chosen = Chosen { engine: DiskEngine::Uring, is_named: true };
        let engine = Engine::new(chosen, depth(way), Warn::by(drop)).unwrap();
        Run { engine, file: Arc::new(file), way, idle, next: 0, pieces: 1 }
    }

    /// As a disk that has gone away: nothing that is asked of it ends.
    #[test]
    fn a_disk_that_does_not_answer_holds_up_no_start() {
        if uring_works().is_err() {
            return;
        }
        // From its first piece on, and once it has taken some.
        for taken in [1 << 16, 0] {
            let (silent, mut full) = std::io::pipe().unwrap();
            std::io::Write::write_all(&mut full, &vec![0; taken]).unwrap();
            let [reads, writes] = [run(Way::FromDisk, silent.into()), run(Way::ToDisk, full.into())];
            let began = Instant::now();
            let problem = carried(writes, reads).unwrap_err().to_string();
            assert!(problem.contains("within 2s") && began.elapsed() < 4 * GIVES_UP, "{problem}");
        }
    }

    #[test]
    fn a_disk_is_measured_both_ways_and_has_its_bytes_back() {
        for engine in [DiskEngine::Threads, DiskEngine::Uring] {
            let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
            let directory = folder.path().to_owned();
            let capacity = Bytes::mib(32);
            let config = DiskConfig { directory: directory.clone(), capacity, engine: Some(engine) };
            let disk = match Disk::open(Some(&config), false).map(|disk| disk.expect("one was asked for")) {
                Err(DirectoryError::NoUring(_)) => continue,
                disk => disk.unwrap(),
            };
            let links = disk.measure().unwrap();
            assert_eq!(links[0].lanes[0].0, LaneId::FromDisk);
            assert_eq!(links[1].lanes[0].0, LaneId::ToDisk);
            assert!(links.iter().all(|link| link.lanes.iter().all(|(_, carries)| *carries > 0)), "{links:?}");
            let left = std::fs::read_dir(&directory).unwrap().count();
            assert_eq!(left, 1, "the lock alone");
            disk.room.as_ref().unwrap().directory.make(ExtentId::from_raw(1), capacity).unwrap();
        }
    }
}
