//! Facts about mappings and waiters, with the conditions under which they are facts.

use vramd_types::{AllocationId, PartIndex, SessionId};

use crate::{
    broker::Broker,
    command::{Notice, WaitEnd, WaiterKind},
    event::PartRef,
    follow_up::Fact,
    line::Waiter,
};

impl Broker {
    /// Reports that a session's mapping of the part has changed.
    pub(crate) fn note_mapping_changed(&mut self, id: SessionId, part: PartRef) {
        self.follow_ups.push(Fact::MappingChanged(id, part));
        self.note_in_place(part);
    }

    /// Reports a part to be unmapped in place, if no session is known to pin it. A harvest sees the unpin of a
    /// known one; to ask its word earlier would send its own pins the slow way.
    pub(crate) fn note_in_place(&mut self, part: PartRef) {
        if self.moves.in_place_to_unmap.contains(&part) && !self.usage.idle_on_host.is_pinned(part) {
            self.follow_ups.push(Fact::InPlaceUnpinned(part));
        }
    }

    /// The same for all that a session maps: it answers again.
    pub(crate) fn note_in_place_of(&mut self, session: SessionId) {
        let its =
            self.moves.in_place_to_unmap.iter().filter(|part| self.map_state(session, **part).is_some());
        let its: Vec<_> = its.copied().collect();
        its.into_iter().for_each(|part| self.note_in_place(part));
    }

    /// The same for all.
    pub(crate) fn note_all_in_place(&mut self) {
        let unpinned =
            self.moves.in_place_to_unmap.iter().filter(|part| !self.usage.idle_on_host.is_pinned(**part));
        unpinned.for_each(|part| self.follow_ups.push(Fact::InPlaceUnpinned(*part)));
    }

    /// Reports a fact that matters only to waiters.
    pub(crate) fn push_if_waiters(&mut self, fact: Fact) {
        if !self.line.is_empty() {
            self.follow_ups.push(fact);
        }
    }

    /// Reports a waiter that enters or is about to leave the line. Within the last scan it changes what room is
    /// made for.
    pub(crate) fn note_line_changed(&mut self, waiter: Waiter) {
        if self.line.was_scanned(waiter) {
            self.follow_ups.push(Fact::ScannedWaiterChanged);
        } else if self.line.contains(waiter) {
            self.follow_ups.push(Fact::WaiterEntered);
        }
    }

    /// Removes a waiter from the line, if it is there, and notes how its wait ended.
    pub(crate) fn leave_line(&mut self, waiter: Waiter, end: WaitEnd) {
        if let Some(entry) = self.line.remove(waiter) {
            let what = match waiter {
                Waiter::Part(_) => WaiterKind::Part,
                Waiter::Batch(_) => WaiterKind::Batch,
            };
            self.push_notice(Notice::WaitEnded { waiter: what, since: entry.since, end });
        }
    }

    /// Reports that a session answers again, or no longer, to all revocations that wait for it.
    pub(crate) fn note_revocations_of(&mut self, id: SessionId) {
        let of_session = self.mapping.revocations.keys().filter(|part| self.map_state(id, **part).is_some());
        let parts: Vec<_> = of_session.copied().collect();
        parts.into_iter().for_each(|part| self.follow_ups.push(Fact::RevocationEased(part)));
    }

    /// Stops waiting for the part on behalf of a session.
    pub(crate) fn forget_attach_waiter(&mut self, session: SessionId, part: PartRef) {
        if let Some(attach_waiters) = self.moves.attach_waiters.get_mut(&part) {
            attach_waiters.remove(&session);
            if attach_waiters.is_empty() {
                self.moves.attach_waiters.remove(&part);
            }
        }
    }

    /// Drops the attach waiters of a freed allocation.
    pub(crate) fn forget_attach_waiters(&mut self, id: AllocationId) {
        let part = |index| PartRef { allocation: id, part: PartIndex(index) };
        let attach_waiters: Vec<_> =
            self.moves.attach_waiters.range(part(0)..=part(u32::MAX)).map(|(part, _)| *part).collect();
        for part in attach_waiters {
            self.moves.attach_waiters.remove(&part);
            self.follow_ups.push(Fact::WaiterUnwanted(part));
        }
    }

    /// Ends the holds of a freed allocation.
    pub(crate) fn forget_operator_holds(&mut self, id: AllocationId) {
        let part = |index| PartRef { allocation: id, part: PartIndex(index) };
        let held: Vec<_> = self.moves.operator_holds.range(part(0)..=part(u32::MAX)).copied().collect();
        for part in held {
            self.moves.operator_holds.remove(&part);
        }
    }
}
