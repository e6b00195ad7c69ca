//! Memory of the host that no extent has, kept for extents to come.
//!
//! Pinning takes 0.2 s a GiB. So memory is pinned ahead of need, in pieces of the size that most extents have, and what
//! is released is kept. This is the bookkeeping of one node, the same for every driver: how memory is pinned, given up
//! or zeroed it does not know, nor what extents have. Its caller says how much of the node's memory they leave.
//!
//! What is kept was given to nobody, so no other process can see what is written there later. It may hold the bytes
//! of any tenant.

use std::collections::{BTreeMap, VecDeque};

use vramd_types::Bytes;

/// By default it keeps nothing.
#[derive(Debug)]
pub(crate) struct Pool<M> {
    /// What is pinned ahead of need; zero once nothing more is.
    piece: Bytes,
    pieces_max: usize,
    /// By size. What is known to be zero is at the front.
    kept: BTreeMap<Bytes, VecDeque<Kept<M>>>,
    bytes: Bytes,
    pieces: usize,
    is_filling: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kept<M> {
    pub(crate) memory: M,
    pub(crate) is_zero: bool,
}

impl<M> Default for Pool<M> {
    fn default() -> Self {
        Self { is_filling: false, ..Self::new(Bytes::ZERO, 0) }
    }
}

impl<M> Pool<M> {
    pub(crate) fn new(piece: Bytes, pieces_max: usize) -> Self {
        Self { piece, pieces_max, kept: BTreeMap::new(), bytes: Bytes::ZERO, pieces: 0, is_filling: true }
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// For an extent of exactly that size. What is zero is left to those who need it, if there is other memory.
    pub(crate) fn take(&mut self, size: Bytes, zeroed: bool) -> Option<Kept<M>> {
        let of_size = self.kept.get_mut(&size)?;
        let taken = if zeroed { of_size.pop_front() } else { of_size.pop_back() };
        self.without(size, taken)
    }

    /// Gives it back where enough pieces are kept.
    pub(crate) fn keep(&mut self, size: Bytes, kept: Kept<M>) -> Result<(), M> {
        if self.pieces >= self.pieces_max {
            return Err(kept.memory);
        }
        self.pieces += 1;
        self.bytes = self.bytes.saturating_add(size);
        let of_size = self.kept.entry(size).or_default();
        if kept.is_zero {
            of_size.push_front(kept);
        } else {
            of_size.push_back(kept);
        }
        Ok(())
    }

    /// What must go so that no more than so much is kept: pieces of unusual sizes first.
    pub(crate) fn give_up(&mut self, room: Bytes) -> Vec<M> {
        let mut gone = Vec::new();
        while self.bytes > room {
            let unusual = self.kept.keys().find(|size| **size != self.piece).copied();
            // What was written before what is zero.
            match self.take(unusual.unwrap_or(self.piece), false) {
                Some(kept) => gone.push(kept.memory),
                None => break,
            }
        }
        gone
    }

    /// What is to be pinned next, where extents leave so much room.
    pub(crate) fn missing(&self, room: Bytes) -> Option<Bytes> {
        let fits = self.bytes.saturating_add(self.piece) <= room && self.pieces < self.pieces_max;
        (fits && !self.piece.is_zero()).then_some(self.piece)
    }

    /// Nothing more is pinned ahead of need. What is released is kept all the same.
    pub(crate) fn stop(&mut self) {
        self.piece = Bytes::ZERO;
    }

    /// Once, when nothing more is to be pinned.
    pub(crate) fn is_filled(&mut self, room: Bytes) -> bool {
        let is_filled = self.is_filling && self.missing(room).is_none();
        self.is_filling &= !is_filled;
        is_filled
    }

    fn without(&mut self, size: Bytes, taken: Option<Kept<M>>) -> Option<Kept<M>> {
        if self.kept.get(&size).is_some_and(VecDeque::is_empty) {
            self.kept.remove(&size);
        }
        if taken.is_some() {
            self.pieces -= 1;
            self.bytes = self.bytes.saturating_sub(size);
        }
        taken
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

    #[test]
    fn by_default_nothing_is_kept() {
        let mut pool = Pool::default();
        assert_eq!((pool.missing(ROOM), pool.is_filled(ROOM)), (None, false));
        assert_eq!(pool.keep(PIECE, used(1)), Err(1));
    }
}
