//! The parts that left a device last, with what a policy remembers of each.

use std::collections::BTreeMap;

use vramd_types::AllocationId;

use crate::event::PartRef;

#[derive(Debug)]
pub(super) struct Ghosts<T> {
    parts: BTreeMap<PartRef, (u64, T)>,
    /// The parts by the number of their departure.
    order: BTreeMap<u64, PartRef>,
    departures: u64,
}

impl<T> Default for Ghosts<T> {
    fn default() -> Self {
        Self { parts: BTreeMap::new(), order: BTreeMap::new(), departures: 0 }
    }
}

impl<T> Ghosts<T> {
    pub(super) fn insert(&mut self, part: PartRef, known: T) {
        self.departures = self.departures.saturating_add(1);
        if let Some((before, _)) = self.parts.insert(part, (self.departures, known)) {
            self.order.remove(&before);
        }
        self.order.insert(self.departures, part);
    }

    pub(super) fn remove(&mut self, part: PartRef) -> Option<T> {
        let (number, known) = self.parts.remove(&part)?;
        self.order.remove(&number);
        Some(known)
    }

    /// Forgets the part that left first, if it remembers more than `most`. Returns what was known of that part.
    pub(super) fn expire(&mut self, most: usize) -> Option<T> {
        if self.parts.len() <= most {
            return None;
        }
        let (_, part) = self.order.pop_first()?;
        self.parts.remove(&part).map(|(_, known)| known)
    }

    /// Forgets the parts of an allocation. Returns what was known of them.
    pub(super) fn forget(&mut self, allocation: AllocationId) -> Vec<T> {
        let parts: Vec<_> = self.parts.range(PartRef::all_of(allocation)).map(|(part, _)| *part).collect();
        parts.into_iter().filter_map(|part| self.remove(part)).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = PartRef> {
        self.parts.keys().copied()
    }
}
