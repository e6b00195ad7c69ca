//! Harvest: which parts sessions have used and which they pin, read from their pin words.
//!
//! The order in which parts leave a device depends on it (`eviction/`). The daemon asks the words of a pinned
//! part only after a harvest has seen it unpinned.

use crate::{broker::Broker, event::PartUse, follow_up::Fact};

impl Broker {
    pub(crate) fn on_touched(&mut self, touched: &[PartUse]) {
        let mut unpinned = false;
        for PartUse { session, part, pinned, written } in touched {
            // A session that was told to unmap the part does not use it.
            if !self.map_state(*session, *part).is_some_and(|state| state.is_mapper()) {
                continue;
            }
            // A written part is dirty, and may be copied again. Only the end of its last mapping shows that it
            // is clean: this reading may be older than the copy, and then costs one copy more.
            if *written {
                self.mark_dirty(*part);
            }
            planted!(self, UnwrittenTakenForClean => if !written { self.take_for_clean(*part) });
            self.record_advised_use(*part);
            // The part is in the list of one tier at most.
            let mut lets_go = false;
            for among in [&mut self.usage.residents, &mut self.usage.idle_on_host] {
                among.record_use(*part, self.shell.now);
                match pinned {
                    true => among.record_pin(*part, *session),
                    false => lets_go |= among.record_unpin(*part, *session),
                }
            }
            self.record_prefetched_use(*part);
            // The end of a pin that was seen is no other use.
            match lets_go {
                true => self.note_in_place(*part),
                false => self.record_placed_use(*part),
            }
            unpinned |= lets_go;
        }
        planted!(self, UnpinIgnored => return);
        if unpinned {
            self.follow_ups.push(Fact::VictimsChanged);
        }
    }
}
