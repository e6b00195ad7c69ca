//! Bookkeeping of the pinned free memory of one host node, the same for every driver.
//!
//! Pinning takes 0.2 s for each GiB. So the driver pins memory ahead of need, in pieces of the ordinary part
//! size, and keeps released memory pinned. This module does not know how memory is pinned, unpinned or zeroed,
//! nor what extents use. Its caller passes how much of the node's memory the extents leave.
//!
//! Free memory serves only extents of exactly its size. If much of another size was released, there may be no
//! piece left. Then each extent of the ordinary size would have other memory unpinned and a piece pinned while
//! a client waits. So the module rebuilds: in the background the least recently used other sizes go, and pieces
//! are pinned in their place. A rebuild begins when a caller wanted a piece and none was free, so a node that
//! needs no pieces keeps what it has. It ends when half of the free memory are pieces, so that other sizes are
//! not all lost.
//!
//! With [`PinPace::WithUse`] nothing is pinned before the first extent. After it the module keeps free pieces worth
//! half of what extents use, so that growth waits for pinning only at its begin. Nothing is unpinned when use falls.
//!
//! No other process holds free memory, so none can see what is written there later. It may hold the bytes of
//! any tenant.

use std::collections::{BTreeMap, VecDeque};

use vramd_types::{Bytes, HostNode};

use crate::{FreePinnedFacts, PinPace};

