//! Small allocations from pools, against a real daemon.

use std::{
    collections::BTreeMap,
    sync::{Arc, Barrier, mpsc},
    thread,
    time::Duration,
};

use fastrand::Rng;
use vramd_client::{Bytes, Client, Error, Pool, PoolBlock, PoolConfig, Reason, Sentence};
use vramd_proto::v1::EndSessionRequest;
use vramd_tests::{
    Config, Daemon, MIB, MIB_2,
    daemon::quota,
    wait::{always, until},
};

const FOREVER: Duration = Duration::from_secs(3600);

fn connect(daemon: &Daemon) -> Client {
    Client::builder().socket_dir(daemon.sockets()).name("small").connect().unwrap()
}

/// Chunks of 2 MiB, which stay.
fn config() -> PoolConfig {
    PoolConfig::default().chunk_size(Bytes::new(MIB_2)).idle_after(FOREVER)
}

fn bytes(count: usize) -> Bytes {
    Bytes::new(count as u64)
}

/// A block that is marked at both ends, to find out whether another writer was there.
struct Marked {
    small: PoolBlock,
    mark: u64,
}

impl Marked {
    fn new(pool: &Pool, size: usize, mark: u64) -> Self {
        let mut small = pool.alloc(bytes(size)).unwrap();
        assert_eq!(small.as_device_ptr() % 256, 0);
        assert_eq!(small.offset().get() % 256, 0);
        assert!(small.size() == bytes(size) && small.capacity() >= small.size());
        let len = small.capacity().get().min(size as u64);
        assert_eq!(len, size as u64);
        let slice = small.as_mut_slice().unwrap();
        for at in [0, size - 8] {
            slice[at..at + 8].copy_from_slice(&mark.to_le_bytes());
        }
        Self { small, mark }
    }

    fn check(&self) {
        let slice = self.small.as_slice().unwrap();
        for at in [0, slice.len() - 8] {
            assert_eq!(slice[at..at + 8], self.mark.to_le_bytes(), "another block wrote here");
        }
    }
}

fn size(rng: &mut Rng, largest: usize) -> usize {
    // As many small blocks as large ones, on a scale of doublings.
    let most = 16 << rng.u32(0..=(largest / 16).ilog2());
    rng.usize(16..=most.min(largest))
}

/// Random sizes and lifetimes: blocks begin at multiples of 256, lie in the chunk that they name, and share no byte.
#[test]
fn blocks_never_overlap_and_all_come_back() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    let pool = client.pool(config()).unwrap();
    assert_eq!(pool.max_block_size(), Bytes::new(MIB_2 / 4));
    for seed in 0..4 {
        let mut rng = Rng::with_seed(seed);
        let mut live: BTreeMap<u64, (u64, Marked)> = BTreeMap::new();
        for step in 0..6_000 {
            if live.len() > 300 || (rng.bool() && !live.is_empty()) {
                let at = rng.usize(0..live.len());
                let address = *live.keys().nth(at).unwrap();
                live.remove(&address).unwrap().1.check();
                continue;
            }
            let block = Marked::new(&pool, size(&mut rng, 512 << 10), step | seed << 32);
            let (start, end) = (block.small.as_device_ptr(), block.small.capacity().get());
            let end = start + end;
            let below = live.range(..end).next_back();
            assert!(below.is_none_or(|(_, (end, _))| *end <= start), "{start:#x} is taken");
            live.insert(start, (end, block));
        }
        live.values().for_each(|(_, block)| block.check());
        drop(live);
        pool.trim();
        assert_eq!(pool.chunk_bytes(), Bytes::ZERO, "seed {seed}");
        client.flush().unwrap();
        daemon.drains();
    }
}

