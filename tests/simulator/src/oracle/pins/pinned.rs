//! No part of an accepted pin call is evicted before the call has ended.

use broker_core::{Broker, Cause, ChannelId, ClientRequest, PartRef, Slot, TurnPhase, invariants::PINNED};
use vramd_types::SessionId;

use crate::oracle::{
    Oracle,
    facts::{Call, Facts},
    turns::OWN_CALLS,
};

impl Facts {
    /// Records that the session does not pin the part.
    pub(crate) fn remove_pin(&mut self, id: SessionId, part: PartRef) {
        self.pinned.remove(&(part, id));
        self.claimed_pins.remove(&(part, id));
        self.yielded_pins.remove(&(part, id));
        self.evictable_pins.remove(&(part, id));
    }

    /// Records that the session pins the part.
    pub(crate) fn insert_pin(&mut self, id: SessionId, part: PartRef) {
        self.pinned.insert((part, id));
        self.claimed_pins.remove(&(part, id));
        self.yielded_pins.remove(&(part, id));
        if self.backings.contains_key(&part) {
            self.evictable_pins.insert((part, id));
        }
    }
}

impl Oracle {
    /// Checks the revocation of a part's words, which an eviction begins with, or a question ahead of one.
    pub(crate) fn check_word_revocation(
        &mut self,
        part: PartRef,
        words: &[(ChannelId, SessionId, Slot)],
        broker: &Broker,
    ) {
        // A part that a session in doubt is asked to unmap ahead does not leave.
        let leaves = broker.moves().iter().any(|it| it.part == part && it.cause != Cause::WriteBack);
        if leaves && !self.is_being_revoked(part) && self.may_lie_on_device(part) {
            self.record_departure(part, true, broker);
        }
        for (_, session, _) in words {
            let taken = self.has_protecting_call(*session, part, broker);
            self.expect(PINNED, !taken, || {
                format!("{part:?} is evicted although a pin call of {session} has it")
            });
            let maps =
                self.facts.sessions.get(session).is_some_and(|session| session.mappings.contains_key(&part));
            self.expect(PINNED, maps, || format!("{session} does not map {part:?}, and its word is revoked"));
        }
        self.facts.words_pending.insert(part);
        self.facts.words_asked.insert(part, self.facts.clock);
    }

    /// Checks that a session is told to evict a part only for an eviction or a fence that is older than all
    /// its calls on the part.
    pub(crate) fn check_eviction(&mut self, id: SessionId, part: PartRef) {
        let by_words = self.step.words_revoked == Some(part);
        let began = self.facts.fences_began.get(&part).copied().filter(|_| self.is_fenced(part));
        self.expect(PINNED, by_words || began.is_some(), || {
            format!("{part:?} is evicted from {id} without a request")
        });
        // Calls from before the words were to be revoked counted then.
        let taken = !by_words && began.is_some_and(|began| self.has_call_before(id, part, began));
        self.expect(PINNED, !taken, || format!("{part:?} is revoked from {id} although a pin call has it"));
        self.facts.evicting.insert((id, part));
        if by_words && let Some(session) = self.facts.sessions.get_mut(&id) {
            session.unmaps.begin_evicted(part, self.facts.now);
        }
    }

    /// Whether the session has a call that protects the part: an answered one, or one that is older than
    /// every waiter for room there.
    fn has_protecting_call(&self, id: SessionId, part: PartRef, broker: &Broker) -> bool {
        let session = self.facts.sessions.get(&id);
        let calls = session.into_iter().flat_map(|session| &session.pin_calls);
        let mut own = calls.filter(|(_, call)| call.arrived < self.facts.clock && call.parts.contains(&part));
        own.any(|(number, call)| {
            let protects = call.answered || !self.has_earlier_waiter(part, call.arrived, call.place);
            // The client is told later in the event that a hand-over has ended.
            protects && (call.answered || *number < OWN_CALLS || is_handed_over(id, broker))
        })
    }

    /// Whether a waiter for room on the part's device arrived before then.
    fn has_earlier_waiter(&self, part: PartRef, arrived: u64, place: usize) -> bool {
        let device = self.facts.allocations.get(&part.allocation).map(|it| it.device);
        let there = |of: &PartRef| self.facts.allocations.get(&of.allocation).map(|it| it.device) == device;
        let stands = self.facts.part_waiters.iter().any(|(of, since)| there(of) && *since < arrived);
        let batch = |call: &Call| {
            call.arrived < arrived
                && matches!(Self::request_of(call), Some(ClientRequest::AllocateBatch { .. }))
        };
        let heard = self.facts.sessions.values().filter(|session| self.is_reachable(session));
        let mut calls = heard.flat_map(|session| session.pin_calls.values());
        let lacks = |of: &PartRef| there(of) && self.may_be_off_device(*of);
        stands
            || self.facts.calls.values().any(batch)
            || calls.any(|call| {
                !call.answered
                    && (call.arrived, call.place) < (arrived, place)
                    && call.parts.iter().any(lacks)
            })
    }

    /// Whether a call of the session on the part arrived before then, or was answered.
    fn has_call_before(&self, id: SessionId, part: PartRef, then: u64) -> bool {
        let session = self.facts.sessions.get(&id);
        let mut calls = session.into_iter().flat_map(|session| session.pin_calls.values());
        calls.any(|call| (call.arrived < then || call.answered) && call.parts.contains(&part))
    }
}

/// Whether a working set of the session is being handed over, after the event.
fn is_handed_over(id: SessionId, broker: &Broker) -> bool {
    broker.working_sets().iter().any(|set| set.session == id && set.phase == TurnPhase::HandOver)
}
