//! No part of a pin call that was taken is evicted before the call has ended.

use broker_core::{ChannelId, PartRef, Slot, invariants::PINNED};
use vramd_types::SessionId;

use super::Oracle;

impl Oracle {
    /// The words of a part are to be revoked, for an evict.
    pub(super) fn words_asked(&mut self, part: PartRef, words: &[(ChannelId, SessionId, Slot)]) {
        for (_, session, _) in words {
            let taken = self.has_call_before(*session, part, self.facts.clock);
            self.expect(PINNED, !taken, || format!("{part:?} is in a pin call of {session}, and is evicted"));
            let maps =
                self.facts.sessions.get(session).is_some_and(|session| session.holds.contains_key(&part));
            self.expect(PINNED, maps, || format!("{session} does not map {part:?}, and its word is revoked"));
        }
        self.facts.words_pending.insert(part);
        self.facts.words_asked.insert(part, self.facts.clock);
    }

    /// A session is told to unmap a part for a while: for an evict or a fence that came before all its calls on it.
    pub(super) fn may_be_evicted(&mut self, id: SessionId, part: PartRef) {
        let words = self.facts.words_asked.get(&part).copied().unwrap_or_default();
        let fenced = self.facts.fenced_at.get(&part).copied().unwrap_or_default();
        let since = words.max(fenced).max(self.facts.named_fence_at);
        let joined = match since == self.facts.named_fence_at {
            true => self.facts.named_fence_joined,
            false => since == fenced && self.facts.fences_joined.contains(&part),
        };
        let taken = !joined && self.has_call_before(id, part, since);
        self.expect(PINNED, !taken, || format!("{part:?} is in a pin call of {id}, and is revoked"));
        let asked = since > 0;
        self.expect(PINNED, asked, || format!("{part:?} is evicted from {id}, and nobody asked for that"));
        self.facts.evicting.insert((id, part));
        if self.step.words_revoked == Some(part)
            && let Some(session) = self.facts.sessions.get_mut(&id)
        {
            session.prompt.insert(part);
        }
    }

    fn has_call_before(&self, id: SessionId, part: PartRef, then: u64) -> bool {
        let session = self.facts.sessions.get(&id);
        let mut calls = session.into_iter().flat_map(|session| session.pin_calls.values());
        calls.any(|call| call.came < then && call.parts.contains(&part))
    }
}
