//! Pin calls that wait for each other do not wait for ever: the daemon aborts one after the other, each after
//! its time.

use std::collections::BTreeSet;

use broker_core::{PartRef, Time, invariants::STALLS};
use vramd_types::SessionId;

use crate::oracle::{
    Oracle,
    facts::{MapPhase, PinFacts},
};

impl Oracle {
    pub(crate) fn check_stalls(&mut self) {
        if self.facts.fences.is_empty() && self.facts.evicting.is_empty() && !self.facts.any_stalled {
            return;
        }
        self.facts.any_stalled = false;
        let waits = |call: &PinFacts| !call.answered;
        let waiting = self.facts.sessions.iter().filter(|(_, it)| it.pin_calls.values().any(waits));
        let waiting: BTreeSet<SessionId> = waiting.map(|(id, _)| *id).collect();
        if waiting.is_empty() {
            return;
        }
        let (mut changes, mut count) = (Vec::new(), 0u32);
        for id in waiting.iter().copied() {
            let Some(session) = self.facts.sessions.get(&id) else { continue };
            let heard = !session.gone && self.facts.is_heard(session);
            for (number, call) in session.pin_calls.iter().filter(|(_, call)| !call.answered) {
                count += 1;
                let is_stalled = heard
                    && self.blockers_of(id, call).is_some_and(|in_the_way| {
                        !in_the_way.is_empty() && in_the_way.iter().all(|of| waiting.contains(of))
                    });
                let since: Option<Time> = is_stalled.then(|| call.stalled_since.unwrap_or(self.facts.now));
                changes.push((id, *number, since));
            }
        }
        let longest = self.limits.pin_stall * (count + 1) + std::time::Duration::from_millis(1);
        for (id, number, since) in changes {
            let call =
                self.facts.sessions.get_mut(&id).and_then(|session| session.pin_calls.get_mut(&number));
            if let Some(call) = call {
                call.stalled_since = since;
            }
            self.facts.any_stalled |= since.is_some();
            let late = since.is_some_and(|since| since.after(longest) < self.facts.now);
            self.expect(STALLS, !late, || {
                format!("call {number} of {id} has waited since {since:?} for sessions that wait themselves")
            });
        }
    }

    /// Sessions that a call waits for, or `None` where that is not certain.
    pub(crate) fn blockers_of(&self, id: SessionId, call: &PinFacts) -> Option<BTreeSet<SessionId>> {
        let session = self.facts.sessions.get(&id)?;
        let mut in_the_way = BTreeSet::new();
        for part in &call.parts {
            match self.facts.fences.get(part) {
                // It joined an eviction, which ends without any unpin.
                Some(_) if self.is_evicted_unpinned(*part) => return None,
                Some(fence) if fence.arrived < call.arrived => in_the_way.extend(self.mappers_of(*part)),
                Some(_) => {}
                None if self.is_being_revoked(*part) => return None,
                None => {}
            }
            let evicting = matches!(session.mappings.get(part), Some((MapPhase::Evicting, _)));
            if evicting && !session.unmaps.is_evicted(*part) {
                in_the_way.insert(id);
            }
        }
        Some(in_the_way)
    }

    /// Whether the words of the part are being read, or a session that does not pin it is to unmap it.
    fn is_evicted_unpinned(&self, part: PartRef) -> bool {
        let sessions = &self.facts.sessions;
        let unpinned = |id: SessionId| sessions.get(&id).is_some_and(|it| it.unmaps.is_evicted(part));
        self.facts.words_pending.contains(&part) || self.mappers_of(part).any(unpinned)
    }

    pub(crate) fn mappers_of(&self, part: PartRef) -> impl Iterator<Item = SessionId> {
        let sessions = self.facts.sessions.iter();
        sessions.filter(move |(_, it)| it.mappings.contains_key(&part)).map(|(id, _)| *id)
    }

    pub(crate) fn is_being_revoked(&self, part: PartRef) -> bool {
        self.facts.revoking.values().any(|it| it.may_name(part))
    }
}
