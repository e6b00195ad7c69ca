//! The slabs of one class and their free blocks, which threads take and return in batches.

use std::sync::Arc;

use super::slab::{Block, Slab};

#[derive(Debug, Default)]
pub(super) struct Shelf {
    slots: Vec<Option<ShelvedSlab>>,
    vacant: Vec<usize>,
    /// The slots of slabs that have free blocks to hand out; the last is used first.
    open: Vec<usize>,
    /// The number of slabs whose blocks are all free.
    whole: usize,
}

#[derive(Debug)]
struct ShelvedSlab {
    slab: Arc<Slab>,
    free: Vec<usize>,
    used: bool,
}

impl Shelf {
    /// Adds a slab whose blocks are all free; `make` gets its slot.
    pub(super) fn add(&mut self, make: impl FnOnce(usize) -> Slab) {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let slab = Arc::new(make(slot));
        let free = (0..slab.block_count()).rev().collect();
        self.slots[slot] = Some(ShelvedSlab { slab, free, used: true });
        self.open.push(slot);
        self.whole += 1;
    }

    /// Hands out up to `max` free blocks.
    pub(super) fn take(&mut self, max: usize, mut to: impl FnMut(Block)) -> usize {
        let mut taken = 0;
        while taken < max {
            let Some(&slot) = self.open.last() else { break };
            let Some(entry) = &mut self.slots[slot] else { break };
            if entry.free.len() == entry.slab.block_count() {
                self.whole -= 1;
            }
            entry.used = true;
            let left = entry.free.len().saturating_sub(max - taken);
            taken += entry.free.len() - left;
            for index in entry.free.drain(left..).rev() {
                to(Block { slab: Arc::clone(&entry.slab), index });
            }
            if entry.free.is_empty() {
                self.open.pop();
            }
        }
        taken
    }

    /// Takes a block back. A slab whose blocks are all free then is returned, unless it is the only one and one is to
    /// be kept.
    pub(super) fn put(&mut self, block: Block, counts_as_use: bool, keep_one: bool) -> Option<Arc<Slab>> {
        let slot = block.slab.slot;
        let entry = self.slots[slot].as_mut()?;
        entry.used |= counts_as_use;
        entry.free.push(block.index);
        let revoked = entry.slab.chunk.is_revoked();
        if entry.free.len() == 1 && !revoked {
            self.open.push(slot);
        }
        if entry.free.len() < entry.slab.block_count() {
            return None;
        }
        self.whole += 1;
        (self.whole > 1 || revoked || !keep_one).then(|| self.remove(slot)).flatten()
    }

    /// Takes out the slabs whose blocks are all free: all of them, or those that have been so since the last search.
    /// Also says whether any was used meanwhile.
    pub(super) fn take_whole(&mut self, all: bool) -> (Vec<Arc<Slab>>, bool) {
        let mut any_used = false;
        let is_idle = |entry: &mut Option<ShelvedSlab>| {
            let entry = entry.as_mut()?;
            let used = std::mem::take(&mut entry.used);
            any_used |= used;
            let whole = entry.free.len() == entry.slab.block_count();
            (whole && (all || !used)).then_some(entry.slab.slot)
        };
        let idle: Vec<_> = self.slots.iter_mut().filter_map(is_idle).collect();
        (idle.into_iter().filter_map(|slot| self.remove(slot)).collect(), any_used)
    }

    pub(super) fn has_free(&self) -> bool {
        !self.open.is_empty()
    }

    /// Hands out no more blocks of revoked chunks. Their slabs whose blocks are all free are returned; the others
    /// follow when theirs are.
    pub(super) fn close_revoked(&mut self) -> Vec<Arc<Slab>> {
        let slots = &self.slots;
        let is_revoked =
            |slot: usize| slots[slot].as_ref().is_some_and(|entry| entry.slab.chunk.is_revoked());
        self.open.retain(|&slot| !is_revoked(slot));
        let whole = |entry: &ShelvedSlab| {
            entry.slab.chunk.is_revoked() && entry.free.len() == entry.slab.block_count()
        };
        let whole: Vec<_> =
            self.slots.iter().flatten().filter(|entry| whole(entry)).map(|it| it.slab.slot).collect();
        whole.into_iter().filter_map(|slot| self.remove(slot)).collect()
    }

    fn remove(&mut self, slot: usize) -> Option<Arc<Slab>> {
        let entry = self.slots[slot].take()?;
        self.open.retain(|&open| open != slot);
        self.vacant.push(slot);
        self.whole -= 1;
        Some(entry.slab)
    }
}
