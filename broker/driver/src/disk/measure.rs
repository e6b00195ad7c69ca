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
/// A disk that ends no read, or no write, for so long is measured no further: a start does not wait for it.
const GIVES_UP: Duration = Duration::from_secs(2);
/// Nor for one that answers, but takes longer than that for all of it: [`ONE_WITHIN`] lets by what needs some seconds.
const ALL_WITHIN: Duration = Duration::from_secs(15);

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
        let (writes, reads) = (new(Way::ToDisk)?, new(Way::FromDisk)?);
        let [read, write, both] = carried(writes, reads, file)?;
        let alone = [(LaneId::FromDisk, read[0]), (LaneId::ToDisk, write[0])];
        let links = alone.map(|lane| LinkFacts { name: lane.0.to_string(), lanes: vec![lane] });
        Ok(links.into_iter().chain(copies::shared("disk", &alone, &both)).collect())
    }
}

/// What reads and writes carry alone, and both at once. The file is given up with them.
fn carried<F: Send + 'static>(
    mut writes: Run,
    mut reads: Run,
    file: F,
) -> Result<[Vec<u64>; 3], DriverError> {
    let measured = measured(&mut writes, &mut reads);
    if measured.is_err() {
        leave((file, writes, reads));
    }
    measured
}

fn measured(writes: &mut Run, reads: &mut Run) -> Result<[Vec<u64>; 3], DriverError> {
    writes.try_one()?;
    reads.pieces = writes.fill()?;
    let (write, read) = (together(&mut [writes])?, together(&mut [reads])?);
    Ok([read, write, together(&mut [reads, writes])?])
}

