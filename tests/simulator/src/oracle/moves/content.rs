//! No byte is lost: what a process sees in a part is what was last written there, wherever that has been meanwhile.

use broker_core::{PartRef, invariants::CONTENT};

use crate::oracle::Oracle;

impl Oracle {
    /// A process looks at a part that it maps. What is in memory that was asked for uninitialized, or made again for what was
    /// lost, is not known at first, but from then on it stays.
    pub fn check_read(&mut self, part: PartRef, is: u64) {
        let Some(allocation) = self.facts.allocations.get(&part.allocation) else { return };
        let was_lost = self.facts.drop_counts.contains_key(&part);
        let at_first = if allocation.uninitialized || was_lost { is } else { 0 };
        let should = *self.facts.contents.entry(part).or_insert(at_first);
        self.expect(CONTENT, is == should, || format!("{part:?} holds {is}, and {should} was written there"));
    }

    pub fn record_write(&mut self, part: PartRef, what: u64) {
        if self.facts.allocations.contains_key(&part.allocation) {
            self.facts.contents.insert(part, what);
        }
    }
}
