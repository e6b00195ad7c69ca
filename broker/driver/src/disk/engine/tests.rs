//! Both engines, on real files.
#![allow(unsafe_code, reason = "the test implements IoMemory")]

use std::{
    fs::File,
    io::Write as _,
    os::unix::fs::FileExt,
    ptr::NonNull,
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use dev_kit::filter;
use rustix::fs::{Mode, OFlags, open};

use super::*;
use crate::disk::Buffer;

const DEPTH: usize = 4;
const BLOCKS: usize = 64;
/// Blocks enough for several requests.
const LONG: usize = 517;

/// The engines that work here. If io_uring does not, it says why, and threads are chosen.
fn engines() -> Vec<DiskEngine> {
    match check_uring() {
        Ok(()) => assert_eq!(choose(None), Ok((DiskEngine::Uring, None))),
        Err(why) => {
            assert!(!why.is_empty());
            assert_eq!(choose(None), Ok((DiskEngine::Threads, Some(why.clone()))));
            assert_eq!(choose(Some(DiskEngine::Uring)), Err(why));
        }
    }
    usable_engines()
}

struct Bench {
    _directory: tempfile::TempDir,
    plain: File,
    direct: Arc<OwnedFd>,
    engine: Engine<Buffer>,
    /// All warnings to operators.
    warned: Receiver<String>,
}

/// A file of so many blocks, each filled with its number.
fn bench(engine: DiskEngine, blocks: usize, flags: OFlags) -> Bench {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let plain = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let bytes: Vec<u8> = (0..blocks).flat_map(|block| [byte(block); ALIGNMENT]).collect();
    plain.write_all_at(&bytes, 0).unwrap();
    plain.sync_all().unwrap();
    let direct = Arc::new(open(&path, flags | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).unwrap());
    let (warn, warned) = warnings();
    let chosen = EngineChoice { engine, is_named: true };
    Bench { _directory: directory, plain, direct, engine: Engine::new(chosen, DEPTH, warn).unwrap(), warned }
}

fn warnings() -> (Warn, Receiver<String>) {
    let (reported, warned) = channel();
    (Warn::by(move |problem| reported.send(problem).unwrap()), warned)
}

fn byte(block: usize) -> u8 {
    u8::try_from(block % 251).unwrap()
}

impl Bench {
    fn begin(&mut self, tag: u64, direction: DiskDirection, block: usize, blocks: usize, buffer: Buffer) {
        let (at, length) = ((block * ALIGNMENT) as u64, blocks * ALIGNMENT);
        self.engine.begin(Op { tag, file: Arc::clone(&self.direct), direction, at, length, buffer });
    }

    fn next(&mut self) -> Done<Buffer> {
        let begun = Instant::now();
        loop {
            if let Some(done) = self.engine.poll() {
                return done;
            }
            assert!(begun.elapsed().as_secs() < 60, "the disk does not answer");
            std::thread::yield_now();
        }
    }

    fn one(&mut self, direction: DiskDirection, block: usize, blocks: usize) -> Result<(), IoFlaw> {
        let buffer = Buffer::new(blocks * ALIGNMENT).unwrap();
        self.begin(1, direction, block, blocks, buffer);
        self.next().result
    }
}

#[test]
fn operations_in_flight_do_not_mix_their_bytes() {
    for engine in engines() {
        let mut bench = bench(engine, BLOCKS, OFlags::RDWR);
        for round in 0..2 * BLOCKS / DEPTH {
            let direction = if round % 2 == 0 { DiskDirection::ToDisk } else { DiskDirection::FromDisk };
            let first = round / 2 * DEPTH;
            for block in first..first + DEPTH {
                let mut buffer = Buffer::new(ALIGNMENT).unwrap();
                if direction == DiskDirection::ToDisk {
                    buffer.fill(&[!byte(block); ALIGNMENT]);
                }
                bench.begin(block as u64, direction, block, 1, buffer);
            }
            let mut reported: Vec<Done<Buffer>> = (0..DEPTH).map(|_| bench.next()).collect();
            reported.sort_by_key(|done| done.tag);
            for (block, Done { tag, buffer, result }) in (first..).zip(reported) {
                assert_eq!((tag, result), (block as u64, Ok(())), "{engine}");
                assert_eq!(buffer.bytes(), [!byte(block); ALIGNMENT], "{engine}");
            }
        }
        assert!(bench.engine.poll().is_none(), "{engine}");
    }
}

#[test]
fn a_range_is_written_and_read_back() {
    for engine in engines() {
        let mut bench = bench(engine, BLOCKS, OFlags::RDWR);
        let mut buffer = Buffer::new(BLOCKS * ALIGNMENT).unwrap();
        let text: Vec<u8> = (0..BLOCKS).flat_map(|block| [byte(block + 7); ALIGNMENT]).collect();
        buffer.fill(&text);
        bench.begin(1, DiskDirection::ToDisk, 0, BLOCKS, buffer);
        assert_eq!(bench.next().result, Ok(()));
        let mut read = vec![0; text.len()];
        bench.plain.read_exact_at(&mut read, 0).unwrap();
        assert!(read == text, "{engine}");
        bench.begin(2, DiskDirection::FromDisk, 0, BLOCKS, Buffer::new(text.len()).unwrap());
        let done = bench.next();
        assert_eq!((done.tag, done.result), (2, Ok(())));
        assert!(done.buffer.bytes() == text, "{engine}");
    }
}

#[test]
fn a_read_past_the_end_reports_how_much_was_there() {
    for engine in engines() {
        let mut bench = bench(engine, 3, OFlags::RDWR);
        assert_eq!(bench.one(DiskDirection::FromDisk, 1, 4), Err(IoFlaw::Short(2 * ALIGNMENT)), "{engine}");
        assert_eq!(bench.one(DiskDirection::FromDisk, 3, 1), Err(IoFlaw::Short(0)), "{engine}");
        bench.plain.set_len(100).unwrap();
        assert_eq!(bench.one(DiskDirection::FromDisk, 0, 1), Err(IoFlaw::Short(100)), "{engine}");
    }
}

/// Read by several requests: all bytes arrive in place, and the lowest missing offset is reported.
#[test]
fn a_long_range_is_one_operation() {
    for engine in engines() {
        let mut bench = bench(engine, LONG, OFlags::RDWR);
        bench.begin(1, DiskDirection::FromDisk, 0, LONG, Buffer::new(LONG * ALIGNMENT).unwrap());
        let done = bench.next();
        assert_eq!((done.tag, done.result), (1, Ok(())), "{engine}");
        let mut blocks = done.buffer.bytes().chunks(ALIGNMENT).enumerate();
        assert!(blocks.all(|(block, bytes)| bytes == [byte(block); ALIGNMENT]), "{engine}");
        assert!(bench.engine.poll().is_none(), "{engine}");
        for there in [LONG * ALIGNMENT - 1, 300 * ALIGNMENT, 256 * ALIGNMENT, 100, 0] {
            bench.plain.set_len(there as u64).unwrap();
            assert_eq!(bench.one(DiskDirection::FromDisk, 0, LONG), Err(IoFlaw::Short(there)), "{engine}");
        }
    }
}

#[test]
fn a_refused_operation_is_reported_and_the_next_is_done() {
    for engine in engines() {
        let mut bench = bench(engine, 2, OFlags::RDONLY);
        assert_eq!(bench.one(DiskDirection::ToDisk, 0, 1), Err(IoFlaw::Failed(Errno::BADF)), "{engine}");
        assert_eq!(bench.one(DiskDirection::FromDisk, 0, 1), Ok(()), "{engine}");
    }
}

#[test]
fn dropping_the_engine_waits_for_operations_in_flight() {
    for engine in engines() {
        let mut bench = bench(engine, BLOCKS, OFlags::RDWR);
        for block in 0..DEPTH {
            let mut buffer = Buffer::new(ALIGNMENT).unwrap();
            buffer.fill(&[0xee; ALIGNMENT]);
            bench.begin(1, DiskDirection::ToDisk, block, 1, buffer);
        }
        let Bench { plain, engine: in_flight, .. } = bench;
        drop(in_flight);
        let mut read = vec![0; DEPTH * ALIGNMENT];
        plain.read_exact_at(&mut read, 0).unwrap();
        assert!(read.iter().all(|byte| *byte == 0xee), "{engine}");
    }
}

/// Else the kernel would write beyond the end of the buffer.
#[test]
fn an_operation_beyond_its_buffer_is_never_begun() {
    let bench = bench(DiskEngine::Threads, 2, OFlags::RDWR);
    let op = |at: u64, length| {
        let (file, buffer) = (Arc::clone(&bench.direct), Buffer::new(ALIGNMENT).unwrap());
        Op { tag: 1, file, direction: DiskDirection::FromDisk, at, length, buffer }
    };
    for (at, length) in [(0, 2 * ALIGNMENT), (0, 0), (0, 100), (100, ALIGNMENT)] {
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| transfer_all(op(at, length))));
        assert!(refused.is_err(), "{length} bytes at {at}");
    }
    assert_eq!(transfer_all(op(0, ALIGNMENT)).result, Ok(()));
}

