//! Measures the speed of the disk when the driver is opened: reads alone, writes alone, and both at once.

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
    engine::{DiskDirection, Engine, Op, Warn},
    io_memory::{Buffer, IoMemory as _},
};
use crate::{DriverError, LaneId, LinkFacts, copies};

/// How long each measurement takes, unless [`PIECES_MIN`] pieces take longer.
const MEASURE_FOR: Duration = Duration::from_millis(100);
const PIECES_MIN: u64 = 8;
/// It need not exceed the disk's own cache: the result only decides which copy goes next.
const FILE_SIZE: Bytes = Bytes::mib(128);
/// The limit for the first write. A disk of 20 MB/s stays within it, and takes some seconds for the whole
/// measurement.
const FIRST_WRITE_MAX: Duration = Duration::from_millis(100);
/// The buffers of both directions, which are freed afterwards.
pub(crate) const MEASURE_BUFFERS: Bytes = Bytes::new((READS_MAX + RING_PIECES) as u64 * PIECE);
/// How long the file is filled. Pieces that are not written by then are not read either.
const FILL_MAX: Duration = Duration::from_millis(500);
/// A disk that ends no read, or no write, for so long is not measured further: the start does not wait for it.
const GIVE_UP_AFTER: Duration = Duration::from_secs(2);
/// The limit for the whole measurement, for a disk that answers slowly: [`FIRST_WRITE_MAX`] admits one that
/// takes some seconds.
const MEASURE_MAX: Duration = Duration::from_secs(15);

/// The unit of the written pattern, in bytes.
const WORD: usize = size_of::<u64>();

impl Disk {
    /// Measures the disk of the directory, and leaves no file behind.
    pub(crate) fn measure(&self) -> Result<Vec<LinkFacts>, DriverError> {
        let Some(store) = &self.store else { return Ok(Vec::new()) };
        let size = FILE_SIZE.min(store.facts.capacity);
        // The caller uses no extent with that id.
        let file = store.directory.create_file(ExtentId::from_raw(0), size)?;
        let new = |direction| Run::new(self, &file, direction, size);
        let (writes, reads) = (new(DiskDirection::ToDisk)?, new(DiskDirection::FromDisk)?);
        let [read, write, both] = measure_or_abandon(writes, reads, file)?;
        let alone = [(LaneId::FromDisk, read[0]), (LaneId::ToDisk, write[0])];
        let links = alone.map(|lane| LinkFacts { name: lane.0.to_string(), lanes: vec![lane] });
        Ok(links.into_iter().chain(copies::shared_link("disk", &alone, &both)).collect())
    }
}

/// Measures reads alone, writes alone, and both. A failed measurement leaves the runs and the file to a thread.
fn measure_or_abandon<F: Send + 'static>(
    mut writes: Run,
    mut reads: Run,
    file: F,
) -> Result<[Vec<u64>; 3], DriverError> {
    let measure_all = measure_all(&mut writes, &mut reads);
    if measure_all.is_err() {
        abandon((file, writes, reads));
    }
    measure_all
}

fn measure_all(writes: &mut Run, reads: &mut Run) -> Result<[Vec<u64>; 3], DriverError> {
    writes.time_one_write()?;
    reads.pieces = writes.fill()?;
    let (write, read) = (measure_together(&mut [writes])?, measure_together(&mut [reads])?);
    Ok([read, write, measure_together(&mut [reads, writes])?])
}

/// Drops the operations in flight and the file on a thread of its own. The operations may end late or never,
/// and a hung file system does not close the file.
fn abandon<L: Send + 'static>(left: L) {
    let left = ManuallyDrop::new(left);
    let give_up = move || drop(ManuallyDrop::into_inner(left));
    // Without a thread they are never dropped, and the next start deletes the file.
    let _ = thread::Builder::new().name("disk-measure".to_owned()).spawn(give_up);
}

/// How many pieces are in flight, as in a lane.
fn depth(direction: DiskDirection) -> usize {
    match direction {
        DiskDirection::FromDisk => READS_MAX,
        DiskDirection::ToDisk => RING_PIECES,
    }
}

/// Reads or writes the pieces of the file, round and round.
struct Run {
    engine: Engine<Buffer>,
    file: Arc<OwnedFd>,
    direction: DiskDirection,
    idle: Vec<Buffer>,
    next: u64,
    /// The number of pieces.
    pieces: u64,
    /// When an operation last ended, or the first began.
    last_progress: Instant,
    /// When the whole measurement must be over.
    deadline: Instant,
}

