//! Memory that was freed in the order of a stream, until it is used again or given back.
//!
//! A block that was freed on a stream may be used again on that stream at once: the work comes later there. On other
//! streams it may once an event, recorded when it was freed, has passed. Memory that a pool keeps beyond its release
//! threshold is given back to the daemon when it has not been used for a second, at the next call that allocates or asks
//! for free memory. All of it is given back when an allocation is refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::c_int,
    ptr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crate::{
    driver::Event,
    heap::{Block, least_capacity},
    session::{Device, lock},
    streams,
};

/// A kept block may be larger than a new one by one part in so many.
const EXCESS_DIVISOR: u64 = 4;
const IDLE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Pools {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    kept: Vec<Kept>,
    /// By the driver's handle.
    pools: BTreeMap<u64, PoolState>,
}

#[derive(Debug)]
struct Kept {
    block: Block,
    /// With its context: each has a default stream of the same number. None once the stream is gone.
    stream: Option<(u64, u64)>,
    event: Arc<Event>,
    since: Instant,
}

/// The facts about one of the driver's pools, and the bytes that are served for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PoolState {
    /// The device, if the program made the pool.
    pub(crate) device: Option<c_int>,
    /// Why its memory cannot be served.
    pub(crate) refusal: Option<&'static str>,
    /// The bytes that it keeps, at least.
    pub(crate) threshold: u64,
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
}

impl Pools {
    pub(crate) fn state_of(&self, pool: u64) -> PoolState {
        lock(&self.state).pools.get(&pool).copied().unwrap_or_default()
    }

    pub(crate) fn change(&self, pool: u64, change: impl FnOnce(&mut PoolState)) {
        change(lock(&self.state).pools.entry(pool).or_default());
    }

    /// Forgets a pool that the program has ended. Its kept memory is given back as that of other pools.
    pub(crate) fn remove(&self, pool: u64) {
        lock(&self.state).pools.remove(&pool);
    }

    /// Takes a kept block that work on the stream may use.
    pub(crate) fn take(
        &self,
        device: &'static Device,
        pool: u64,
        stream: (u64, u64),
        size: u64,
    ) -> Option<Block> {
        let least = least_capacity(size)?;
        let fits = |kept: &Kept| {
            ptr::eq(kept.block.device, device)
                && kept.block.pool == pool
                && (least..=least.saturating_add(least / EXCESS_DIVISOR)).contains(&kept.block.capacity())
        };
        let in_order = lock(&self.state).remove(|kept| fits(kept) && kept.stream == Some(stream));
        let taken = in_order.or_else(|| {
            let events = lock(&self.state).events(|kept, _| fits(kept));
            let over = events.into_iter().find(|event| is_over(event))?;
            lock(&self.state).remove(|kept| Arc::ptr_eq(&kept.event, &over))
        });
        Some(taken?.block.reuse(size))
    }

    /// Counts a block that the program has now.
    pub(crate) fn count_used(&self, block: &Block, is_new: bool) {
        let mut state = lock(&self.state);
        let pool = state.pools.entry(block.pool).or_default();
        pool.used += block.capacity();
        pool.used_high = pool.used_high.max(pool.used);
        if is_new {
            pool.reserved += block.capacity();
            pool.reserved_high = pool.reserved_high.max(pool.reserved);
        }
    }

    /// Counts a block that the program has freed for good, not in the order of a stream.
    pub(crate) fn count_gone(&self, block: &Block) {
        if block.pool != 0 {
            lock(&self.state).count_freed(block, true);
        }
    }

    /// Keeps a freed block until the event has passed, and longer. `stream` is none where its number means another stream
    /// on each thread.
    pub(crate) fn keep(&self, block: Block, stream: Option<(u64, u64)>, event: Event) {
        let mut state = lock(&self.state);
        state.count_freed(&block, false);
        state.kept.push(Kept { block, stream, event: Arc::new(event), since: Instant::now() });
    }