#[test]
fn a_freed_block_is_reused_without_a_call() {
    let daemon = Daemon::new();
    let pool = connect(&daemon).pool(config()).unwrap();
    let first = pool.alloc(bytes(1000)).unwrap();
    let address = first.as_device_ptr();
    drop(first);
    let made = daemon.state().allocations.len();
    for _ in 0..1_000 {
        let blocks: Vec<_> = (0..500).map(|_| pool.alloc(bytes(1000)).unwrap()).collect();
        assert!(blocks.iter().any(|block| block.as_device_ptr() == address));
    }
    assert_eq!((made, daemon.state().allocations.len()), (1, 1));
    assert_eq!(pool.chunk_bytes(), Bytes::new(MIB_2));
}

#[test]
fn threads_free_what_others_allocated() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    let pool = client.pool(config()).unwrap();
    let (sends, receives): (Vec<_>, Vec<_>) = (0..4).map(|_| mpsc::channel::<Marked>()).unzip();
    let start = Arc::new(Barrier::new(4));
    let threads: Vec<_> = receives
        .into_iter()
        .enumerate()
        .map(|(me, receive)| {
            let (pool, start) = (pool.clone(), Arc::clone(&start));
            let to = sends[(me + 1) % sends.len()].clone();
            thread::spawn(move || {
                let mut rng = Rng::with_seed(me as u64);
                start.wait();
                let mut kept = Vec::new();
                for step in 0..5_000 {
                    let block = Marked::new(&pool, size(&mut rng, 64 << 10), (me as u64) << 32 | step);
                    if rng.bool() {
                        to.send(block).unwrap();
                    } else {
                        kept.push(block);
                    }
                    if kept.len() > 50 {
                        kept.swap_remove(rng.usize(0..kept.len())).check();
                    }
                    receive.try_iter().take(3).for_each(|block| block.check());
                }
                drop(to);
                kept.iter().for_each(Marked::check);
                receive.into_iter().for_each(|block| block.check());
            })
        })
        .collect();
    drop(sends);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // Blocks cached by threads were returned when the threads ended: whole chunks are left.
    pool.trim();
    assert_eq!(pool.chunk_bytes(), Bytes::ZERO);
    client.flush().unwrap();
    daemon.drains();
}

/// A thread that has freed its blocks, and sleeps, keeps none.
#[test]
fn idle_chunks_are_freed() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    let pool = client.pool(config().idle_after(Duration::from_millis(100))).unwrap();
    let (go_on, wait) = mpsc::channel::<()>();
    let sleeper = thread::spawn({
        let pool = pool.clone();
        move || {
            drop((0..3_000).map(|_| pool.alloc(bytes(2000)).unwrap()).collect::<Vec<_>>());
            wait.recv().unwrap();
        }
    });
    until("there are chunks", || daemon.state().allocations.len() > 1);
    daemon.drains();
    assert_eq!(pool.chunk_bytes(), Bytes::ZERO);

    // A chunk in use stays, and only that one.
    let mut blocks: Vec<_> = (0..3_000).map(|_| pool.alloc(bytes(2000)).unwrap()).collect();
    assert!(pool.chunk_bytes() > Bytes::new(MIB_2));
    blocks.truncate(1);
    until("one chunk is left", || daemon.state().allocations.len() == 1);
    always("it stays", Duration::from_millis(500), || daemon.state().allocations.len() == 1);
    blocks[0].as_mut_slice().unwrap().fill(1);
    drop(blocks);
    daemon.drains();
    go_on.send(()).unwrap();
    sleeper.join().unwrap();
}

