//! The cache of one thread: freed blocks, which the thread reuses first.
//!
//! A thread's cache of a pool lies behind a lock that usually only the thread takes. The one visitor is the search
//! for idle memory, which empties caches that were not used for long. So a sleeping thread keeps no memory.

use std::{
    cell::RefCell,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use super::{classes::Class, core::PoolCore, slab::Block};

/// The bytes and blocks that a cache keeps of one class at most. Larger blocks are not cached.
pub(super) const BLOCK_BYTES_MAX: usize = 512 << 10;
const CLASS_BLOCKS_MAX: usize = 128;

/// How many blocks of a class a thread keeps at most.
pub(super) fn capacity(class: Class) -> usize {
    (BLOCK_BYTES_MAX / class.size()).min(CLASS_BLOCKS_MAX)
}

#[derive(Debug)]
pub(super) struct Cache(Mutex<CacheState>);

#[derive(Debug)]
struct CacheState {
    stacks: Box<[Stack]>,
    /// Whether it was used since the last search for idle memory.
    used: bool,
    /// The pool has no owner any more, or the thread has ended.
    closed: bool,
}

#[derive(Debug)]
struct Stack {
    blocks: Vec<Block>,
    capacity: usize,
}

/// This thread's caches, of all pools that it uses; the last used one comes first.
#[derive(Debug)]
struct ThreadCaches(Vec<ThreadCache>);

#[derive(Debug)]
struct ThreadCache {
    pool: u64,
    core: Weak<PoolCore>,
    cache: Arc<Cache>,
}

thread_local! {
    static CACHES: RefCell<ThreadCaches> = const { RefCell::new(ThreadCaches(Vec::new())) };
}

/// Takes a block that this thread has cached.
#[inline]
pub(super) fn take(pool: &Arc<PoolCore>, class: Class) -> Option<Block> {
    let (block, first) = with(pool.id, |entry| entry.cache.take(class))?;
    if first {
        pool.schedule_tidy();
    }
    block
}

/// ThreadCaches a block for this thread, and passes some on if there are too many.
#[inline]
pub(super) fn keep(block: Block) {
    let mut block = Some(block);
    let pool = block.as_ref().map_or(0, |block| block.slab.pool.id);
    let kept = with(pool, |entry| {
        let (overflow, first) = entry.cache.keep(block.take()?);
        Some((overflow, first.then(|| Weak::clone(&entry.core))))
    });
    match kept.flatten() {
        Some((overflow, None)) if overflow.is_empty() => {}
        Some((overflow, tidy_scheduled)) => {
            if let Some(pool) = tidy_scheduled.and_then(|pool| pool.upgrade()) {
                pool.schedule_tidy();
            }
            PoolCore::put_back(overflow);
        }
        None => block.into_iter().for_each(keep_first),
    }
}

/// ThreadCaches the first block of a pool that this thread frees.
#[cold]
fn keep_first(block: Block) {
    let pool = Arc::clone(&block.slab.pool);
    let left = fill(&pool, block.slab.class, vec![block]);
    PoolCore::put_back(left);
}

/// Adds blocks to this thread's cache. Blocks that it cannot keep are returned.
#[cold]
pub(super) fn fill(pool: &Arc<PoolCore>, class: Class, blocks: Vec<Block>) -> Vec<Block> {
    if with(pool.id, |_| ()).is_none() && !enter(pool) {
        return blocks;
    }
    let mut blocks = Some(blocks);
    let left = with(pool.id, |entry| entry.cache.fill(class, blocks.take()?)).flatten();
    left.or(blocks).unwrap_or_default()
}

/// Makes a cache for this thread; returns false if the thread may have none any more.
fn enter(pool: &Arc<PoolCore>) -> bool {
    let Some(cache) = pool.new_cache() else { return false };
    let entry = ThreadCache { pool: pool.id, core: Arc::downgrade(pool), cache: Arc::clone(&cache) };
    let entered = CACHES.try_with(|caches| {
        let mut caches = caches.try_borrow_mut().ok()?;
        caches.0.retain(|entry| !entry.cache.lock().closed);
        caches.0.push(entry);
        Some(())
    });
    let entered = entered.ok().flatten().is_some();
    if !entered {
        pool.forget(&cache);
    }
    entered
}

#[inline]
fn with<T>(pool: u64, work: impl FnOnce(&ThreadCache) -> T) -> Option<T> {
    let done = CACHES.try_with(|caches| {
        let mut caches = caches.try_borrow_mut().ok()?;
        let at = caches.0.iter().position(|entry| entry.pool == pool)?;
        if at > 0 {
            caches.0.swap(0, at);
        }
        caches.0.first().map(work)
    });
    done.ok().flatten()
}

impl Cache {
    pub(super) fn new(classes: usize) -> Self {
        let stacks =
            Class::smallest(classes).map(|class| Stack { blocks: Vec::new(), capacity: capacity(class) });
        Self(Mutex::new(CacheState { stacks: stacks.collect(), used: false, closed: false }))
    }

    /// Takes the block that was freed last, and says whether this is the first use since the last search for idle
    /// memory.
    #[inline]
    fn take(&self, class: Class) -> (Option<Block>, bool) {
        let mut state = self.lock();
        let first = !mem::replace(&mut state.used, true);
        (state.stacks[class.index()].blocks.pop(), first)
    }

    /// ThreadCaches a block. Returns the blocks that exceed the capacity, and the same flag.
    #[inline]
    fn keep(&self, block: Block) -> (Vec<Block>, bool) {
        let mut state = self.lock();
        if state.closed {
            return (vec![block], false);
        }
        let first = !mem::replace(&mut state.used, true);
        let stack = &mut state.stacks[block.slab.class.index()];
        stack.blocks.push(block);
        if stack.blocks.len() <= stack.capacity {
            return (Vec::new(), first);
        }
        // The older half: the block that was freed last is reused next.
        (stack.blocks.drain(..=stack.capacity / 2).collect(), first)
    }

    /// Adds blocks; returns them if the cache is closed.
    fn fill(&self, class: Class, blocks: Vec<Block>) -> Option<Vec<Block>> {
        let mut state = self.lock();
        if state.closed {
            return Some(blocks);
        }
        state.stacks[class.index()].blocks.extend(blocks);
        None
    }

    /// Takes all blocks, unless the cache was used since the last search.
    pub(super) fn take_idle(&self) -> Option<Vec<Block>> {
        let mut state = self.lock();
        (!mem::take(&mut state.used)).then(|| state.empty())
    }

    pub(super) fn take_all(&self) -> Vec<Block> {
        self.lock().empty()
    }

    /// Takes all blocks, and closes the cache.
    pub(super) fn close(&self) -> Vec<Block> {
        let mut state = self.lock();
        state.closed = true;
        state.empty()
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CacheState {
    fn empty(&mut self) -> Vec<Block> {
        self.stacks.iter_mut().flat_map(|stack| stack.blocks.drain(..)).collect()
    }
}

/// At the end of a thread its blocks are returned for the other threads.
impl Drop for ThreadCaches {
    fn drop(&mut self) {
        for entry in self.0.drain(..) {
            match entry.core.upgrade() {
                Some(pool) if pool.source().is_own_process() => {
                    pool.forget(&entry.cache);
                    PoolCore::put_back(entry.cache.close());
                }
                // Inherited by a forked child: not the child's to free.
                Some(_) => mem::forget(entry),
                None => {}
            }
        }
    }
}
