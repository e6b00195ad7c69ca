//! Chunks: ordinary allocations of one part each, out of which slabs are cut.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use range_alloc::RangeAllocator;

use super::{classes::PAGE, source::Allocation};

#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) allocation: Allocation,
    pub(super) address: u64,
    /// The daemon has revoked it: no block of it is handed out any more.
    revoked: AtomicBool,
}

/// The chunks of a pool.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    all: Vec<Pages>,
}

/// The pages of a chunk that are in slabs.
#[derive(Debug)]
struct Pages {
    chunk: Arc<Chunk>,
    ranges: RangeAllocator<u32>,
    /// Whether pages were taken or returned since the last search for idle memory.
    used: bool,
}

impl Chunk {
    #[inline]
    pub(super) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Relaxed)
    }
}

impl Chunks {
    pub(super) fn add(&mut self, allocation: Allocation) {
        let address = allocation.as_device_ptr();
        // The pool limits chunks to fewer pages.
        let pages = u32::try_from(allocation.info().size.get() / PAGE as u64).unwrap_or(u32::MAX);
        let chunk = Arc::new(Chunk { allocation, address, revoked: AtomicBool::new(false) });
        self.all.push(Pages { chunk, ranges: RangeAllocator::new(0..pages), used: true });
    }

    /// Takes consecutive pages of the oldest chunk that has them, so that younger chunks become free.
    pub(super) fn take(&mut self, count: u32) -> Option<(Arc<Chunk>, Range<u32>)> {
        self.all.iter_mut().filter(|pages| !pages.chunk.is_revoked()).find_map(|pages| {
            let range = pages.ranges.allocate_range(count).ok()?;
            pages.used = true;
            Some((Arc::clone(&pages.chunk), range))
        })
    }

    pub(super) fn give_back(&mut self, chunk: &Arc<Chunk>, range: Range<u32>, counts_as_use: bool) {
        if let Some(pages) = self.all.iter_mut().find(|pages| Arc::ptr_eq(&pages.chunk, chunk)) {
            pages.ranges.free_range(range);
            pages.used |= counts_as_use;
        }
    }

    /// Takes out the free chunks: all of them, or those that have been free since the last search. Also says whether
    /// any chunk was used meanwhile.
    pub(super) fn take_free(&mut self, all: bool) -> (Vec<Arc<Chunk>>, bool) {
        let (mut free, mut any_used) = (Vec::new(), false);
        self.all.retain_mut(|pages| {
            let used = std::mem::take(&mut pages.used);
            any_used |= used;
            let stays = !pages.ranges.is_empty() || (used && !all);
            if !stays {
                free.push(Arc::clone(&pages.chunk));
            }
            stays
        });
        (free, any_used)
    }

    /// Marks chunks that are no longer mapped; returns whether any was marked now.
    pub(super) fn mark_revoked(&mut self) -> bool {
        let mut news = false;
        for Pages { chunk, .. } in &self.all {
            if !chunk.is_revoked() && !chunk.allocation.is_mapped() {
                chunk.revoked.store(true, Ordering::Relaxed);
                news = true;
            }
        }
        news
    }

    /// Takes out revoked chunks without blocks in use.
    pub(super) fn take_revoked(&mut self) -> Vec<Arc<Chunk>> {
        let is_done = |pages: &mut Pages| pages.chunk.is_revoked() && pages.ranges.is_empty();
        self.all.extract_if(.., is_done).map(|pages| pages.chunk).collect()
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }
}