impl Run {
    fn new(
        disk: &Disk,
        file: &ExtentFile,
        direction: DiskDirection,
        size: Bytes,
    ) -> Result<Self, DriverError> {
        let length = usize::try_from(PIECE).unwrap_or(usize::MAX);
        // Some disks detect equal blocks. So the pattern begins a word later in each buffer, and no block
        // equals another.
        let mut text = Vec::with_capacity(length + WORD * depth(direction));
        for word in 0..length / WORD + depth(direction) {
            text.extend_from_slice(&mixed(word));
        }
        let buffer = |at: usize| {
            let mut buffer = Buffer::new(length)?;
            buffer.fill(text.get(at * WORD..).and_then(|text| text.get(..length)).unwrap_or_default());
            Ok(buffer)
        };
        let buffers: std::io::Result<Vec<Buffer>> = (0..depth(direction)).map(buffer).collect();
        let idle =
            buffers.map_err(|error| DriverError::Failed(format!("cannot allocate a buffer: {error}")))?;
        // A broken ring is reported by the lanes.
        let engine = Engine::new(disk.engine, depth(direction), Warn::by(drop))?;
        let (pieces, last_progress) = (size.get() / PIECE, Instant::now());
        let file = Arc::clone(&file.fd);
        Ok(Self {
            engine,
            file,
            direction,
            idle,
            next: 0,
            pieces,
            last_progress,
            deadline: last_progress + MEASURE_MAX,
        })
    }

    /// Begins an operation with each idle buffer.
    fn begin(&mut self) {
        while self.begin_one() {}
    }

    /// Begins an operation, unless all buffers are in flight.
    fn begin_one(&mut self) -> bool {
        if self.is_idle() {
            self.last_progress = Instant::now();
        }
        let Some(buffer) = self.idle.pop() else { return false };
        let at = self.next % self.pieces.max(1) * PIECE;
        let (file, length) = (Arc::clone(&self.file), buffer.bytes().len());
        self.engine.begin(Op { tag: self.next, file, direction: self.direction, at, length, buffer });
        self.next += 1;
        true
    }

    fn is_idle(&self) -> bool {
        self.idle.len() == depth(self.direction)
    }

    /// How many operations have ended by now. Fails if those in flight take too long.
    fn end(&mut self) -> Result<u64, DriverError> {
        let mut ended = 0;
        while let Some(done) = self.engine.poll() {
            done.result.map_err(|flaw| DriverError::Failed(format!("cannot measure the disk: {flaw:?}")))?;
            self.idle.push(done.buffer);
            ended += 1;
        }
        if ended > 0 {
            self.last_progress = Instant::now();
        }
        if !self.is_idle() {
            self.check_time()?;
        }
        Ok(ended)
    }

    fn check_time(&self) -> Result<(), DriverError> {
        let problem = if self.last_progress.elapsed() > GIVE_UP_AFTER {
            let what = match self.direction {
                DiskDirection::FromDisk => "read",
                DiskDirection::ToDisk => "write",
            };
            format!("the disk finished no {what} within {GIVE_UP_AFTER:?}")
        } else if Instant::now() > self.deadline {
            format!("measuring the disk takes longer than {MEASURE_MAX:?}")
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

    /// Times one write. A slower disk is not measured, since the start would take too long.
    fn time_one_write(&mut self) -> Result<(), DriverError> {
        let began = Instant::now();
        self.begin_one();
        self.drain()?;
        if began.elapsed() > FIRST_WRITE_MAX {
            let problem = format!(
                "the disk took {:?} to write {PIECE} bytes, more than {FIRST_WRITE_MAX:?}",
                began.elapsed()
            );
            return Err(DriverError::Failed(problem));
        }
        Ok(())
    }

    /// Writes each piece once, as far as the time allows. Returns how many were written.
    fn fill(&mut self) -> Result<u64, DriverError> {
        let began = Instant::now();
        while self.next < self.pieces && began.elapsed() < FILL_MAX {
            self.begin();
            self.end()?;
            thread::yield_now();
        }
        self.drain()?;
        Ok(self.next.min(self.pieces))
    }
}

/// The speed of each run, in bytes per second, while all run together.
fn measure_together(runs: &mut [&mut Run]) -> Result<Vec<u64>, DriverError> {
    let mut ended = vec![0; runs.len()];
    let began = Instant::now();
    while began.elapsed() < MEASURE_FOR || ended.iter().any(|ended| *ended < PIECES_MIN) {
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

/// Eight pseudo-random bytes.
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
        disk::{check_uring, engine::EngineChoice},
    };

    fn run(direction: DiskDirection, file: OwnedFd) -> Run {
        let idle = (0..depth(direction)).map(|_| Buffer::new(4096).unwrap()).collect();
        let chosen = EngineChoice { engine: DiskEngine::Uring, is_named: true };
        let engine = Engine::new(chosen, depth(direction), Warn::by(drop)).unwrap();
        let last_progress = Instant::now();
        Run {
            engine,
            file: Arc::new(file),
            direction,
            idle,
            next: 0,
            pieces: 1,
            last_progress,
            deadline: last_progress + MEASURE_MAX,
        }
    }

    /// Runs them together, expects an end by itself, and returns the problem. Operations in flight are abandoned.
    fn problem_of(runs: Vec<Run>) -> Option<String> {
        let (reported, reports) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let mut runs = runs;
            let problem = measure_together(&mut runs.iter_mut().collect::<Vec<_>>()).err();
            reported.send(problem.map(|it| it.to_string())).unwrap();
            abandon(runs);
        });
        reports.recv_timeout(PATIENCE).expect("it ends by itself")
    }

