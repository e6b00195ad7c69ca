//! What a thread keeps for itself: freed blocks, which it takes first when it allocates again.
//!
//! A thread's cache of a pool lies behind a lock that is the thread's own but for one visitor: who looks for what is
//! idle empties the caches that were not used for long. So memory is not kept by a thread that sleeps.

use std::{
    cell::RefCell,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use super::{classes::Class, shared::Shared, slab::Block};

/// Of one class a cache keeps no more bytes, and no more blocks. Larger blocks are not kept.
pub(super) const BLOCK_BYTES_MAX: usize = 512 << 10;
const CLASS_BLOCKS_MAX: usize = 128;

/// How many blocks of a class a thread keeps at most.
pub(super) fn capacity(class: Class) -> usize {
    (BLOCK_BYTES_MAX / class.size()).min(CLASS_BLOCKS_MAX)
}

#[derive(Debug)]
pub(super) struct Cache(Mutex<State>);

#[derive(Debug)]
struct State {
    stacks: Box<[Stack]>,
    /// Since the last look for what is idle.
    used: bool,
    /// The pool has no owner any more, or the thread is gone.
    closed: bool,
}

#[derive(Debug)]
struct Stack {
    blocks: Vec<Block>,
    capacity: usize,
}

/// This thread's caches, of all pools that it uses; the one that was used last comes first.
#[derive(Debug)]
struct Caches(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    pool: u64,
    shared: Weak<Shared>,
    cache: Arc<Cache>,
}

thread_local! {
    static CACHES: RefCell<Caches> = const { RefCell::new(Caches(Vec::new())) };
}

/// A block that this thread has kept.
#[inline]
pub(super) fn take(pool: &Arc<Shared>, class: Class) -> Option<Block> {
    let (block, first) = with(pool.id, |entry| entry.cache.take(class))?;
    if first {
        pool.schedule_tidy();
    }
    block
}

/// Keeps a block for this thread, and passes some on if it has too many.
#[inline]
pub(super) fn keep(block: Block) {
    let mut block = Some(block);
    let pool = block.as_ref().map_or(0, |block| block.slab.pool.id);
    let kept = with(pool, |entry| {
        let (overflow, first) = entry.cache.keep(block.take()?);
        Some((overflow, first.then(|| Weak::clone(&entry.shared))))
    });
    match kept.flatten() {
        Some((overflow, None)) if overflow.is_empty() => {}
        Some((overflow, tidy_scheduled)) => {
            if let Some(pool) = tidy_scheduled.and_then(|pool| pool.upgrade()) {
                pool.schedule_tidy();
            }
            Shared::put_back(overflow);
        }
        None => block.into_iter().for_each(keep_first),
    }
}

/// The first of its pool that this thread sees.
#[cold]
fn keep_first(block: Block) {
    let pool = Arc::clone(&block.slab.pool);
    let left = fill(&pool, block.slab.class, vec![block]);
    Shared::put_back(left);
}

/// Puts blocks where this thread takes from. Those that it cannot keep come back.
#[cold]
pub(super) fn fill(pool: &Arc<Shared>, class: Class, blocks: Vec<Block>) -> Vec<Block> {
    if with(pool.id, |_| ()).is_none() && !enter(pool) {
        return blocks;
    }
    let mut blocks = Some(blocks);
    let left = with(pool.id, |entry| entry.cache.fill(class, blocks.take()?)).flatten();
    left.or(blocks).unwrap_or_default()
}

/// Makes a cache for this thread; false where it may have none any more.
fn enter(pool: &Arc<Shared>) -> bool {
    let Some(cache) = pool.new_cache() else { return false };
    let entry = Entry { pool: pool.id, shared: Arc::downgrade(pool), cache: Arc::clone(&cache) };
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
fn with<T>(pool: u64, work: impl FnOnce(&Entry) -> T) -> Option<T> {
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
        Self(Mutex::new(State { stacks: stacks.collect(), used: false, closed: false }))
    }

    /// The block that was freed last, and whether this is the first use since the last look for what is idle.
    #[inline]
    fn take(&self, class: Class) -> (Option<Block>, bool) {
        let mut state = self.lock();
        let first = !mem::replace(&mut state.used, true);
        (state.stacks[class.index()].blocks.pop(), first)
    }

    /// What there is no room for, and the same.
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
        // The older half: what was freed last is taken next.
        (stack.blocks.drain(..=stack.capacity / 2).collect(), first)
    }

    /// Those that are not taken, or `None`.
    fn fill(&self, class: Class, blocks: Vec<Block>) -> Option<Vec<Block>> {
        let mut state = self.lock();
        if state.closed {
            return Some(blocks);
        }
        state.stacks[class.index()].blocks.extend(blocks);
        None
    }

    /// What lies here, unless this was used since the last time that somebody asked.
    pub(super) fn take_idle(&self) -> Option<Vec<Block>> {
        let mut state = self.lock();
        (!mem::take(&mut state.used)).then(|| state.empty())
    }

    pub(super) fn take_all(&self) -> Vec<Block> {
        self.lock().empty()
    }

    /// Takes all, and has it keep nothing any more.
    pub(super) fn close(&self) -> Vec<Block> {
        let mut state = self.lock();
        state.closed = true;
        state.empty()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn empty(&mut self) -> Vec<Block> {
        self.stacks.iter_mut().flat_map(|stack| stack.blocks.drain(..)).collect()
    }
}

/// The thread ends: what it kept is for the others.
impl Drop for Caches {
    fn drop(&mut self) {
        for entry in self.0.drain(..) {
            match entry.shared.upgrade() {
                Some(pool) if pool.is_own_process() => {
                    pool.forget(&entry.cache);
                    Shared::put_back(entry.cache.close());
                }
                // Of a forked child's parent: not the child's to free.
                Some(_) => mem::forget(entry),
                None => {}
            }
        }
    }
}