#[test]
fn retries_are_counted_anew_after_each_progress() {
    let mut request = Request::new(0, 3 * ALIGNMENT);
    for _ in 0..2 {
        assert!((0..AGAIN_MAX).all(|_| request.advance(Err(Errno::AGAIN)).is_none()));
        assert_eq!(request.advance(Ok(ALIGNMENT)), None);
    }
    assert_eq!(request.advance(Ok(ALIGNMENT)), Some(Ok(())));
}

#[test]
fn a_kernel_that_makes_no_progress_is_not_asked_forever() {
    let mut request = Request::new(0, ALIGNMENT);
    let answers = (0..).map(|_| request.advance(Err(Errno::AGAIN))).take_while(Option::is_none);
    assert_eq!(answers.count(), usize::try_from(AGAIN_MAX).unwrap());
    assert_eq!(request.advance(Err(Errno::AGAIN)), Some(Err(IoFlaw::Failed(Errno::AGAIN))));
}

#[test]
fn choosing_threads_does_not_probe_io_uring() {
    let threads = Ok((DiskEngine::Threads, None));
    assert_eq!(choose_by(Some(DiskEngine::Threads), || panic!("io_uring was not requested")), threads);
}

/// No operation is lost, and those that the kernel had accepted are done.
#[test]
fn threads_take_over_from_a_broken_ring() {
    if !engines().contains(&DiskEngine::Uring) {
        return;
    }
    let refused = std::thread::spawn(|| {
        let mut bench = bench(DiskEngine::Uring, LONG, OFlags::RDWR);
        bench.begin(1, DiskDirection::FromDisk, 0, LONG, Buffer::new(LONG * ALIGNMENT).unwrap());
        filter::refuse(libc::SYS_io_uring_enter).unwrap();
        for (tag, blocks) in [(2, LONG), (3, 1)] {
            bench.begin(tag, DiskDirection::FromDisk, 0, blocks, Buffer::new(blocks * ALIGNMENT).unwrap());
        }
        let mut reported: Vec<_> = (0..3).map(|_| bench.next()).collect();
        reported.sort_by_key(|done| done.tag);
        let results: Vec<_> = reported.iter().map(|done| (done.tag, done.result)).collect();
        assert_eq!(results, [(1, Ok(())), (2, Ok(())), (3, Ok(()))]);
        for done in &reported[..2] {
            assert!(done.buffer.bytes()[(LONG - 1) * ALIGNMENT..] == [byte(LONG - 1); ALIGNMENT]);
        }
        assert_eq!(bench.one(DiskDirection::FromDisk, 0, LONG), Ok(()), "the next operation works too");
        assert_eq!(bench.one(DiskDirection::ToDisk, 0, 1), Ok(()));
        assert_eq!(
            bench.one(DiskDirection::FromDisk, LONG, 1),
            Err(IoFlaw::Short(0)),
            "the error is reported"
        );
        assert!(bench.engine.poll().is_none(), "each is reported once");
        let why =
            "an io_uring of the disk has failed, threads replace it: Operation not permitted (os error 1)";
        assert_eq!(bench.warned.iter().collect::<Vec<_>>(), [why], "and so are operators");
    });
    refused.join().unwrap();
}