    /// A disk that has gone away: no operation ends.
    #[test]
    fn a_disk_that_does_not_answer_does_not_hold_up_the_start() {
        if check_uring().is_err() {
            return;
        }
        // From its first piece on, and after it has taken some.
        for taken in [1 << 16, 0] {
            let (silent, mut full) = std::io::pipe().unwrap();
            std::io::Write::write_all(&mut full, &vec![0; taken]).unwrap();
            let [reads, writes] =
                [run(DiskDirection::FromDisk, silent.into()), run(DiskDirection::ToDisk, full.into())];
            let problem = measure_or_abandon(writes, reads, ()).unwrap_err().to_string();
            assert!(problem.contains("within 2s"), "{problem}");
        }
    }

    /// A disk that has lost a path, or a file system that has silently become read-only.
    #[test]
    fn a_disk_that_ends_no_writes_does_not_hold_up_the_start() {
        if check_uring().is_err() {
            return;
        }
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        let (_silent, mut full) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut full, &vec![0; 1 << 16]).unwrap();
        let runs = vec![run(DiskDirection::FromDisk, zeros.into()), run(DiskDirection::ToDisk, full.into())];
        let problem = problem_of(runs).expect("nothing was written");
        assert!(problem.contains("no write within 2s"), "{problem}");
    }

    #[test]
    fn measuring_a_slow_disk_ends_at_its_deadline() {
        if check_uring().is_err() {
            return;
        }
        let (trickle, mut drops) = std::io::pipe().unwrap();
        thread::spawn(move || {
            while std::io::Write::write_all(&mut drops, &[0; 4096]).is_ok() {
                thread::sleep(Duration::from_millis(500));
            }
        });
        let mut reads = run(DiskDirection::FromDisk, trickle.into());
        reads.deadline = Instant::now() + Duration::from_millis(700);
        assert!(problem_of(vec![reads]).expect("it takes too long").contains("takes longer than"));
    }

    /// How long a machine under load may take.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// A file whose unlink hangs.
    struct Hangs(std::sync::mpsc::Receiver<()>);

    impl Drop for Hangs {
        fn drop(&mut self) {
            let _ = self.0.recv_timeout(PATIENCE);
        }
    }

    #[test]
    fn an_undeletable_file_does_not_hold_up_the_start() {
        if check_uring().is_err() {
            return;
        }
        let (silent, mut full) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut full, &vec![0; 1 << 16]).unwrap();
        let [reads, writes] =
            [run(DiskDirection::FromDisk, silent.into()), run(DiskDirection::ToDisk, full.into())];
        let (goes_on, hangs) = std::sync::mpsc::channel();
        measure_or_abandon(writes, reads, Hangs(hangs)).unwrap_err();
        goes_on.send(()).expect("a thread still waits for the file's end");
    }

    #[test]
    fn a_disk_is_measured_both_ways_and_its_bytes_are_returned() {
        for engine in [DiskEngine::Threads, DiskEngine::Uring] {
            let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
            let directory = folder.path().to_owned();
            let capacity = Bytes::mib(32);
            let config = DiskConfig { directory: directory.clone(), capacity, engine: Some(engine) };
            let disk =
                match Disk::open(Some(&config), false).map(|disk| disk.expect("the configuration has one")) {
                    Err(DirectoryError::NoUring(_)) => continue,
                    disk => disk.unwrap(),
                };
            let links = disk.measure().unwrap();
            assert_eq!(links[0].lanes[0].0, LaneId::FromDisk);
            assert_eq!(links[1].lanes[0].0, LaneId::ToDisk);
            assert!(links.iter().all(|link| link.lanes.iter().all(|(_, carries)| *carries > 0)), "{links:?}");
            let left = std::fs::read_dir(&directory).unwrap().count();
            assert_eq!(left, 1, "the lock alone");
            disk.store.as_ref().unwrap().directory.create_file(ExtentId::from_raw(1), capacity).unwrap();
        }
    }
}
