//! Mappings that begin with an allocation, and that end for good with it, with a session or with its channel.
//!
//! A part that no session maps any longer can be released, or hashed for a seal.

use vramd_types::{AllocationId, SessionId};

use crate::{
    broker::Broker,
    command::RevokeReason,
    event::PartRef,
    follow_up::Fact,
    handler::mapping::frames::InitialMaps,
    invariants,
    residency::{AllocationState, MapEvent, MapState, MapStep},
};

impl Broker {
    /// Continues what waited for a session to unmap a part.
    pub(crate) fn continue_after_unmap(&mut self, id: SessionId, part: PartRef) {
        let Some(allocation) = self.allocations.get(part.allocation) else { return };
        let still = self.maps_any(id, part.allocation, allocation);
        match allocation.state {
            AllocationState::Freeing => {
                self.release_freed_part(part);
                if self.remove_if_gone(part.allocation) {
                    return;
                }
            }
            AllocationState::Unmapping if !still && allocation.owner == Some(id) => {
                self.digest_if_unmapped(part.allocation);
            }
            _ => {}
        }
        if !still {
            self.notify_watchers(part.allocation);
        }
    }

    /// Has the session unmap an allocation for good. Mappings that are queued or away are dropped.
    pub(crate) fn revoke_allocation(
        &mut self,
        id: SessionId,
        allocation_id: AllocationId,
        reason: RevokeReason,
    ) {
        let Some(allocation) = self.allocations.get(allocation_id) else { return };
        let held: Vec<_> = allocation
            .indices()
            .filter(|index| allocation.part(*index).is_some_and(|part| part.map_state(id).is_some()))
            .map(|part| PartRef { allocation: allocation_id, part })
            .collect();
        let (mut to_tell, mut gone) = (Vec::new(), Vec::new());
        for part in held {
            match self.advance_mapping(id, part, MapEvent::Revoke) {
                Ok(MapStep::SendRevoke) => to_tell.push(self.revoked_part(id, part)),
                Ok(MapStep::Gone) => gone.push(part),
                Ok(_) => {}
                Err(problem) => self.report_violation(invariants::TRANSITIONS, problem),
            }
        }
        self.send_revoke(id, to_tell, reason);
        self.expect_answer(id);
        for part in gone {
            self.continue_after_unmap(id, part);
        }
    }

    /// Queues the parts of an allocation that the session does not map yet. Parts under revocation follow when
    /// it ends, and the rest with a pin.
    pub(crate) fn queue_maps(&mut self, id: SessionId, allocation_id: AllocationId, initial: InitialMaps) {
        self.queue_and_fetch(id, allocation_id, initial);
        self.pump(id);
    }

    /// The same for all allocations of a batch, so that they share packets.
    pub(crate) fn queue_all_maps(&mut self, id: SessionId, allocations: &[AllocationId]) {
        for allocation in allocations.iter().copied() {
            self.queue_and_fetch(id, allocation, InitialMaps::All);
        }
        self.pump(id);
    }

    fn queue_and_fetch(&mut self, id: SessionId, allocation: AllocationId, initial: InitialMaps) {
        for part in self.queue_parts(id, allocation, initial) {
            self.add_attach_waiter(id, part);
            self.after_moves();
        }
    }

    /// Sends nothing further to a session, and drops its mappings that are away. Descriptors in flight stay in
    /// the budget and in the mapper sets until the session is gone: any process that has the socket can still
    /// receive them.
    pub(crate) fn drop_unsent(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.map_deadline = None;
        let mut ended = session.queue.take(|part| self.allocations.is_queued(id, part));
        ended.extend(self.away_of(id));
        for part in ended {
            match self.advance_mapping(id, part, MapEvent::Revoke) {
                Ok(_) => self.continue_after_unmap(id, part),
                Err(problem) => self.report_violation(invariants::TRANSITIONS, problem),
            }
        }
    }

    /// Parts that are away for the session.
    pub(crate) fn away_of(&self, id: SessionId) -> Vec<PartRef> {
        let Some(session) = self.sessions.get(id) else { return Vec::new() };
        let mut away = Vec::new();
        for allocation in session.maps.keys().copied() {
            let Some(entry) = self.allocations.get(allocation) else { continue };
            let is_away =
                |index: &_| entry.part(*index).and_then(|part| part.map_state(id)) == Some(MapState::Away);
            away.extend(entry.indices().filter(is_away).map(|part| PartRef { allocation, part }));
        }
        away
    }

    /// Drops the mappings of a freed allocation that are queued or away: no session maps it anew.
    pub(crate) fn forget_unmapped(&mut self, id: AllocationId) {
        let Some(allocation) = self.allocations.get(id).filter(|entry| entry.mapping_count > 0) else {
            return;
        };
        let mut unmapped = Vec::new();
        for index in allocation.indices() {
            let mappings = allocation.part(index).map(|part| &*part.mappings).unwrap_or_default();
            let over = |state: MapState| matches!(state, MapState::Away | MapState::Queued);
            planted!(self, FreedPartSent => over = |state: MapState| state == MapState::Away);
            let waiting = mappings.iter().filter(|mapping| over(mapping.state));
            unmapped
                .extend(waiting.map(|mapping| (mapping.session, PartRef { allocation: id, part: index })));
        }
        for (session, part) in unmapped {
            if let Err(problem) = self.advance_mapping(session, part, MapEvent::Revoke) {
                self.report_violation(invariants::TRANSITIONS, problem);
            }
        }
    }

    /// Takes a session that certainly maps nothing out of the mapper sets, whatever its state was.
    pub(crate) fn forget_mappings(&mut self, id: SessionId, allocation_id: AllocationId) {
        let Some(allocation) = self.allocations.get_mut(allocation_id) else { return };
        let parts: Vec<_> = allocation.indices().collect();
        let mut held = Vec::new();
        for part in parts.iter().copied() {
            let Some(entry) = allocation.part(part) else { continue };
            let Some(state) = entry.map_state(id) else { continue };
            if state.is_mapper() {
                held.push(entry.extent);
            }
            if state == MapState::Evicting {
                self.mapping.evicting = self.mapping.evicting.saturating_sub(1);
            }
            allocation.remove_mapping(part, id);
        }
        let freeing = allocation.state == AllocationState::Freeing;
        for part in parts.iter().map(|part| PartRef { allocation: allocation_id, part: *part }) {
            self.record_unpinned(part, id);
            self.moves.attach_waiters.remove(part, id);
            self.note_mapping_changed(id, part);
        }
        self.follow_ups.push(Fact::VictimsChanged);
        for extent in held {
            self.mark_unacknowledged(extent);
        }
        if freeing {
            for part in parts {
                self.release_freed_part(PartRef { allocation: allocation_id, part });
            }
            if self.remove_if_gone(allocation_id) {
                return;
            }
        }
        self.notify_watchers(allocation_id);
    }
}