    /// A stream is gone: another may get its number.
    pub(crate) fn forget_stream(&self, stream: u64) {
        for kept in &mut lock(&self.state).kept {
            if kept.stream.is_some_and(|(_, known)| known == stream) {
                kept.stream = None;
            }
        }
    }

    /// Gives back what has not been used for a while, beyond the thresholds.
    pub(crate) fn release_idle(&self) {
        self.release(|kept, pool| {
            // A pool that has ended has no threshold.
            let is_beyond = pool.threshold == 0 || pool.reserved > pool.threshold;
            is_beyond && kept.since.elapsed() >= IDLE
        });
    }

    /// Gives back what a pool keeps beyond that many bytes.
    pub(crate) fn trim(&self, pool: u64, bytes: u64) {
        self.release(|kept, of| kept.block.pool == pool && of.reserved > bytes);
    }

    /// Gives back what is meant and no work uses any more. The driver is asked without the lock.
    fn release(&self, is_meant: impl Fn(&Kept, &PoolState) -> bool) {
        let events = lock(&self.state).events(&is_meant);
        // These own the events, so that no new one gets the address of one of them.
        let owners: Vec<_> = events.into_iter().filter(|event| is_over(event)).collect();
        let over: BTreeSet<_> = owners.iter().map(Arc::as_ptr).collect();
        if over.is_empty() {
            return;
        }
        let is_over = |kept: &Kept| over.contains(&Arc::as_ptr(&kept.event));
        let released = lock(&self.state).take(|kept, pool| is_meant(kept, pool) && is_over(kept));
        drop(released);
    }

    /// Gives back all that is kept on a device, once its work is done.
    pub(crate) fn release_all(&self, device: &'static Device) {
        let kept = lock(&self.state).take(|kept, _| ptr::eq(kept.block.device, device));
        for kept in kept {
            // In a lost context no work goes on.
            let _ = streams::wait_for(std::slice::from_ref(&kept.event));
        }
    }

    /// Takes out all that is kept on a device whose context is about to end.
    pub(crate) fn take_on(&self, device: &'static Device) -> Vec<(Block, Arc<Event>)> {
        let kept = lock(&self.state).take(|kept, _| ptr::eq(kept.block.device, device));
        kept.into_iter().map(|kept| (kept.block, kept.event)).collect()
    }
}

impl State {
    fn count_freed(&mut self, block: &Block, is_gone: bool) {
        let pool = self.pools.entry(block.pool).or_default();
        pool.used = pool.used.saturating_sub(block.capacity());
        if is_gone {
            pool.reserved = pool.reserved.saturating_sub(block.capacity());
        }
    }

    /// The events of those that are meant.
    fn events(&self, is_meant: impl Fn(&Kept, &PoolState) -> bool) -> Vec<Arc<Event>> {
        let pool_of = |kept: &Kept| self.pools.get(&kept.block.pool).copied().unwrap_or_default();
        let meant = self.kept.iter().filter(|kept| is_meant(kept, &pool_of(kept)));
        meant.map(|kept| Arc::clone(&kept.event)).collect()
    }

    /// Takes out the first that is meant, for another use.
    fn remove(&mut self, is_meant: impl Fn(&Kept) -> bool) -> Option<Kept> {
        let at = self.kept.iter().position(is_meant)?;
        Some(self.kept.swap_remove(at))
    }

    /// Takes out kept blocks. The caller drops them after the lock.
    fn take(&mut self, is_meant: impl Fn(&Kept, &PoolState) -> bool) -> Vec<Kept> {
        let mut taken = Vec::new();
        for kept in std::mem::take(&mut self.kept) {
            let pool = self.pools.entry(kept.block.pool).or_default();
            if is_meant(&kept, pool) {
                pool.reserved = pool.reserved.saturating_sub(kept.block.capacity());
                taken.push(kept);
            } else {
                self.kept.push(kept);
            }
        }
        taken
    }
}

/// Whether no work uses the memory any more.
fn is_over(event: &Event) -> bool {
    event.has_passed().unwrap_or(true)
}