#[test]
fn a_limit_is_reported_after_cached_blocks_of_other_threads_are_used() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    let pool = client.pool(config().max_bytes(Bytes::new(2 * MIB_2))).unwrap();
    let most = pool.max_block_size();
    let all: Vec<_> = (0..8).map(|_| pool.alloc(most).unwrap()).collect();
    let full = Error::PoolFull {
        limit: Bytes::new(2 * MIB_2),
        held: Bytes::new(2 * MIB_2),
        asked: Bytes::new(MIB_2),
        said: Sentence::default(),
    };
    let refusal = pool.alloc(Bytes::new(1)).unwrap_err();
    assert_eq!((&refusal, refusal.reason()), (&full, Some(Reason::PoolFull)));
    drop((all, pool));

    // The pool uses the small blocks that this thread caches before it refuses a large one of another thread.
    let pool = client.pool(config().max_bytes(Bytes::new(MIB_2))).unwrap();
    drop((0..48).map(|_| pool.alloc(bytes(40_000)).unwrap()).collect::<Vec<_>>());
    let large = move || (0..3).map(|_| pool.alloc(most).unwrap()).collect::<Vec<_>>().len();
    assert_eq!(thread::spawn(large).join().unwrap(), 3);

    daemon.admin.set_quota(quota(client.tenant(), "*", "", "4MiB")).ok();
    let pool = client.pool(config()).unwrap();
    let held: Result<Vec<_>, _> = (0..100).map(|_| pool.alloc(pool.max_block_size())).collect();
    assert!(matches!(held, Err(Error::QuotaLimit { .. })), "{held:?}");
    pool.alloc(pool.max_block_size()).expect("the blocks that were returned before are there");
}

#[test]
fn bad_sizes_are_refused() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    let pool = client.pool(config()).unwrap();
    assert_eq!(pool.alloc(Bytes::ZERO).unwrap_err().reason(), Some(Reason::SizeInvalid));
    let large = Bytes::new(pool.max_block_size().get() + 1);
    assert_eq!(
        pool.alloc(large).unwrap_err(),
        Error::BlockTooLarge { size: large, largest: pool.max_block_size() }
    );
    assert!(matches!(pool.alloc(Bytes::new(u64::MAX)), Err(Error::BlockTooLarge { .. })));
    assert_eq!(pool.chunk_bytes(), Bytes::ZERO);
    for (config, reason) in [
        (config().chunk_size(Bytes::ZERO), Reason::PartSizeInvalid),
        (config().chunk_size(Bytes::mib(3)), Reason::PartSizeInvalid),
        (config().max_bytes(Bytes::new(MIB)), Reason::RequestInvalid),
    ] {
        assert_eq!(client.pool(config).unwrap_err().reason(), Some(reason));
    }
    // A quarter of this chunk lies between two classes.
    let pool = client.pool(config().chunk_size(Bytes::mib(18))).unwrap();
    assert_eq!(pool.max_block_size(), Bytes::mib(4));
    assert_eq!(pool.alloc(pool.max_block_size()).unwrap().capacity(), Bytes::mib(4));
    assert!(matches!(pool.alloc(Bytes::new(4 * MIB + 1)), Err(Error::BlockTooLarge { .. })));
    let nowhere = client.pool(config().device("GPU-none")).unwrap();
    assert_eq!(nowhere.alloc(bytes(1)).unwrap_err().reason(), Some(Reason::DeviceUnknown));
}

#[test]
fn copies_stay_within_the_block() {
    let daemon = Daemon::new();
    let pool = connect(&daemon).pool(config()).unwrap();
    let mut one = pool.alloc(bytes(300)).unwrap();
    let mut other = pool.alloc(bytes(300)).unwrap();
    other.as_mut_slice().unwrap().fill(9);
    one.copy_from_host(100, &[7; 200]).unwrap();
    let mut read = [0; 200];
    one.copy_to_host(100, &mut read).unwrap();
    assert_eq!(read, [7; 200]);
    assert!(matches!(one.copy_from_host(101, &[1; 200]), Err(Error::CopyFailed { .. })));
    assert!(matches!(one.copy_to_host(u64::MAX, &mut read), Err(Error::CopyFailed { .. })));
    assert_eq!(other.as_slice().unwrap(), [9; 300]);
}

