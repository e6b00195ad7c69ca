//! No byte is lost: a process sees in a part what was last written there, wherever the part has been
//! meanwhile.

use broker_core::{PartRef, invariants::CONTENT};

use crate::{oracle::Oracle, world::Content};

impl Oracle {
    /// Checks what a process sees in a part that it maps. The first content of new memory, or of a dropped
    /// part, must stay from then on.
    pub(crate) fn check_read(&mut self, part: PartRef, is: Content) {
        if !self.facts.allocations.contains_key(&part.allocation) {
            return;
        }
        match self.facts.contents.get(&part).copied() {
            Some(expected) => self.expect(CONTENT, is == expected, || {
                format!("{part:?} contains {is:?}, and {expected:?} was written there")
            }),
            None => {
                self.check_first_content(part, is);
                self.facts.contents.insert(part, is);
            }
        }
    }

    pub(crate) fn record_write(&mut self, part: PartRef, what: Content) {
        if self.facts.allocations.contains_key(&part.allocation) {
            self.facts.contents.insert(part, what);
        }
    }
}