/// What is under way may end late, or never, and a file system that hangs does not let go of a file either: all of it is given up where
/// nobody waits for that.
fn leave<L: Send + 'static>(left: L) {
    let left = ManuallyDrop::new(left);
    let give_up = move || drop(ManuallyDrop::into_inner(left));
    // Without a thread it never is, and the next start deletes the file.
    let _ = thread::Builder::new().name("disk-measure".to_owned()).spawn(give_up);
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
    /// When something has ended last, or the first was begun.
    heard: Instant,
    /// When all of the measure is to be over.
    until: Instant,
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
        let (pieces, heard) = (size.get() / PIECE, Instant::now());
        let file = Arc::clone(&file.fd);
        Ok(Self { engine, file, way, idle, next: 0, pieces, heard, until: heard + ALL_WITHIN })
    }

    /// Begins as many as there are buffers for.
    fn begin(&mut self) {
        while self.begin_one() {}
    }

    /// Unless all buffers are under way.
    fn begin_one(&mut self) -> bool {
        if self.is_idle() {
            self.heard = Instant::now();
        }
        let Some(room) = self.idle.pop() else { return false };
        let at = self.next % self.pieces.max(1) * PIECE;
        let (file, length) = (Arc::clone(&self.file), room.bytes().len());
        self.engine.begin(Op { tag: self.next, file, way: self.way, at, length, room });
        self.next += 1;
        true
    }

    fn is_idle(&self) -> bool {
        self.idle.len() == depth(self.way)
    }

    /// How many have ended by now. Fails where what is under way has taken too long.
    fn end(&mut self) -> Result<u64, DriverError> {
        let mut ended = 0;
        while let Some(done) = self.engine.poll() {
            done.result.map_err(|flaw| DriverError::Failed(format!("measure the disk: {flaw:?}")))?;
            self.idle.push(done.room);
            ended += 1;
        }
        if ended > 0 {
            self.heard = Instant::now();
        }
        if !self.is_idle() {
            self.check_time()?;
        }
        Ok(ended)
    }

    fn check_time(&self) -> Result<(), DriverError> {
        let problem = if self.heard.elapsed() > GIVES_UP {
            let what = match self.way {
                Way::FromDisk => "read",
                Way::ToDisk => "write",
            };
            format!("the disk has ended no {what} within {GIVES_UP:?}")
        } else if Instant::now() > self.until {
            format!("the disk takes longer than {ALL_WITHIN:?}: it is not measured")
        } else {
            return Ok(());
        };
        Err(DriverError::Failed(problem))
    }

    fn drain(&mut self) -> Result<(), DriverError> {
        while !self.is_idle() {
            self.end()?;
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
    while began.elapsed() < LASTS || ended.iter().any(|ended| *ended < LEAST) {
        for (run, ended) in runs.iter_mut().zip(&mut ended) {
            run.begin();
            *ended += run.end()?;
        }
        thread::yield_now();
    }
    let took = began.elapsed().as_nanos().max(1);
    runs.iter_mut().try_for_each(|run| run.drain())?;
    let rate = |ended: u64| u128::from(ended) * u128::from(PIECE) * 1_000_000_000 / took;
    Ok(ended.into_iter().map(|ended| u64::try_from(rate(ended)).unwrap_or(u64::MAX)).collect())
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
        let heard = Instant::now();
        Run { engine, file: Arc::new(file), way, idle, next: 0, pieces: 1, heard, until: heard + ALL_WITHIN }
    }

    /// Of that, which is to end by itself. What a run has under way is left to end, or not, where nobody waits for it.
    fn within(limit: Duration, runs: Vec<Run>) -> (Option<String>, Duration) {
        let (told, tells) = std::sync::mpsc::channel();
        let began = Instant::now();
        thread::spawn(move || {
            let mut runs = runs;
            let problem = together(&mut runs.iter_mut().collect::<Vec<_>>()).err();
            told.send((problem.map(|it| it.to_string()), began.elapsed())).unwrap();
            leave(runs);
        });
        tells.recv_timeout(limit).expect("it ends by itself")
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
            let problem = carried(writes, reads, ()).unwrap_err().to_string();
            assert!(problem.contains("within 2s") && began.elapsed() < 4 * GIVES_UP, "{problem}");
        }
    }

    /// As one of which a path has gone away, or a file system that has become read-only and does not say so.
    #[test]
    fn a_disk_that_ends_reads_and_no_writes_holds_up_no_start() {
        if uring_works().is_err() {
            return;
        }
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        let (_silent, mut full) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut full, &vec![0; 1 << 16]).unwrap();
        let runs = vec![run(Way::FromDisk, zeros.into()), run(Way::ToDisk, full.into())];
        let (problem, took) = within(8 * GIVES_UP, runs);
        let problem = problem.expect("nothing was written");
        assert!(problem.contains("no write within 2s") && took < 2 * GIVES_UP, "{problem} {took:?}");
    }

    #[test]
    fn a_disk_that_answers_now_and_then_is_measured_for_so_long_and_no_longer() {
        if uring_works().is_err() {
            return;
        }
        let (trickle, mut drops) = std::io::pipe().unwrap();
        thread::spawn(move || {
            while std::io::Write::write_all(&mut drops, &[0; 4096]).is_ok() {
                thread::sleep(Duration::from_millis(500));
            }
        });
        let mut reads = run(Way::FromDisk, trickle.into());
        reads.until = Instant::now() + Duration::from_millis(700);
        let (problem, took) = within(8 * GIVES_UP, vec![reads]);
        assert!(problem.expect("it takes too long").contains("takes longer than"));
        assert!(took < Duration::from_secs(3), "{took:?}");
    }

    /// Where a file cannot be unlinked, for as long as it may be.
    struct Hangs(std::sync::mpsc::Receiver<()>);

    impl Drop for Hangs {
        fn drop(&mut self) {
            let _ = self.0.recv_timeout(Duration::from_secs(20));
        }
    }

    #[test]
    fn a_file_that_cannot_be_deleted_holds_up_no_start_that_has_given_up_its_disk() {
        if uring_works().is_err() {
            return;
        }
        let (silent, mut full) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut full, &vec![0; 1 << 16]).unwrap();
        let [reads, writes] = [run(Way::FromDisk, silent.into()), run(Way::ToDisk, full.into())];
        let (goes_on, hangs) = std::sync::mpsc::channel();
        let began = Instant::now();
        carried(writes, reads, Hangs(hangs)).unwrap_err();
        assert!(began.elapsed() < 4 * GIVES_UP, "{:?}", began.elapsed());
        // Somebody is at it.
        goes_on.send(()).unwrap();
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
