//! Which slots of a session's word table are taken. A part takes the lowest free one, so that the table stays short.

use std::collections::BTreeSet;

use crate::event::Slot;

#[derive(Debug)]
pub(crate) struct Slots {
    max: u32,
    /// All from here on are free.
    next: u32,
    /// The free ones below.
    free: BTreeSet<u32>,
    /// Parts that are not the session's to map yet and will be: they find a slot.
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
            return Some(Slot(slot));
        }
        let slot = (self.next < self.max).then_some(Slot(self.next))?;
        self.next = self.next.saturating_add(1);
        Some(slot)
    }

    pub(crate) fn give_back(&mut self, slot: Slot) {
        self.free.insert(slot.0);
        while self.free.last().is_some_and(|last| last.saturating_add(1) == self.next) {
            self.free.pop_last();
            self.next = self.next.saturating_sub(1);
        }
    }

    pub(crate) fn is_taken(&self, slot: Slot) -> bool {
        slot.0 < self.next && !self.free.contains(&slot.0)
    }

    pub(crate) fn taken(&self) -> usize {
        usize::try_from(self.next).unwrap_or(usize::MAX).saturating_sub(self.free.len())
    }

    /// Whether so many more parts find a slot, beside those that were promised one.
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
    fn the_lowest_free_slot_is_taken_and_none_beyond_the_last() {
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
    fn what_was_promised_is_not_given_to_others() {
        let mut slots = Slots::new(4);
        slots.promise(3);
        assert!(slots.has_room_for(1) && !slots.has_room_for(2));
        slots.take();
        assert!(!slots.has_room_for(1));
        slots.keep_promise(3);
        assert!(slots.has_room_for(3) && !slots.has_room_for(4));
    }
}
