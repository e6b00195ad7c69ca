//! What sessions use: harvested from their words, for whoever chooses what leaves a device.

use vramd_types::SessionId;

use crate::{
    broker::Broker,
    event::{PartRef, PartUse},
    residency::MapState,
};

impl Broker {
    pub(crate) fn on_touched(&mut self, touched: &[PartUse]) {
        let mut unpinned = false;
        for PartUse { session, part, pinned, written } in touched {
            // What the session has been told to unmap meanwhile is no use of it any more.
            if !self.map_state(*session, *part).is_some_and(|state| state.is_mapper()) {
                continue;
            }
            // What was copied below is old, and may be copied ahead anew. Only the end of its last mapping tells that it is not: a
            // look may be older than the copy, and then costs one copy more.
            match written {
                true => self.mark_dirty(*part),
                false if planted!(self, UnwrittenTakenForClean) => self.backings.set_clean(part, true),
                false => {}
            }
            // It is among those of one tier, if of any.
            let mut lets_go = false;
            for among in [&mut self.residents, &mut self.idle_on_host] {
                among.record_use(*part, self.now);
                match pinned {
                    true => among.record_pin(*part, *session),
                    false => lets_go |= among.record_unpin(*part, *session),
                }
            }
            if lets_go {
                self.queue_in_place_unmap(*part);
            }
            unpinned |= lets_go;
        }
        if unpinned && !planted!(self, TouchIgnored) {
            self.note_victims_changed();
        }
    }

    /// These were found to pin the part: they are not asked again until they are seen to unpin it. Who maps it no more by now will
    /// not be seen to. Whether there is any other.
    pub(crate) fn record_pinned(&mut self, part: PartRef, by: &[SessionId]) -> bool {
        let maps = |id: &&SessionId| self.map_state(**id, part).is_some_and(MapState::is_mapper);
        let there: Vec<_> = by.iter().filter(maps).copied().collect();
        for session in there.iter().copied() {
            self.residents.record_pin(part, session);
            self.idle_on_host.record_pin(part, session);
        }
        !there.is_empty()
    }

    /// The session maps the part no more, so it pins it no more.
    pub(crate) fn record_unpinned(&mut self, part: PartRef, session: SessionId) {
        self.residents.record_unpin(part, session);
        self.idle_on_host.record_unpin(part, session);
    }

    /// Whether anybody waits for others to let go of something.
    pub(crate) fn is_room_wanted(&self) -> bool {
        !self.line.is_empty() || !self.over_limit.is_empty()
    }
}
