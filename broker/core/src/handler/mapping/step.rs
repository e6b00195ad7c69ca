//! One step of one mapping along its table, with every count that depends on it: mapped bytes, descriptors in
//! flight, deadlines, slots.
//!
//! No other file changes the state of a mapping. Afterwards the follow-ups know of the change
//! (`follow_up.rs`).

use std::collections::btree_map::Entry;

use vramd_types::SessionId;

use crate::{
    broker::Broker,
    command::Command,
    event::{PartRef, Slot},
    follow_up::Fact,
    invariants,
    observed::Transition,
    residency::{MapEvent, MapState, MapStep},
};

impl Broker {
    pub(crate) fn advance_mapping(
        &mut self,
        id: SessionId,
        part: PartRef,
        event: MapEvent,
    ) -> Result<MapStep, String> {
        let unknown = || {
            format!("{event:?} of part {} of {}, which the session does not map", part.part, part.allocation)
        };
        let silences = self.sessions.trust.silences();
        let session = self.sessions.get_mut(id).ok_or_else(unknown)?;
        let allocation = self.allocations.get_mut(part.allocation).ok_or_else(unknown)?;
        let mapping =
            allocation.part(part.part).and_then(|entry| entry.mapping(id)).copied().ok_or_else(unknown)?;
        let old = mapping.state;
        let step = old.on(event);
        self.shell.transitions.note(Transition::Mapping { from: old, event, legal: step.is_some() });
        let step = step.ok_or_else(|| {
            format!("{event:?} of part {} of {}, which is {old:?}", part.part, part.allocation)
        })?;
        let new = step.target();
        match new {
            Some(state) => allocation.set_mapping(part.part, mapping.in_state(state)),
            None => allocation.remove_mapping(part.part, id),
        }
        let is_over = old.is_mapper() && !new.is_some_and(MapState::is_mapper);
        planted!(self, AwayCountedAsMapped => is_over = is_over && new != Some(MapState::Away));
        if is_over {
            session.mapped = session.mapped.saturating_sub(allocation.size_of(part.part));
        }
        if old == MapState::Queued && new.is_none() {
            session.queue.forget(|part| self.allocations.is_queued(id, part));
        }
        if new == Some(MapState::Queued) {
            session.queue.push(part);
        }
        if old.is_in_flight() && !new.is_some_and(MapState::is_in_flight) {
            session.fds_in_flight = session.fds_in_flight.saturating_sub(1);
            if session.fds_in_flight == 0 {
                session.map_deadline = None;
            }
            self.mapping.fds.give_back(session.tenant, 1);
        }
        if new == Some(MapState::Revoking) && old != MapState::Revoking {
            session.revoking += 1;
        }
        if old == MapState::Revoking && new.is_none() {
            session.revoking = session.revoking.saturating_sub(1);
        }
        if new == Some(MapState::Evicting) {
            self.mapping.evicting = self.mapping.evicting.saturating_add(1);
        }
        if old == MapState::Evicting {
            self.mapping.evicting = self.mapping.evicting.saturating_sub(1);
            if let Some(words) = &mut session.words {
                words.unmap_soon.remove(&part);
                let next = self.shell.now.after(self.config.limits.unmap_answer_timeout);
                planted!(self, SilentTooSoon => next = words.unmap_deadline.unwrap_or(next));
                words.unmap_deadline =
                    words.unmap_deadline.filter(|_| !words.unmap_soon.is_empty()).map(|_| next);
            }
        }
        if session.revoking == 0 {
            session.revoke_deadline = None;
        }
        if event == MapEvent::Unmapped && matches!(old, MapState::Evicting | MapState::Revoking) {
            planted!(self, AnswerUncounted => silences = session.answered);
            session.answered = silences;
        }
        if new.is_none()
            && let Entry::Occupied(mut count) = session.maps.entry(part.allocation)
        {
            *count.get_mut() = count.get().saturating_sub(1);
            if *count.get() == 0 {
                count.remove();
            }
        }
        if new.is_none() && old == MapState::Away {
            self.moves.attach_waiters.remove(part, id);
        }
        let is_free = new.is_none();
        planted!(self, SlotReused => is_free = is_free || new == Some(MapState::Away));
        if is_free && let Some(slot) = mapping.slot() {
            self.forget_word(id, slot);
        }
        if old.is_mapper() && !new.is_some_and(MapState::is_mapper) {
            self.ease_fence(id, part);
            self.record_unpinned(part, id);
        }
        // The part may leave now: no session maps it, or its mapper has answered and can be asked to unmap it.
        if old.is_mapper() || old == MapState::Queued || new == Some(MapState::Mapped) {
            self.follow_ups.push(Fact::VictimsChanged);
        }
        if old == MapState::Evicting && new == Some(MapState::Away) {
            self.collect_word(id, mapping.slot());
        }
        self.note_mapping_changed(id, part);
        Ok(step)
    }

    /// Sends a session a part that is away for it.
    pub(crate) fn queue_remap(&mut self, id: SessionId, part: PartRef) {
        planted!(self, EvictedStaysAway => return);
        match self.advance_mapping(id, part, MapEvent::Pin) {
            Ok(_) => self.follow_ups.push(Fact::PartsQueued(id)),
            Err(problem) => self.report_violation(invariants::TRANSITIONS, problem),
        }
    }

    /// The answer carried the WRITTEN bit. Forgetting it here makes the word report later writes alone.
    fn collect_word(&mut self, id: SessionId, slot: Option<Slot>) {
        if let (Some(session), Some(slot)) = (self.sessions.get(id).filter(|it| it.channel_open), slot) {
            let channel = session.channel;
            self.push_command(Command::ForgetWord { channel, slot });
        }
    }

    /// Frees the slot, whose word belongs to no part from now on.
    fn forget_word(&mut self, id: SessionId, slot: Slot) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if let Some(words) = &mut session.words {
            words.slots.give_back(slot);
        }
        planted!(self, WordNotCollected => return);
        if session.channel_open {
            let channel = session.channel;
            self.push_command(Command::ForgetWord { channel, slot });
        }
    }
}
