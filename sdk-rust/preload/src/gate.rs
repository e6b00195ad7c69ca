//! The gate before the device: calls that have the device touch memory pass it, and wait at it while the process does not
//! have its turn.
//!
//! A call that need not wait costs two additions to a counter of its thread, and a look at one number. The thread that
//! closes the gate first sets that number, then waits until as many calls have left as have entered. A later call
//! sees the number, since both sides use one order of all such steps (`SeqCst`).
//!
//! ```text
//!  a call:     entered += 1   look at STATE   ── open ──►  the driver  ──►  left += 1
//!                                             ── closed ─► left += 1, wait, again
//!  the closer: STATE = CLOSED   read left   read entered: equal means that no call is inside
//! ```
//!
//! Without `vramctl run --turns` the state is `OFF`: a call goes to the driver and counts nothing.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use crate::turns::{self, Passage};

const OFF: u32 = 0;
const OPEN: u32 = 1;
const CLOSED: u32 = 2;

/// Threads beyond this number share counters.
const SHARDS_MAX: usize = 64;

static STATE: AtomicU32 = AtomicU32::new(OFF);
static SHARDS: [Shard; SHARDS_MAX] = [const { Shard::new() }; SHARDS_MAX];
/// How many threads have a shard.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// The calls of some threads. On cache lines of its own, so that threads do not slow one another.
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    entered: AtomicU64,
    left: AtomicU64,
}

/// A thread's knowledge of the gate.
struct Here {
    shard: Cell<Option<&'static Shard>>,
    /// The thread is inside of a call that has passed.
    is_inside: Cell<bool>,
}

thread_local! {
    static HERE: Here = const { Here { shard: Cell::new(None), is_inside: Cell::new(false) } };
}

impl Shard {
    const fn new() -> Self {
        Self { entered: AtomicU64::new(0), left: AtomicU64::new(0) }
    }
}

impl Here {
    fn shard(&self) -> &'static Shard {
        self.shard.get().unwrap_or_else(|| {
            let number = THREADS.fetch_add(1, Ordering::Relaxed);
            let shard = &SHARDS[number % SHARDS_MAX];
            self.shard.set(Some(shard));
            shard
        })
    }
}

/// Makes a call of the program once the gate is open. `stream` says where its work goes: work that is captured there does
/// not run, and does not wait.
#[inline]
pub(crate) fn pass(stream: impl Fn() -> u64, call: impl Fn() -> u32) -> u32 {
    match STATE.load(Ordering::Relaxed) {
        OFF => call(),
        _ => HERE.with(|here| enter(here, || turns::wait_at_gate(stream()), call)),
    }
}

/// Waits until the gate is open, for a call that does not come back: the process keeps its turn from then on. Returns the
/// code with which the call must fail, or 0.
pub(crate) fn pass_for_good() -> u32 {
    match STATE.load(Ordering::Relaxed) {
        OFF => 0,
        _ => HERE.with(|here| enter(here, turns::wait_for_turn, || 0)),
    }
}

fn enter(here: &Here, wait: impl Fn() -> Passage, call: impl Fn() -> u32) -> u32 {
    // The driver, or a tool that watches it, has called another function of the table. Waiting here would wait for itself.
    if here.is_inside.get() {
        return call();
    }
    let shard = here.shard();
    loop {
        shard.entered.fetch_add(1, Ordering::SeqCst);
        if STATE.load(Ordering::SeqCst) != CLOSED {
            break;
        }
        shard.left.fetch_add(1, Ordering::Release);
        match wait() {
            Passage::Again => {}
            Passage::Captured => return call(),
            Passage::Refused(code) => return code,
        }
    }
    here.is_inside.set(true);
    let code = call();
    here.is_inside.set(false);
    shard.left.fetch_add(1, Ordering::Release);
    code
}

pub(crate) fn open() {
    STATE.store(OPEN, Ordering::SeqCst);
}

/// Has later calls wait. Earlier ones may be inside: see [`is_empty`].
pub(crate) fn close() {
    STATE.store(CLOSED, Ordering::SeqCst);
}

/// Whether no call is inside. Of an open gate it is no longer true a moment later.
pub(crate) fn is_empty() -> bool {
    SHARDS.iter().all(|shard| {
        // In this order: a call that enters in between has not left before.
        let left = shard.left.load(Ordering::Acquire);
        shard.entered.load(Ordering::SeqCst) == left
    })
}

/// How many calls have entered so far.
pub(crate) fn entered() -> u64 {
    SHARDS.iter().map(|shard| shard.entered.load(Ordering::Relaxed)).sum()
}

/// Removes the gate, in a forked child: calls that are inside are its parent's.
pub(crate) fn forget() {
    STATE.store(OFF, Ordering::SeqCst);
    for shard in &SHARDS {
        shard.entered.store(0, Ordering::Relaxed);
        shard.left.store(0, Ordering::Relaxed);
    }
}
