//! No byte is lost: a process sees in a part what was last written there, wherever the part has been
//! meanwhile.

use broker_core::{PartRef, invariants::CONTENT};

use crate::oracle::Oracle;

impl Oracle {
    /// Checks what a process sees in a part that it maps. The first content of uninitialized memory, or of a
    /// dropped part, is unknown; from then on it must stay.
    pub fn check_read(&mut self, part: PartRef, is: u64) {
        let Some(allocation) = self.facts.allocations.get(&part.allocation) else { return };
        let was_lost = self.facts.drop_counts.contains_key(&part);
        let at_first = if allocation.uninitialized || was_lost { is } else { 0 };
        let expected = *self.facts.contents.entry(part).or_insert(at_first);
        self.expect(CONTENT, is == expected, || {
            format!("{part:?} contains {is}, and {expected} was written there")
        });
    }

    pub fn record_write(&mut self, part: PartRef, what: u64) {
        if self.facts.allocations.contains_key(&part.allocation) {
            self.facts.contents.insert(part, what);
        }
    }
}
