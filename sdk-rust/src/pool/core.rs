//! A pool as its threads share it: shelves of slabs, chunks out of which slabs are cut, and the caches of all
//! threads.
//!
//! Locks are taken one at a time, except under `growing`, under which the others may be taken. Only `growing` is held
//! across a call of the daemon.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use vramd_types::Bytes;

use super::{
    cache::{self, Cache},
    chunk::Chunks,
    classes::Class,
    config::PoolConfig,
    shelf::Shelf,
    slab::{Block, Slab},
    source::Source,
};
use crate::error::{Error, Result, Sentence};

#[derive(Debug)]
pub(super) struct PoolCore {
    /// Unique among the pools of this process.
    pub(super) id: u64,
    source: Source,
    config: PoolConfig,
    /// The size of the largest class.
    largest: usize,
    shelves: Box<[Mutex<Shelf>]>,
    chunks: Mutex<Chunks>,
    growing: Mutex<()>,
    caches: Mutex<Vec<Arc<Cache>>>,
    /// No owner is left that could allocate.
    closed: AtomicBool,
    /// A search for idle memory is scheduled.
    tidy_scheduled: AtomicBool,
    /// The count of the session's revokes up to which this pool has checked its chunks.
    revokes_seen: AtomicU64,
}

impl PoolCore {
    pub(super) fn new(source: Source, config: PoolConfig) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let classes = Class::up_to(config.largest_block()).count();
        let largest = Class::up_to(config.largest_block()).last().map_or(0, Class::size);
        let revokes_seen = AtomicU64::new(source.revokes(Ordering::Relaxed));
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            source,
            config,
            largest,
            shelves: (0..classes).map(|_| Mutex::default()).collect(),
            chunks: Mutex::default(),
            growing: Mutex::default(),
            caches: Mutex::default(),
            closed: AtomicBool::new(false),
            tidy_scheduled: AtomicBool::new(false),
            revokes_seen,
        })
    }

    /// Allocates a block that fits `size` bytes.
    #[inline]
    pub(super) fn alloc(self: &Arc<Self>, size: usize) -> Result<Block> {
        loop {
            if let Some(block) = self.try_alloc(size)? {
                return Ok(block);
            }
            self.grow(size)?;
        }
    }

    /// Allocates a block if that needs no new chunk.
    #[inline]
    pub(super) fn try_alloc(self: &Arc<Self>, size: usize) -> Result<Option<Block>> {
        // Zero wraps, and counts as too large.
        if size.wrapping_sub(1) >= self.largest {
            return Err(self.size_error(size));
        }
        if !self.source.is_own_process() {
            return Err(self.source.forked_error());
        }
        if self.source.revokes(Ordering::Relaxed) != self.revokes_seen.load(Ordering::Relaxed) {
            self.source.check_here()?;
            self.close_revoked();
        }
        let class = Class::of(size);
        Ok(cache::take(self, class).or_else(|| self.refill(class)))
    }

    #[inline]
    pub(super) fn free(block: Block) {
        let pool = &block.slab.pool;
        if !pool.source.is_own_process() {
            std::mem::forget(block);
        } else if block.size() > cache::BLOCK_BYTES_MAX || block.slab.chunk.is_revoked() {
            Self::put_back(vec![block]);
        } else {
            cache::keep(block);
        }
    }

    /// Refills this thread's empty cache.
    #[cold]
    fn refill(self: &Arc<Self>, class: Class) -> Option<Block> {
        self.schedule_tidy();
        loop {
            let mut fresh = Vec::new();
            self.shelf(class).take(1 + cache::capacity(class) / 2, |block| fresh.push(block));
            if let Some(block) = fresh.pop() {
                if !fresh.is_empty() {
                    Self::put_back(cache::fill(self, class, fresh));
                }
                return Some(block);
            }
            if !self.cut_slab(class) {
                return None;
            }
        }
    }

    /// Cuts a new slab out of existing chunks.
    fn cut_slab(self: &Arc<Self>, class: Class) -> bool {
        let Some((chunk, pages)) = self.chunks().take(class.slab_pages()) else { return false };
        let pool = Arc::clone(self);
        self.shelf(class).add(|slot| Slab::new(pool, chunk, class, pages, slot));
        true
    }

    /// Makes room for a block of that size, by one more chunk. If that is refused, it reclaims idle blocks from the
    /// caches of other threads.
    #[cold]
    pub(super) fn grow(self: &Arc<Self>, size: usize) -> Result<()> {
        let class = Class::of(size);
        let _one_at_a_time = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.cut_slab(class) {
            return Ok(());
        }
        let refusal = match self.new_chunk() {
            Ok(()) => return Ok(()),
            Err(refusal) => refusal,
        };
        self.collect(true);
        let has_room = self.shelf(class).has_free() || self.cut_slab(class);
        if has_room { Ok(()) } else { Err(refusal) }
    }

    fn new_chunk(&self) -> Result<()> {
        let (chunk, limit) = (self.config.chunk_size, self.config.max_bytes);
        let held = self.chunk_bytes();
        if held.get().saturating_add(chunk.get()) > limit.get() {
            return Err(Error::PoolFull { limit, held, asked: chunk, said: Sentence::default() });
        }
        let allocation = self.source.allocate_chunk(chunk, self.config.device.as_deref())?;
        self.chunks().add(allocation);
        Ok(())
    }

    /// Returns blocks that no thread caches. This may end the pool.
    pub(super) fn put_back(blocks: Vec<Block>) {
        let Some(pool) = blocks.first().map(|block| Arc::clone(&block.slab.pool)) else { return };
        pool.return_blocks(blocks, true);
        if pool.closed.load(Ordering::Relaxed) {
            pool.release_free(true);
        } else {
            pool.schedule_tidy();
        }
    }

    fn return_blocks(&self, blocks: Vec<Block>, counts_as_use: bool) {
        let mut blocks = blocks.into_iter().peekable();
        while let Some(class) = blocks.peek().map(|block| block.slab.class) {
            let mut whole = Vec::new();
            let mut shelf = self.shelf(class);
            // Under the lock: a pool that is closed later finds the kept slab here.
            let keep_one = !self.closed.load(Ordering::Relaxed);
            while let Some(block) = blocks.next_if(|block| block.slab.class == class) {
                whole.extend(shelf.put(block, counts_as_use, keep_one));
            }
            drop(shelf);
            self.return_slabs(whole, counts_as_use);
        }
    }

    fn return_slabs(&self, slabs: Vec<Arc<Slab>>, counts_as_use: bool) {
        if slabs.is_empty() {
            return;
        }
        let mut chunks = self.chunks();
        for slab in &slabs {
            chunks.give_back(&slab.chunk, slab.pages.clone(), counts_as_use);
        }
    }

    /// Frees wholly free chunks; returns whether some were in use meanwhile.
    fn release_free(&self, all: bool) -> bool {
        let (free, used) = self.chunks().take_free(all);
        // The last reference: the session's release thread frees them.
        drop(free);
        used
    }

    /// Frees unused memory: all of it, or memory unused since the last search. Returns whether some memory may become
    /// idle later.
    pub(super) fn tidy(&self, all: bool) -> bool {
        let used = self.collect(all);
        self.release_free(all) || used
    }

    /// Moves unused blocks from caches to shelves, and whole slabs from there to chunks. Returns whether any was in
    /// use.
    fn collect(&self, all: bool) -> bool {
        let mut used = false;
        let caches = self.caches().clone();
        for cache in caches {
            let idle = if all { Some(cache.take_all()) } else { cache.take_idle() };
            used |= idle.is_none();
            self.return_blocks(idle.unwrap_or_default(), false);
        }
        for shelf in &self.shelves {
            let (whole, shelf_used) = lock(shelf).take_whole(all);
            used |= shelf_used;
            self.return_slabs(whole, false);
        }
        used
    }

    /// Schedules a search for idle memory.
    pub(super) fn schedule_tidy(self: &Arc<Self>) {
        if self.tidy_scheduled.load(Ordering::Relaxed) || self.tidy_scheduled.swap(true, Ordering::AcqRel) {
            return;
        }
        let pool = Arc::downgrade(self);
        self.source.run_after(self.config.idle_after, move || {
            if let Some(pool) = pool.upgrade() {
                // First, so that any use from here on schedules the next search.
                pool.tidy_scheduled.store(false, Ordering::Release);
                if pool.tidy(false) {
                    pool.schedule_tidy();
                }
            }
        });
    }

    /// Stops handing out blocks of chunks that the daemon has revoked.
    #[cold]
    fn close_revoked(&self) {
        if self.source.is_away() {
            // Nothing is mapped, and all of it comes back.
            return;
        }
        self.revokes_seen.store(self.source.revokes(Ordering::Acquire), Ordering::Relaxed);
        if !self.chunks().mark_revoked() {
            return;
        }
        let caches = self.caches().clone();
        for cache in caches {
            self.return_blocks(cache.take_all(), true);
        }
        for shelf in &self.shelves {
            let whole = lock(shelf).close_revoked();
            self.return_slabs(whole, true);
        }
        let revoked = self.chunks().take_revoked();
        drop(revoked);
    }

    pub(super) fn new_cache(&self) -> Option<Arc<Cache>> {
        let mut caches = self.caches();
        (!self.closed.load(Ordering::Relaxed)).then(|| {
            let cache = Arc::new(Cache::new(self.shelves.len()));
            caches.push(Arc::clone(&cache));
            cache
        })
    }

    pub(super) fn forget(&self, cache: &Arc<Cache>) {
        self.caches().retain(|other| !Arc::ptr_eq(other, cache));
    }

    /// Closes the pool: the last owner is gone.
    pub(super) fn close(&self) {
        // Before any lock is taken, so that every later holder of a lock sees it.
        self.closed.store(true, Ordering::Relaxed);
        let caches = std::mem::take(&mut *self.caches());
        for cache in caches {
            self.return_blocks(cache.close(), false);
        }
        self.tidy(true);
    }

    pub(super) fn max_block_size(&self) -> Bytes {
        Bytes::new(self.largest as u64)
    }

    /// The bytes of all chunks.
    pub(super) fn chunk_bytes(&self) -> Bytes {
        Bytes::new(self.config.chunk_size.get() * self.chunks().count() as u64)
    }

    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    fn size_error(&self, size: usize) -> Error {
        if size == 0 {
            return Error::size_invalid("size", 0);
        }
        Error::BlockTooLarge { size: Bytes::new(size as u64), largest: self.max_block_size() }
    }

    fn shelf(&self, class: Class) -> MutexGuard<'_, Shelf> {
        lock(&self.shelves[class.index()])
    }

    fn chunks(&self) -> MutexGuard<'_, Chunks> {
        lock(&self.chunks)
    }

    fn caches(&self) -> MutexGuard<'_, Vec<Arc<Cache>>> {
        lock(&self.caches)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