/// Unless the configuration names io_uring.
#[test]
fn threads_replace_a_ring_that_cannot_be_set_up() {
    let refused = thread::spawn(|| {
        filter::refuse(libc::SYS_io_uring_setup).unwrap();
        let made = |is_named| {
            let (warn, warned) = warnings();
            let made =
                Engine::<Buffer>::new(EngineChoice { engine: DiskEngine::Uring, is_named }, DEPTH, warn);
            (made, warned.iter().collect::<Vec<_>>())
        };
        let (engine, warned) = made(false);
        assert!(matches!(engine.unwrap().by, Backend::Threads(_)));
        let why = "Operation not permitted (os error 1)";
        assert_eq!(warned, [format!("cannot set up an io_uring for the disk, threads replace it: {why}")]);
        let (refused, warned) = made(true);
        assert_eq!(refused.map(drop), Err(DriverError::Failed(format!("cannot set up an io_uring: {why}"))));
        assert!(warned.is_empty(), "the caller gets the error");
    });
    refused.join().unwrap();
}

/// A buffer that reports its drop.
#[derive(Debug)]
struct Watched(Buffer, std::sync::mpsc::Sender<()>);

// SAFETY: All of it is the buffer's.
unsafe impl IoMemory for Watched {
    fn start(&self) -> NonNull<u8> {
        self.0.start()
    }

