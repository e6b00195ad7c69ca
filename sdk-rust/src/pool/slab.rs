//! Slabs: runs of pages of a chunk, cut into blocks of one class. Their records lie in this process's own memory,
//! since the chunk may be a GPU's.

use std::{ops::Range, sync::Arc};

use super::{
    chunk::Chunk,
    classes::{Class, PAGE},
    core::PoolCore,
};

#[derive(Debug)]
pub(super) struct Slab {
    pub(super) pool: Arc<PoolCore>,
    pub(super) chunk: Arc<Chunk>,
    pub(super) class: Class,
    pub(super) pages: Range<u32>,
    /// Its slot on the shelf of its class.
    pub(super) slot: usize,
    block_size: usize,
}

/// One block, whose bytes belong to the owner of this value. It keeps its slab, and so the chunk, the pool and the
/// session.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) slab: Arc<Slab>,
    pub(super) index: usize,
}

impl Slab {
    pub(super) fn new(
        pool: Arc<PoolCore>,
        chunk: Arc<Chunk>,
        class: Class,
        pages: Range<u32>,
        slot: usize,
    ) -> Self {
        Self { pool, chunk, class, pages, slot, block_size: class.size() }
    }

    pub(super) fn block_count(&self) -> usize {
        self.pages.len() * PAGE / self.block_size
    }
}

impl Block {
    /// Its offset in the chunk.
    #[inline]
    pub(super) fn offset(&self) -> usize {
        self.slab.pages.start as usize * PAGE + self.index * self.slab.block_size
    }

    pub(super) fn size(&self) -> usize {
        self.slab.block_size
    }
}
