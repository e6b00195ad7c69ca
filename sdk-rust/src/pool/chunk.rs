//! Chunks: ordinary allocations of one part each, which slabs are taken out of.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use range_alloc::RangeAllocator;

use super::classes::PAGE;
use crate::handles::allocation::Allocation;

#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) allocation: Allocation,
    pub(super) address: u64,
    /// The daemon has taken it away: nothing of it is handed out any more.
    revoked: AtomicBool,
}

/// The chunks of a pool.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    all: Vec<Pages>,
}

/// What of a chunk is in slabs.
#[derive(Debug)]
struct Pages {
    chunk: Arc<Chunk>,
    ranges: RangeAllocator<u32>,
    /// Something was taken or given back since the last look for what is idle.
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
        // The pool has seen to it that a chunk has fewer.
        let pages = u32::try_from(allocation.info().size.get() / PAGE as u64).unwrap_or(u32::MAX);
        let chunk = Arc::new(Chunk { allocation, address, revoked: AtomicBool::new(false) });
        self.all.push(Pages { chunk, ranges: RangeAllocator::new(0..pages), used: true });
    }

    /// Pages in a row, of the oldest chunk that has them: so the younger ones become free.
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

    /// Takes out what is wholly free: all of it, or what was so at the last look and since. And whether any was
    /// used meanwhile.
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

    /// Marks those that are not mapped any more; whether there were any that were not known of.
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

    /// Those of them that nobody has a block of.
    pub(super) fn take_revoked(&mut self) -> Vec<Arc<Chunk>> {
        let is_done = |pages: &mut Pages| pages.chunk.is_revoked() && pages.ranges.is_empty();
        self.all.extract_if(.., is_done).map(|pages| pages.chunk).collect()
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }
}
