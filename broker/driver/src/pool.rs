//! Memory of the host that no extent has, kept for extents to come.
//!
//! Pinning takes 0.2 s a GiB. So memory is pinned ahead of need, in pieces of the size that most extents have, and what
//! is released is kept. This is the bookkeeping of one node, the same for every driver: how memory is pinned, given up
//! or zeroed it does not know, nor what extents have. Its caller says how much of the node's memory they leave.
//!
//! What is kept serves extents of its own size alone. So where much of another size was released, there may be no piece
//! left, and each extent of the usual size would have some of it given up and a piece pinned while somebody waits. Then
//! the pool is rebuilt: in the background other sizes go, those first that nobody has had or given back for longest, and
//! pieces are pinned in their place. That begins when somebody wanted a piece and none was there, so a node that needs no
//! pieces keeps what it has; and it ends when half of what is kept are pieces, so other sizes that come and go are not
//! all lost by it.
//!
//! What is kept was given to nobody, so no other process can see what is written there later. It may hold the bytes
//! of any tenant.

use std::collections::{BTreeMap, VecDeque};

use vramd_types::{Bytes, HostNode};

use crate::KeptFacts;

/// By default it keeps nothing.
#[derive(Debug)]
pub(crate) struct Pool<M> {
    /// What is pinned ahead of need; zero where nothing is.
    piece: Bytes,
    pieces_max: usize,
    kept: BTreeMap<Bytes, OfSize<M>>,
    bytes: Bytes,
    /// Of these, those in pieces.
    usual: Bytes,
    pieces: usize,
    is_filling: bool,
    is_stopped: bool,
    rebuilding: Rebuilding,
    /// How often that began.
    rebuilds: u64,
    /// Counts what was taken and kept.
    turn: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rebuilding {
    Not,
    /// Somebody wanted a piece, and there was none.
    Wanted,
    Begun,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kept<M> {
    pub(crate) memory: M,
    pub(crate) is_zero: bool,
}

/// What the pool would have done while nobody waits: a piece of it, so that who comes meanwhile waits for no more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step<M> {
    /// Of that size, to be kept.
    Pin(Bytes),
    GiveUp(M),
}

#[derive(Debug)]
struct OfSize<M> {
    /// What is known to be zero is at the front.
    kept: VecDeque<Kept<M>>,
    /// When some of it was taken or kept last.
    used: u64,
}

impl<M> Default for Pool<M> {
    fn default() -> Self {
        Self { is_filling: false, ..Self::new(Bytes::ZERO, 0) }
    }
}

impl<M> Pool<M> {
    pub(crate) fn new(piece: Bytes, pieces_max: usize) -> Self {
        Self {
            piece,
            pieces_max,
            kept: BTreeMap::new(),
            bytes: Bytes::ZERO,
            usual: Bytes::ZERO,
            pieces: 0,
            is_filling: true,
            is_stopped: false,
            rebuilding: Rebuilding::Not,
            rebuilds: 0,
            turn: 0,
        }
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// What is kept by its size beside the piece's.
    pub(crate) fn facts(&self, node: HostNode) -> KeptFacts {
        let (usual, rebuilds) = (self.usual, self.rebuilds);
        let smaller = self.kept.range(..self.piece);
        let smaller = smaller.map(|(size, of)| Bytes::new(size.get().saturating_mul(of.kept.len() as u64)));
        let smaller = smaller.fold(Bytes::ZERO, Bytes::saturating_add);
        let larger = self.others().saturating_sub(smaller);
        KeptFacts { node, usual, smaller, larger, rebuilds }
    }

    /// For an extent of exactly that size. What is zero is left to those who need it, if there is other memory.
    pub(crate) fn take(&mut self, size: Bytes, zeroed: bool) -> Option<Kept<M>> {
        self.turn += 1;
        if let Some(of_size) = self.kept.get_mut(&size) {
            of_size.used = self.turn;
        } else if size == self.piece && !self.bytes.is_zero() && self.rebuilding == Rebuilding::Not {
            self.rebuilding = Rebuilding::Wanted;
        }
        self.remove(size, zeroed)
    }

    /// Gives it back where enough pieces are kept.
    pub(crate) fn keep(&mut self, size: Bytes, kept: Kept<M>) -> Result<(), M> {
        if self.pieces >= self.pieces_max {
            return Err(kept.memory);
        }
        self.pieces += 1;
        self.bytes = self.bytes.saturating_add(size);
        if size == self.piece {
            self.usual = self.usual.saturating_add(size);
        }
        self.turn += 1;
        let of_size = self.kept.entry(size).or_insert_with(|| OfSize { kept: VecDeque::new(), used: 0 });
        of_size.used = self.turn;
        if kept.is_zero {
            of_size.kept.push_front(kept);
        } else {
            of_size.kept.push_back(kept);
        }
        Ok(())
    }

    /// What must go so that no more than so much is kept: pieces of unusual sizes first.
    pub(crate) fn give_up(&mut self, room: Bytes) -> Vec<M> {
        let mut gone = Vec::new();
        while self.bytes > room {
            // What was written before what is zero.
            match self.remove(self.unusual().unwrap_or(self.piece), false) {
                Some(kept) => gone.push(kept.memory),
                None => break,
            }
        }
        gone
    }

    /// What is to be pinned next, where extents leave so much room.
    pub(crate) fn missing(&self, room: Bytes) -> Option<Bytes> {
        let fits = self.bytes.saturating_add(self.piece) <= room && self.pieces < self.pieces_max;
        (fits && self.pins()).then_some(self.piece)
    }

    /// What is to be done next, where extents leave so much room, if nobody wants anything.
    pub(crate) fn step(&mut self, room: Bytes) -> Option<Step<M>> {
        match self.missing(room) {
            Some(size) => Some(Step::Pin(size)),
            None => self.make_way(room).map(Step::GiveUp),
        }
    }

    /// Nothing more is pinned ahead of need. What is released is kept all the same.
    pub(crate) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Once, when nothing more is to be pinned.
    pub(crate) fn is_filled(&mut self, room: Bytes) -> bool {
        let is_filled = self.is_filling && self.missing(room).is_none();
        self.is_filling &= !is_filled;
        is_filled
    }

    /// What goes next so that a piece can be pinned in its place, while the pool is rebuilt.
    fn make_way(&mut self, room: Bytes) -> Option<M> {
        let fits = self.usual.saturating_add(self.piece) <= room;
        if !self.pins() || !fits || self.others() <= self.usual {
            self.rebuilding = Rebuilding::Not;
        }
        if self.rebuilding == Rebuilding::Wanted {
            self.rebuilding = Rebuilding::Begun;
            self.rebuilds += 1;
        }
        let unusual = self.unusual().filter(|_| self.rebuilding == Rebuilding::Begun)?;
        self.remove(unusual, false).map(|kept| kept.memory)
    }

    /// What is kept in other sizes.
    fn others(&self) -> Bytes {
        self.bytes.saturating_sub(self.usual)
    }

    fn pins(&self) -> bool {
        !self.is_stopped && !self.piece.is_zero()
    }

    /// The size other than the piece's that was used least lately.
    fn unusual(&self) -> Option<Bytes> {
        let unusual = self.kept.iter().filter(|(size, _)| **size != self.piece);
        unusual.min_by_key(|(_, of)| of.used).map(|(size, _)| *size)
    }

    fn remove(&mut self, size: Bytes, zeroed: bool) -> Option<Kept<M>> {
        let of_size = self.kept.get_mut(&size)?;
        let taken = if zeroed { of_size.kept.pop_front() } else { of_size.kept.pop_back() }?;
        if of_size.kept.is_empty() {
            self.kept.remove(&size);
        }
        self.pieces -= 1;
        self.bytes = self.bytes.saturating_sub(size);
        if size == self.piece {
            self.usual = self.usual.saturating_sub(size);
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

    fn fresh(memory: u32) -> Kept<u32> {
        Kept { memory, is_zero: true }
    }

    fn used(memory: u32) -> Kept<u32> {
        Kept { memory, is_zero: false }
    }

    /// As a driver does.
    fn filled(mut pool: Pool<u32>, room: Bytes) -> Pool<u32> {
        let mut next = 0;
        while let Some(size) = pool.missing(room) {
            assert!(!pool.is_filled(room));
            assert_eq!(pool.keep(size, fresh(next)), Ok(()));
            next += 1;
        }
        assert!(pool.is_filled(room));
        assert!(!pool.is_filled(room), "that is said once");
        pool
    }

    #[test]
    fn it_is_filled_with_whole_pieces_and_no_more_than_there_is_room_for() {
        let pool = filled(Pool::new(PIECE, 100), ROOM);
        assert_eq!(pool.bytes(), Bytes::mib(16));
        assert_eq!(filled(Pool::new(PIECE, 3), ROOM).bytes(), Bytes::mib(12), "nor more pieces than may be");
        assert_eq!(filled(Pool::new(PIECE, 100), Bytes::mib(3)).bytes(), Bytes::ZERO);
    }

    #[test]
    fn what_is_taken_has_the_size_and_is_zero_if_it_can_be() {
        let mut pool = Pool::new(PIECE, 100);
        for kept in [used(1), fresh(2), used(3), fresh(4)] {
            pool.keep(PIECE, kept).unwrap();
        }
        assert_eq!(pool.take(ODD, true), None);
        assert!(!pool.take(PIECE, false).unwrap().is_zero);
        assert!(pool.take(PIECE, true).unwrap().is_zero);
        assert!(pool.take(PIECE, true).unwrap().is_zero);
        assert!(!pool.take(PIECE, true).unwrap().is_zero, "the caller sees that it is not");
        assert_eq!(pool.take(PIECE, true), None);
        assert_eq!(pool.bytes(), Bytes::ZERO);
    }

    #[test]
    fn unusual_sizes_are_given_up_first_and_no_more_than_must_be() {
        let mut pool = filled(Pool::new(PIECE, 100), Bytes::mib(8));
        pool.keep(ODD, used(10)).unwrap();
        pool.keep(Bytes::mib(6), used(11)).unwrap();
        assert_eq!(pool.give_up(Bytes::mib(16)), Vec::<u32>::new());
        assert_eq!(pool.give_up(Bytes::mib(13)), [10, 11]);
        assert_eq!(pool.give_up(Bytes::mib(7)).len(), 1);
        assert_eq!(pool.bytes(), PIECE);
        assert_eq!(pool.give_up(Bytes::ZERO).len(), 1);
        assert_eq!((pool.bytes(), pool.missing(PIECE)), (Bytes::ZERO, Some(PIECE)), "it fills again");
    }

    #[test]
    fn one_that_has_stopped_goes_on_keeping_what_it_is_given() {
        let mut pool = Pool::new(PIECE, 2);
        pool.stop();
        assert!(pool.is_filled(ROOM));
        assert_eq!(pool.missing(ROOM), None);
        pool.keep(PIECE, used(1)).unwrap();
        pool.keep(ODD, used(2)).unwrap();
        assert_eq!(pool.keep(ODD, used(3)), Err(3), "as long as there are not too many");
        assert_eq!(pool.give_up(Bytes::ZERO).len(), 2);
    }

    /// As a driver does: how many pieces were pinned, and how many others given up, a step at a time.
    fn rebuilt(pool: &mut Pool<u32>, room: Bytes) -> (usize, usize) {
        let (mut pinned, mut gone) = (0, 0);
        while let Some(step) = pool.step(room) {
            match step {
                Step::Pin(size) => {
                    assert_eq!(size, PIECE, "one at a time");
                    pool.keep(size, fresh(0)).unwrap();
                    pinned += 1;
                }
                Step::GiveUp(_) => gone += 1,
            }
            assert!(pool.bytes() <= room);
        }
        (pinned, gone)
    }

    /// Full of what is half a piece, and of nothing else.
    fn in_halves(count: u32) -> Pool<u32> {
        let mut pool = Pool::new(PIECE, 100);
        (0..count).for_each(|memory| pool.keep(ODD, used(memory)).unwrap());
        pool
    }

    fn by_size(pool: &Pool<u32>) -> [u64; 3] {
        let KeptFacts { usual, smaller, larger, .. } = pool.facts(HostNode(0));
        assert_eq!(Bytes::checked_sum([usual, smaller, larger]), Some(pool.bytes()));
        [usual, smaller, larger].map(|bytes| bytes.get() >> 20)
    }

    #[test]
    fn who_lacks_a_piece_has_it_rebuilt_until_half_of_it_are_pieces() {
        let (mut pool, room) = (in_halves(16), Bytes::mib(32));
        assert_eq!(rebuilt(&mut pool, room), (0, 0), "nobody has wanted a piece");
        assert_eq!(pool.take(Bytes::mib(6), false), None);
        assert_eq!(rebuilt(&mut pool, room), (0, 0), "nor has who wants another size");
        assert_eq!(pool.take(PIECE, false), None);
        assert_eq!(rebuilt(&mut pool, room), (4, 8));
        assert_eq!((by_size(&pool), pool.facts(HostNode(0)).rebuilds), ([16, 16, 0], 1));
        for _ in 0..4 {
            assert!(pool.take(PIECE, true).unwrap().is_zero);
            assert_eq!(rebuilt(&mut pool, Bytes::mib(16)), (0, 0), "as long as there are pieces");
        }
        assert_eq!(pool.take(PIECE, true), None);
        assert_eq!(rebuilt(&mut pool, Bytes::mib(16)), (2, 4), "and again when there is none");
        assert_eq!((by_size(&pool), pool.facts(HostNode(0)).rebuilds), ([8, 8, 0], 2));
    }

    #[test]
    fn each_step_of_it_is_one_piece_or_one_other() {
        let (mut pool, room) = (in_halves(4), Bytes::mib(8));
        pool.keep(Bytes::mib(6), used(9)).unwrap();
        assert_eq!((pool.take(PIECE, false), by_size(&pool)), (None, [0, 8, 6]));
        let room = room.saturating_add(Bytes::mib(6));
        for memory in [3, 2] {
            assert_eq!(pool.step(room), Some(Step::GiveUp(memory)), "what was used least lately");
        }
        assert_eq!(pool.step(room), Some(Step::Pin(PIECE)), "as soon as there is room for it");
        assert_eq!(pool.keep(PIECE, fresh(10)), Ok(()));
        assert!(pool.take(ODD, false).is_some(), "who comes meanwhile is served");
        assert_eq!(pool.keep(ODD, used(3)), Ok(()));
        assert_eq!(pool.step(room), Some(Step::GiveUp(9)), "now that is");
        assert_eq!(pool.step(room), Some(Step::Pin(PIECE)));
        assert_eq!(pool.keep(PIECE, fresh(11)), Ok(()));
        assert_eq!((pool.step(room), by_size(&pool)), (None, [8, 4, 0]));
    }

    #[test]
    fn what_would_make_no_room_for_a_piece_stays() {
        let mut pool = in_halves(3);
        assert_eq!(pool.take(PIECE, false), None);
        assert_eq!(rebuilt(&mut pool, Bytes::mib(3)), (0, 0), "extents have the rest");
        assert_eq!(rebuilt(&mut pool, Bytes::mib(6)), (0, 0), "and that was that");
        assert_eq!(pool.take(PIECE, false), None);
        pool.stop();
        assert_eq!(rebuilt(&mut pool, Bytes::mib(6)), (0, 0), "pieces cannot be had");
        assert_eq!((by_size(&pool), pool.facts(HostNode(0)).rebuilds), ([0, 6, 0], 0));
    }

    #[test]
    fn many_small_ones_go_for_a_piece_too() {
        let mut pool = Pool::new(PIECE, 3);
        (0..3).for_each(|memory| pool.keep(ODD, used(memory)).unwrap());
        assert_eq!((pool.take(PIECE, false), pool.missing(ROOM)), (None, None), "no more may be kept");
        assert_eq!(rebuilt(&mut pool, ROOM), (1, 1));
        assert_eq!(by_size(&pool), [4, 4, 0]);
    }

    #[test]
    fn by_default_nothing_is_kept() {
        let mut pool = Pool::default();
        assert_eq!((pool.missing(ROOM), pool.is_filled(ROOM)), (None, false));
        assert_eq!(pool.keep(PIECE, used(1)), Err(1));
    }
}