    fn length(&self) -> usize {
        self.0.length()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.1.send(()).unwrap();
    }
}

/// The buffer must not be dropped while the kernel may write it, nor be kept forever.
#[test]
fn dropping_a_broken_ring_waits_for_requests_in_flight() {
    if !engines().contains(&DiskEngine::Uring) {
        return;
    }
    let refused = thread::spawn(|| {
        let (reads, mut writes) = std::io::pipe().unwrap();
        let chosen = EngineChoice { engine: DiskEngine::Uring, is_named: true };
        let mut engine = Engine::new(chosen, DEPTH, warnings().0).unwrap();
        let (gone, given_up) = channel();
        let buffer = Watched(Buffer::new(ALIGNMENT).unwrap(), gone);
        let file = Arc::new(OwnedFd::from(reads));
        engine.begin(Op {
            tag: 1,
            file,
            direction: DiskDirection::FromDisk,
            at: 0,
            length: ALIGNMENT,
            buffer,
        });
        assert!(engine.poll().is_none(), "nothing was written");
        filter::refuse(libc::SYS_io_uring_enter).unwrap();
        let writer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            let early = given_up.try_recv().is_ok();
            writes.write_all(&[7; ALIGNMENT]).unwrap();
            (early, given_up)
        });
        drop(engine);
        let (early, given_up) = writer.join().unwrap();
        assert!(!early, "the kernel was to write it yet");
        assert_eq!(given_up.recv_timeout(Duration::from_secs(1)), Ok(()), "once, and then it is given up");
    });
    refused.join().unwrap();
}

#[test]
fn threads_are_chosen_if_the_kernel_refuses_io_uring() {
    let why = "io_uring_setup: Operation not permitted (os error 1)".to_owned();
    let refused = std::thread::spawn(move || {
        filter::refuse(libc::SYS_io_uring_setup).unwrap();
        assert_eq!(choose(None), Ok((DiskEngine::Threads, Some(why.clone()))));
        assert_eq!(choose(Some(DiskEngine::Threads)), Ok((DiskEngine::Threads, None)));
        assert_eq!(choose(Some(DiskEngine::Uring)), Err(why));
        let mut bench = bench(DiskEngine::Threads, 2, OFlags::RDWR);
        assert_eq!(bench.one(DiskDirection::FromDisk, 0, 2), Ok(()));
    });
    refused.join().unwrap();
}
