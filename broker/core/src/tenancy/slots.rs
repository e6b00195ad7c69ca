//! The slots of a session's word table. A part takes the first free slot, so that the table stays short.
//!
//! Successive slots are not neighbours: four slots share a cache line, and several threads are likely to pin
//! parts that arrived together. So within each [`BLOCK`] of slots, every line gets one slot before any line
//! is filled.

use std::collections::BTreeSet;

use crate::event::Slot;

/// Four pages of a table.
const BLOCK: u32 = 1024;
const SLOTS_PER_LINE: u32 = 4;
const LINES: u32 = BLOCK / SLOTS_PER_LINE;

#[derive(Debug)]
pub(crate) struct Slots {
    max: u32,
    /// All slots from here on are free, in the order in which they are taken.
    next: u32,
    /// Free slots before `next`.
    free: BTreeSet<u32>,
    /// Slots promised to parts that the session will map later.
    promised: usize,
}

impl Slots {
    pub(crate) const fn new(max: u32) -> Self {
        Self { max, next: 0, free: BTreeSet::new(), promised: 0 }
    }

    pub(crate) const fn max(&self) -> u32 {
        self.max
    }

    pub(crate) fn take(&mut self) -> Option<Slot> {
        if let Some(slot) = self.free.pop_first() {
            return Some(self.at(slot));
        }
        let slot = (self.next < self.max).then_some(self.next)?;
        self.next = self.next.saturating_add(1);
        Some(self.at(slot))
    }

    pub(crate) fn give_back(&mut self, slot: Slot) {
        self.free.insert(self.order_of(slot));
        while self.free.last().is_some_and(|last| last.saturating_add(1) == self.next) {
            self.free.pop_last();
            self.next = self.next.saturating_sub(1);
        }
    }

    pub(crate) fn is_taken(&self, slot: Slot) -> bool {
        let order = self.order_of(slot);
        order < self.next && !self.free.contains(&order)
    }

    /// The slot at that place of the order. Slots beyond the last whole block keep their own number.
    const fn at(&self, order: u32) -> Slot {
        let within = order % BLOCK;
        if order - within >= self.whole_blocks() {
            return Slot(order);
        }
        Slot(order - within + within % LINES * SLOTS_PER_LINE + within / LINES)
    }

    const fn order_of(&self, Slot(slot): Slot) -> u32 {
        let within = slot % BLOCK;
        if slot - within >= self.whole_blocks() {
            return slot;
        }
        slot - within + within % SLOTS_PER_LINE * LINES + within / SLOTS_PER_LINE
    }

    const fn whole_blocks(&self) -> u32 {
        self.max - self.max % BLOCK
    }

    pub(crate) fn taken(&self) -> usize {
        usize::try_from(self.next).unwrap_or(usize::MAX).saturating_sub(self.free.len())
    }

    /// Whether this number of further parts finds slots beside the promised ones.
    pub(crate) fn has_room_for(&self, parts: usize) -> bool {
        let taken = self.taken().saturating_add(self.promised).saturating_add(parts);
        taken <= usize::try_from(self.max).unwrap_or(usize::MAX)
    }

    pub(crate) const fn promise(&mut self, parts: usize) {
        self.promised = self.promised.saturating_add(parts);
    }

    pub(crate) const fn keep_promise(&mut self, parts: usize) {
        self.promised = self.promised.saturating_sub(parts);
    }

    pub(crate) const fn promised(&self) -> usize {
        self.promised
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_take_the_lowest_free_one_up_to_the_last() {
        let mut slots = Slots::new(4);
        let taken: Vec<_> = std::iter::from_fn(|| slots.take()).map(|slot| slot.0).collect();
        assert_eq!((taken, slots.taken()), (vec![0, 1, 2, 3], 4));
        for slot in [2, 1] {
            slots.give_back(Slot(slot));
        }
        assert!(slots.is_taken(Slot(3)) && !slots.is_taken(Slot(1)));
        assert_eq!((slots.take(), slots.taken()), (Some(Slot(1)), 3));
        for slot in [3, 1, 0] {
            slots.give_back(Slot(slot));
        }
        assert_eq!((slots.taken(), slots.next, slots.free.len()), (0, 0, 0), "nothing is left behind");
    }

    #[test]
    fn slots_that_are_taken_together_share_no_cache_line() {
        let mut slots = Slots::new(2 * BLOCK + 3);
        let taken: Vec<_> = std::iter::from_fn(|| slots.take()).collect();
        let lines: BTreeSet<_> = taken.iter().take(256).map(|slot| slot.0 / SLOTS_PER_LINE).collect();
        assert_eq!(lines.len(), 256);
        assert_eq!(taken.iter().map(|slot| slot.0).collect::<BTreeSet<_>>(), (0..2 * BLOCK + 3).collect());
        assert!(
            (0..).zip(&taken).all(|(order, slot)| slots.order_of(*slot) == order && slots.is_taken(*slot))
        );
    }

    #[test]
    fn promised_slots_are_kept_for_their_parts() {
        let mut slots = Slots::new(4);
        slots.promise(3);
        assert!(slots.has_room_for(1) && !slots.has_room_for(2));
        slots.take();
        assert!(!slots.has_room_for(1));
        slots.keep_promise(3);
        assert!(slots.has_room_for(3) && !slots.has_room_for(4));
    }
}
