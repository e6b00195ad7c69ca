//! Facts about mappings, with the conditions under which they are facts.

use vramd_types::SessionId;

use crate::{broker::Broker, event::PartRef, follow_up::Fact};

impl Broker {
    /// Reports that a session's mapping of the part has changed.
    pub(crate) fn note_mapping_changed(&mut self, id: SessionId, part: PartRef) {
        self.follow_ups.push(Fact::MappingChanged(id, part));
        self.note_in_place(part);
    }

    /// Reports a part to be unmapped in place, if no session is known to pin it. A harvest sees the unpin of a
    /// known one; to ask its word earlier would send its own pins the slow way.
    pub(crate) fn note_in_place(&mut self, part: PartRef) {
        if self.mapping.in_place_to_unmap.contains(&part) && !self.usage.idle_on_host.is_pinned(part) {
            self.follow_ups.push(Fact::InPlaceUnpinned(part));
        }
    }

    /// The same for all that a session maps: it answers again.
    pub(crate) fn note_in_place_of(&mut self, session: SessionId) {
        let its =
            self.mapping.in_place_to_unmap.iter().filter(|part| self.map_state(session, **part).is_some());
        let its: Vec<_> = its.copied().collect();
        its.into_iter().for_each(|part| self.note_in_place(part));
    }

    /// The same for all.
    pub(crate) fn note_all_in_place(&mut self) {
        let unpinned =
            self.mapping.in_place_to_unmap.iter().filter(|part| !self.usage.idle_on_host.is_pinned(**part));
        unpinned.for_each(|part| self.follow_ups.push(Fact::InPlaceUnpinned(*part)));
    }

    /// Reports a fact that matters only to waiters.
    pub(crate) fn push_if_waiters(&mut self, fact: Fact) {
        if !self.line.is_empty() {
            self.follow_ups.push(fact);
        }
    }

    /// Reports that a session answers again, or no longer, to all revocations that wait for it.
    pub(crate) fn note_revocations_of(&mut self, id: SessionId) {
        let of_session = self.mapping.revocations.keys().filter(|part| self.map_state(id, **part).is_some());
        let parts: Vec<_> = of_session.copied().collect();
        parts.into_iter().for_each(|part| self.follow_ups.push(Fact::RevocationEased(part)));
    }
}
