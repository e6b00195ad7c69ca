//! Small blocks of the program, with turns: pieces of allocations of one granule each, which move as a whole.
//!
//! The pools of the SDK keep their chunks pinned, so they cannot move. Here each chunk is a member of the working set. So
//! thousands of small blocks are few members.

use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

use range_alloc::RangeAllocator;

use super::members::Owned;
use crate::session::{GRANULE, Held, lock};

/// Pieces begin at multiples of this.
const UNIT: u64 = 512;
const UNITS: u32 = 4096;
const _: () = assert!(UNITS as u64 * UNIT == GRANULE);

/// The chunks of a device.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    chunks: Mutex<Vec<Chunk>>,
}

#[derive(Debug)]
struct Chunk {
    memory: Arc<ChunkMemory>,
    ranges: RangeAllocator<u32>,
    free_units: u32,
}

#[derive(Debug)]
struct ChunkMemory {
    owned: Owned,
    _held: Held,
}

/// A block of the program. Dropping it gives its room to others.
#[derive(Debug)]
pub(crate) struct Piece {
    of: &'static Pieces,
    memory: Arc<ChunkMemory>,
    range: Range<u32>,
}

impl Pieces {
    /// Cuts a piece out of a chunk that has the room.
    pub(crate) fn take(&'static self, bytes: u64) -> Option<Piece> {
        let units = units_of(bytes)?;
        let mut chunks = lock(&self.chunks);
        chunks.iter_mut().filter(|chunk| chunk.free_units >= units).find_map(|chunk| chunk.cut(self, units))
    }

    /// Adds a chunk, and cuts a piece out of it.
    pub(crate) fn grow(&'static self, bytes: u64, owned: Owned, held: Held) -> Option<Piece> {
        let memory = Arc::new(ChunkMemory { owned, _held: held });
        let mut chunk = Chunk { memory, ranges: RangeAllocator::new(0..UNITS), free_units: UNITS };
        let piece = chunk.cut(self, units_of(bytes)?);
        lock(&self.chunks).push(chunk);
        piece
    }

    /// Gives back the chunks that have no piece.
    pub(crate) fn trim(&self) {
        let unused: Vec<_> = lock(&self.chunks).extract_if(.., |chunk| chunk.is_unused()).collect();
        // After the lock: the end of an allocation may have the daemon called.
        drop(unused);
    }

    fn give_back(&self, piece: &Piece) {
        let mut chunks = lock(&self.chunks);
        let Some(at) = chunks.iter().position(|chunk| Arc::ptr_eq(&chunk.memory, &piece.memory)) else {
            return;
        };
        chunks[at].ranges.free_range(piece.range.clone());
        chunks[at].free_units += piece.units();
        // One without a piece is kept for the next block.
        let is_beyond = chunks[at].is_unused() && chunks.iter().filter(|chunk| chunk.is_unused()).count() > 1;
        let unused = is_beyond.then(|| chunks.swap_remove(at));
        drop(chunks);
        drop(unused);
    }
}

impl Chunk {
    fn cut(&mut self, of: &'static Pieces, units: u32) -> Option<Piece> {
        let range = self.ranges.allocate_range(units).ok()?;
        self.free_units -= units;
        Some(Piece { of, memory: Arc::clone(&self.memory), range })
    }

    fn is_unused(&self) -> bool {
        self.free_units == UNITS
    }
}

impl Piece {
    /// The address of the chunk.
    pub(crate) fn chunk_address(&self) -> u64 {
        self.memory.owned.address()
    }

    pub(crate) fn address(&self) -> u64 {
        self.chunk_address() + u64::from(self.range.start) * UNIT
    }

    pub(crate) fn capacity(&self) -> u64 {
        u64::from(self.units()) * UNIT
    }

    fn units(&self) -> u32 {
        self.range.end - self.range.start
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.of.give_back(self);
    }
}

fn units_of(bytes: u64) -> Option<u32> {
    u32::try_from(bytes.div_ceil(UNIT)).ok()
}