/// The blocks keep the session alive, and the last one ends it.
#[test]
fn blocks_outlive_pool_and_client() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    let pool = client.pool(config()).unwrap();
    let mut blocks: Vec<_> = (0..5_000).map(|_| pool.alloc(bytes(1000)).unwrap()).collect();
    drop((pool, client));
    assert_eq!(daemon.state().sessions.len(), 1);
    for block in &mut blocks {
        block.as_mut_slice().unwrap().fill(3);
    }
    let last = blocks.pop().unwrap();
    thread::spawn(move || drop(blocks)).join().unwrap();
    until("only its chunk is left", || daemon.state().allocations.len() == 1);
    assert_eq!(last.as_slice().unwrap(), [3; 1000]);
    drop(last);
    until("the session is gone", || daemon.state().sessions.is_empty());
    daemon.drains();
}

/// The pool hands out no block of a chunk that was taken away, and refuses slices of it.
#[test]
fn a_chunk_that_is_taken_away_is_not_reused() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    let pool = client.pool(config()).unwrap();
    let kept = pool.alloc(bytes(1000)).unwrap();
    drop((0..100).map(|_| pool.alloc(bytes(1000)).unwrap()).collect::<Vec<_>>());
    let end = EndSessionRequest { session_id: client.session_id().get(), ..Default::default() };
    daemon.admin.end_session(end).ok();
    until("it is unmapped", || !kept.is_mapped());
    assert!(matches!(kept.as_slice(), Err(Error::NotMapped { .. })));
    until("it knows", || !client.is_connected());
    for size in [1000, 1, 100_000] {
        assert_eq!(pool.alloc(bytes(size)).unwrap_err().reason(), Some(Reason::SessionLost), "{size}");
    }
    assert_eq!(pool.chunk_bytes(), Bytes::new(MIB_2), "the chunk of what is kept");
    drop(kept);
    pool.trim();
    assert_eq!(pool.chunk_bytes(), Bytes::ZERO);
    daemon.drains();
}

/// Existing chunks serve on when the daemon dies. A further chunk is refused.
#[test]
fn blocks_outlive_the_daemon() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    let pool = client.pool(config()).unwrap();
    let mut one = pool.alloc(bytes(1000)).unwrap();
    let _home = daemon.kill();
    until("the end is noticed", || !client.is_connected());
    one.as_mut_slice().unwrap().fill(5);
    let other = pool.alloc(bytes(1000)).unwrap();
    assert_eq!((one.as_slice().unwrap(), other.is_mapped()), (&[5; 1000][..], true));
    let more: Result<Vec<_>, _> = (0..100).map(|_| pool.alloc(pool.max_block_size())).collect();
    assert!(matches!(more, Err(Error::BrokerGone { .. })), "{more:?}");
}

#[test]
fn two_pools_of_a_thread_do_not_mix() {
    let daemon = Daemon::start(&Config::devices(&["64MiB", "64MiB"]));
    let client = connect(&daemon);
    let devices: Vec<_> = client.devices().iter().map(|device| device.uuid.clone()).collect();
    let pools: Vec<_> =
        devices.iter().map(|uuid| client.pool(config().device(uuid.as_str())).unwrap()).collect();
    let mut chunks = [Vec::new(), Vec::new()];
    for _ in 0..50 {
        for (pool, chunks) in pools.iter().zip(&mut chunks) {
            chunks.push(pool.alloc(bytes(5000)).unwrap().allocation());
        }
    }
    for (device, chunks) in devices.iter().zip(&chunks) {
        for chunk in chunks {
            assert_eq!(&client.describe(*chunk).unwrap().device, device);
        }
    }
}

/// The usual path makes no system call: the kernel ends a thread that makes one. A forked child gets no block.
#[test]
fn allocating_makes_no_system_call_and_a_child_gets_nothing() {
    let daemon = Daemon::new();
    let mut probe = daemon.probe();
    probe.ask("sdk open");
    assert_eq!(probe.ask("sdk small-strict 200000")["pairs"], 200_000);
    assert_eq!(probe.ask("sdk small-fork")["status"], 0);
    probe.leave();
    daemon.drains();
}