/// The pinned free memory of one node. The default keeps nothing.
#[derive(Debug)]
pub(crate) struct FreePinned<M> {
    /// The size of a piece; zero if nothing is pinned ahead.
    piece: Bytes,
    pieces_max: usize,
    pace: PinPace,
    memory: BTreeMap<Bytes, SizeClass<M>>,
    bytes: Bytes,
    /// The part of `bytes` that lies in pieces.
    ordinary: Bytes,
    pieces: usize,
    is_filling: bool,
    is_stopped: bool,
    rebuilding: Rebuild,
    /// How often a rebuild has begun.
    rebuilds: u64,
    /// Counts takes and adds.
    clock: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rebuild {
    Not,
    /// A caller wanted a piece, and none was free.
    Wanted,
    Begun,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FreeMemory<M> {
    pub(crate) memory: M,
    pub(crate) is_zero: bool,
}

/// One step of background work, small enough that a new submission waits for no more than this.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step<M> {
    /// Pin so much, and add it.
    Pin(Bytes),
    Unpin(M),
}

#[derive(Debug)]
struct SizeClass<M> {
    /// Memory known to be zero is at the front.
    memory: VecDeque<FreeMemory<M>>,
    /// The clock at the last take or add.
    used: u64,
}

impl<M> Default for FreePinned<M> {
    fn default() -> Self {
        Self { is_filling: false, ..Self::new(Bytes::ZERO, 0, PinPace::FromStart) }
    }
}

impl<M> FreePinned<M> {
    pub(crate) fn new(piece: Bytes, pieces_max: usize, pace: PinPace) -> Self {
        Self {
            piece,
            pieces_max,
            pace,
            memory: BTreeMap::new(),
            bytes: Bytes::ZERO,
            ordinary: Bytes::ZERO,
            pieces: 0,
            is_filling: true,
            is_stopped: false,
            rebuilding: Rebuild::Not,
            rebuilds: 0,
            clock: 0,
        }
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// The free memory by size, relative to a piece.
    pub(crate) fn facts(&self, node: HostNode) -> FreePinnedFacts {
        let (ordinary, rebuilds) = (self.ordinary, self.rebuilds);
        let smaller = self.memory.range(..self.piece);
        let smaller = smaller.map(|(size, of)| Bytes::new(size.get().saturating_mul(of.memory.len() as u64)));
        let smaller = smaller.fold(Bytes::ZERO, Bytes::saturating_add);
        let larger = self.other_sizes().saturating_sub(smaller);
        FreePinnedFacts { node, ordinary, smaller, larger, rebuilds }
    }

    /// Takes memory for an extent of exactly that size. Zeroed memory is spared for callers that need it, if
    /// other memory is free.
    pub(crate) fn take(&mut self, size: Bytes, zeroed: bool) -> Option<FreeMemory<M>> {
        self.clock += 1;
        if let Some(class) = self.memory.get_mut(&size) {
            class.used = self.clock;
        } else if size == self.piece && !self.bytes.is_zero() && self.rebuilding == Rebuild::Not {
            self.rebuilding = Rebuild::Wanted;
        }
        self.remove(size, zeroed)
    }

    /// Adds released or newly pinned memory. Returns it if the maximum of pieces is reached.
    pub(crate) fn add(&mut self, size: Bytes, memory: FreeMemory<M>) -> Result<(), M> {
        if self.pieces >= self.pieces_max {
            return Err(memory.memory);
        }
        self.pieces += 1;
        self.bytes = self.bytes.saturating_add(size);
        if size == self.piece {
            self.ordinary = self.ordinary.saturating_add(size);
        }
        self.clock += 1;
        let class = self.memory.entry(size).or_insert_with(|| SizeClass { memory: VecDeque::new(), used: 0 });
        class.used = self.clock;
        if memory.is_zero {
            class.memory.push_front(memory);
        } else {
            class.memory.push_back(memory);
        }
        Ok(())
    }

    /// Removes memory until at most `room` bytes are left: other sizes than pieces first. The caller unpins
    /// what is returned.
    pub(crate) fn shrink_to(&mut self, room: Bytes) -> Vec<M> {
        let mut gone = Vec::new();
        while self.bytes > room {
            // Written memory goes before zeroed memory.
            match self.remove(self.least_recent_other_size().unwrap_or(self.piece), false) {
                Some(memory) => gone.push(memory.memory),
                None => break,
            }
        }
        gone
    }

    /// The part of the room that is pinned ahead while extents use so much.
    pub(crate) fn room_ahead(&self, room: Bytes, used: Bytes) -> Bytes {
        match self.pace {
            PinPace::FromStart => room,
            PinPace::WithUse if used.is_zero() => Bytes::ZERO,
            PinPace::WithUse => room.min(self.piece.max(Bytes::new(used.get() / 2))),
        }
    }

    /// The size to pin next, if so much room is pinned ahead.
    pub(crate) fn next_missing(&self, room: Bytes) -> Option<Bytes> {
        let fits = self.bytes.saturating_add(self.piece) <= room && self.pieces < self.pieces_max;
        (fits && self.pins_ahead()).then_some(self.piece)
    }

    /// The next step of background work, if so much room is pinned ahead.
    pub(crate) fn step(&mut self, room: Bytes) -> Option<Step<M>> {
        match self.next_missing(room) {
            Some(size) => Some(Step::Pin(size)),
            None => self.unpin_for_piece(room).map(Step::Unpin),
        }
    }

    /// A piece could not be pinned. Memory that should be pinned from the start is not tried again; with use it is,
    /// at the next order.
    pub(crate) fn pin_failed(&mut self) {
        if self.pace == PinPace::FromStart {
            self.stop();
        }
    }

    /// Stops pinning ahead of need. Released memory is still added.
    pub(crate) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Returns true once, when nothing is left to pin ahead.
    pub(crate) fn take_filled(&mut self, room: Bytes) -> bool {
        let take_filled = self.is_filling && self.next_missing(room).is_none();
        self.is_filling &= !take_filled;
        take_filled
    }

    /// During a rebuild, removes memory of another size to make way for a piece.
    fn unpin_for_piece(&mut self, room: Bytes) -> Option<M> {
        let fits = self.ordinary.saturating_add(self.piece) <= room;
        if !self.pins_ahead() || !fits || self.other_sizes() <= self.ordinary {
            self.rebuilding = Rebuild::Not;
        }
        if self.rebuilding == Rebuild::Wanted {
            self.rebuilding = Rebuild::Begun;
            self.rebuilds += 1;
        }
        let least_recent_other_size =
            self.least_recent_other_size().filter(|_| self.rebuilding == Rebuild::Begun)?;
        self.remove(least_recent_other_size, false).map(|memory| memory.memory)
    }

    /// Bytes free in other sizes than pieces.
    fn other_sizes(&self) -> Bytes {
        self.bytes.saturating_sub(self.ordinary)
    }

    fn pins_ahead(&self) -> bool {
        !self.is_stopped && !self.piece.is_zero()
    }

    /// The least recently used size other than that of a piece.
    fn least_recent_other_size(&self) -> Option<Bytes> {
        let least_recent_other_size = self.memory.iter().filter(|(size, _)| **size != self.piece);
        least_recent_other_size.min_by_key(|(_, of)| of.used).map(|(size, _)| *size)
    }

    fn remove(&mut self, size: Bytes, zeroed: bool) -> Option<FreeMemory<M>> {
        let class = self.memory.get_mut(&size)?;
        let taken = if zeroed { class.memory.pop_front() } else { class.memory.pop_back() }?;
        if class.memory.is_empty() {
            self.memory.remove(&size);
        }
        self.pieces -= 1;
        self.bytes = self.bytes.saturating_sub(size);
        if size == self.piece {
            self.ordinary = self.ordinary.saturating_sub(size);
        }
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: Bytes = Bytes::mib(4);
    const ODD: Bytes = Bytes::mib(2);
    const ROOM: Bytes = Bytes::mib(17);

    fn fresh(memory: u32) -> FreeMemory<u32> {
        FreeMemory { memory, is_zero: true }
    }

    fn used(memory: u32) -> FreeMemory<u32> {
        FreeMemory { memory, is_zero: false }
    }

    #[test]
    fn with_use_half_as_much_again_is_pinned_ahead() {
        let mut free = FreePinned::new(PIECE, 100, PinPace::WithUse);
        let (all, mib) = (Bytes::mib(100), Bytes::mib);
        assert_eq!(free.room_ahead(all, Bytes::ZERO), Bytes::ZERO);
        assert!(free.take_filled(Bytes::ZERO), "nothing is pinned from the start");
        for (used, ahead) in [(2, 4), (8, 4), (20, 10), (80, 40)] {
            assert_eq!(free.room_ahead(all, mib(used)), mib(ahead), "{used} MiB are used");
        }
        assert_eq!(free.room_ahead(mib(3), mib(80)), mib(3), "no more than there is room for");
        assert_eq!(free.next_missing(mib(4)), Some(PIECE));
        free.pin_failed();
        assert_eq!(free.next_missing(mib(4)), Some(PIECE), "it is tried again");
        let mut from_start = FreePinned::<u32>::new(PIECE, 100, PinPace::FromStart);
        assert_eq!(from_start.room_ahead(all, Bytes::ZERO), all);
        from_start.pin_failed();
        assert_eq!(from_start.next_missing(all), None);
        free.add(PIECE, fresh(1)).unwrap();
        assert_eq!(free.step(Bytes::ZERO), None, "and nothing is unpinned when use falls");
    }

    /// Fills it as a driver does.
    fn filled(mut free: FreePinned<u32>, room: Bytes) -> FreePinned<u32> {
        let mut next = 0;
        while let Some(size) = free.next_missing(room) {
            assert!(!free.take_filled(room));
            assert_eq!(free.add(size, fresh(next)), Ok(()));
            next += 1;
        }
        assert!(free.take_filled(room));
        assert!(!free.take_filled(room), "that is said once");
        free
    }

    #[test]
    fn pinning_ahead_stops_at_the_last_whole_piece() {
        let free = filled(FreePinned::new(PIECE, 100, PinPace::FromStart), ROOM);
        assert_eq!(free.bytes(), Bytes::mib(16));
        assert_eq!(
            filled(FreePinned::new(PIECE, 3, PinPace::FromStart), ROOM).bytes(),
            Bytes::mib(12),
            "nor more pieces than may be"
        );
        assert_eq!(
            filled(FreePinned::new(PIECE, 100, PinPace::FromStart), Bytes::mib(3)).bytes(),
            Bytes::ZERO
        );
    }

    #[test]
    fn taken_memory_has_the_size_and_is_zero_if_possible() {
        let mut free = FreePinned::new(PIECE, 100, PinPace::FromStart);
        for memory in [used(1), fresh(2), used(3), fresh(4)] {
            free.add(PIECE, memory).unwrap();
        }
        assert_eq!(free.take(ODD, true), None);
        assert!(!free.take(PIECE, false).unwrap().is_zero);
        assert!(free.take(PIECE, true).unwrap().is_zero);
        assert!(free.take(PIECE, true).unwrap().is_zero);
        assert!(!free.take(PIECE, true).unwrap().is_zero, "the caller sees that it is not");
        assert_eq!(free.take(PIECE, true), None);
        assert_eq!(free.bytes(), Bytes::ZERO);
    }

    #[test]
    fn other_sizes_are_unpinned_first_and_only_as_needed() {
        let mut free = filled(FreePinned::new(PIECE, 100, PinPace::FromStart), Bytes::mib(8));
        free.add(ODD, used(10)).unwrap();
        free.add(Bytes::mib(6), used(11)).unwrap();
        assert_eq!(free.shrink_to(Bytes::mib(16)), Vec::<u32>::new());
        assert_eq!(free.shrink_to(Bytes::mib(13)), [10, 11]);
        assert_eq!(free.shrink_to(Bytes::mib(7)).len(), 1);
        assert_eq!(free.bytes(), PIECE);
        assert_eq!(free.shrink_to(Bytes::ZERO).len(), 1);
        assert_eq!((free.bytes(), free.next_missing(PIECE)), (Bytes::ZERO, Some(PIECE)), "it fills again");
    }

    #[test]
    fn released_memory_is_still_added_after_stop() {
        let mut free = FreePinned::new(PIECE, 2, PinPace::FromStart);
        free.stop();
        assert!(free.take_filled(ROOM));
        assert_eq!(free.next_missing(ROOM), None);
        free.add(PIECE, used(1)).unwrap();
        free.add(ODD, used(2)).unwrap();
        assert_eq!(free.add(ODD, used(3)), Err(3), "as long as there are not too many");
        assert_eq!(free.shrink_to(Bytes::ZERO).len(), 2);
    }

    /// Runs all steps as a driver does. Returns how many pieces were pinned and how many other sizes unpinned.
    fn rebuilt(free: &mut FreePinned<u32>, room: Bytes) -> (usize, usize) {
        let (mut pinned, mut gone) = (0, 0);
        while let Some(step) = free.step(room) {
            match step {
                Step::Pin(size) => {
                    assert_eq!(size, PIECE, "one at a time");
                    free.add(size, fresh(0)).unwrap();
                    pinned += 1;
                }
                Step::Unpin(_) => gone += 1,
            }
            assert!(free.bytes() <= room);
        }
        (pinned, gone)
    }

    /// Full of memory half the size of a piece.
    fn in_halves(count: u32) -> FreePinned<u32> {
        let mut free = FreePinned::new(PIECE, 100, PinPace::FromStart);
        (0..count).for_each(|memory| free.add(ODD, used(memory)).unwrap());
        free
    }

    fn by_size(free: &FreePinned<u32>) -> [u64; 3] {
        let FreePinnedFacts { ordinary, smaller, larger, .. } = free.facts(HostNode(0));
        assert_eq!(Bytes::checked_sum([ordinary, smaller, larger]), Some(free.bytes()));
        [ordinary, smaller, larger].map(|bytes| bytes.get() >> 20)
    }

    #[test]
    fn a_missing_piece_starts_a_rebuild_until_half_are_pieces() {
        let (mut free, room) = (in_halves(16), Bytes::mib(32));
        assert_eq!(rebuilt(&mut free, room), (0, 0), "no caller has wanted a piece");
        assert_eq!(free.take(Bytes::mib(6), false), None);
        assert_eq!(rebuilt(&mut free, room), (0, 0), "nor a piece, but another size");
        assert_eq!(free.take(PIECE, false), None);
        assert_eq!(rebuilt(&mut free, room), (4, 8));
        assert_eq!((by_size(&free), free.facts(HostNode(0)).rebuilds), ([16, 16, 0], 1));
        for _ in 0..4 {
            assert!(free.take(PIECE, true).unwrap().is_zero);
            assert_eq!(rebuilt(&mut free, Bytes::mib(16)), (0, 0), "as long as there are pieces");
        }
        assert_eq!(free.take(PIECE, true), None);
        assert_eq!(rebuilt(&mut free, Bytes::mib(16)), (2, 4), "and again when there is none");
        assert_eq!((by_size(&free), free.facts(HostNode(0)).rebuilds), ([8, 8, 0], 2));
    }

    #[test]
    fn each_step_pins_or_unpins_one() {
        let (mut free, room) = (in_halves(4), Bytes::mib(8));
        free.add(Bytes::mib(6), used(9)).unwrap();
        assert_eq!((free.take(PIECE, false), by_size(&free)), (None, [0, 8, 6]));
        let room = room.saturating_add(Bytes::mib(6));
        for memory in [3, 2] {
            assert_eq!(free.step(room), Some(Step::Unpin(memory)), "the least recently used");
        }
        assert_eq!(free.step(room), Some(Step::Pin(PIECE)), "as soon as there is room for it");
        assert_eq!(free.add(PIECE, fresh(10)), Ok(()));
        assert!(free.take(ODD, false).is_some(), "a caller is served meanwhile");
        assert_eq!(free.add(ODD, used(3)), Ok(()));
        assert_eq!(free.step(room), Some(Step::Unpin(9)), "now that is");
        assert_eq!(free.step(room), Some(Step::Pin(PIECE)));
        assert_eq!(free.add(PIECE, fresh(11)), Ok(()));
        assert_eq!((free.step(room), by_size(&free)), (None, [8, 4, 0]));
    }

    #[test]
    fn memory_too_small_for_a_piece_stays() {
        let mut free = in_halves(3);
        assert_eq!(free.take(PIECE, false), None);
        assert_eq!(rebuilt(&mut free, Bytes::mib(3)), (0, 0), "extents have the rest");
        assert_eq!(rebuilt(&mut free, Bytes::mib(6)), (0, 0), "and that was that");
        assert_eq!(free.take(PIECE, false), None);
        free.stop();
        assert_eq!(rebuilt(&mut free, Bytes::mib(6)), (0, 0), "pieces cannot be had");
        assert_eq!((by_size(&free), free.facts(HostNode(0)).rebuilds), ([0, 6, 0], 0));
    }

    #[test]
    fn small_sizes_are_unpinned_for_a_piece() {
        let mut free = FreePinned::new(PIECE, 3, PinPace::FromStart);
        (0..3).for_each(|memory| free.add(ODD, used(memory)).unwrap());
        assert_eq!(
            (free.take(PIECE, false), free.next_missing(ROOM)),
            (None, None),
            "the maximum is reached"
        );
        assert_eq!(rebuilt(&mut free, ROOM), (1, 1));
        assert_eq!(by_size(&free), [4, 4, 0]);
    }

    #[test]
    fn the_default_keeps_nothing() {
        let mut free = FreePinned::default();
        assert_eq!((free.next_missing(ROOM), free.take_filled(ROOM)), (None, false));
        assert_eq!(free.add(PIECE, used(1)), Err(1));
    }
}
