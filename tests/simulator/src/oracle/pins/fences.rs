//! Fences, where the oracle can be certain of them: every mapper of the part has pins, answers and could be
//! told. The oracle forgets a fence once that is in doubt; the core may know better.

use broker_core::{
    CallId, PartRef, PartRevocation,
    invariants::{CALLS, FENCES},
};
use vramd_types::{AllocationId, PartIndex, SessionId};

use crate::oracle::{
    Oracle,
    facts::{FenceFacts, SessionFacts},
};

impl Oracle {
    /// Records an operator's revocation. `None` is an allocation that was given by name.
    pub(crate) fn record_revocation(
        &mut self,
        call: CallId,
        allocation: Option<AllocationId>,
        parts: &[PartIndex],
        wait: bool,
    ) {
        let (arrived, until) = (self.facts.clock, self.facts.now.after(self.limits.revoke_answer_timeout));
        let any = !self.facts.revoking.is_empty()
            || !self.facts.evicting.is_empty()
            || !self.facts.words_pending.is_empty();
        let others = self.facts.revoking.values().any(|it| it.is_none() || *it == allocation);
        self.facts.revoking.insert(call, allocation);
        let Some(allocation) = allocation.filter(|_| wait) else {
            if wait {
                (self.facts.named_fence_at, self.facts.named_fence_joined) = (arrived, any);
            }
            return;
        };
        let all = self.facts.parts_of(allocation);
        for part in all.filter(|part| parts.is_empty() || parts.contains(&part.part)) {
            self.facts.fenced_at.insert(part, arrived);
            if others || self.is_being_evicted(part) {
                self.facts.fences_joined.insert(part);
            } else {
                self.facts.fences_joined.remove(&part);
                self.facts.fences.insert(part, FenceFacts { call, arrived, until });
            }
        }
        self.forget_uncertain_fences();
    }

    pub(crate) fn end_revocation(&mut self, call: CallId) {
        self.facts.revoking.remove(&call);
        self.facts.fences.retain(|_, fence| fence.call != call);
    }

    /// Forgets the fences of which it is no longer certain that they last.
    pub(crate) fn forget_uncertain_fences(&mut self) {
        if self.facts.fences.is_empty() {
            return;
        }
        let facts = &self.facts;
        let answers = |it: &SessionFacts| it.pins && !it.silent && !it.gone && facts.is_heard(it);
        let lasts = |part: &PartRef, fence: &FenceFacts| {
            let mut holders = facts.sessions.values().filter(|it| it.mappings.contains_key(part)).peekable();
            holders.peek().is_some() && holders.all(answers) && facts.now < fence.until
        };
        let over: Vec<_> =
            facts.fences.iter().filter(|(part, fence)| !lasts(part, fence)).map(|(part, _)| *part).collect();
        for part in over {
            self.facts.fences.remove(&part);
        }
    }

    pub(crate) fn set_silent(&mut self, session: SessionId, silent: bool) {
        let now = self.facts.now;
        if let Some(session) = self.facts.sessions.get_mut(&session) {
            session.silent_since = silent.then(|| session.silent_since.unwrap_or(now));
            session.silent = silent;
        }
    }

    /// Checks what an operator is told of each part.
    pub(crate) fn check_revocation_reply(
        &mut self,
        allocation: AllocationId,
        parts: &[(PartIndex, PartRevocation)],
    ) {
        for (part, outcome) in parts {
            let part = PartRef { allocation, part: *part };
            let holds = match outcome {
                PartRevocation::Standing { by } => by.iter().all(|id| !self.has_pins(*id)),
                PartRevocation::Pinned { by } | PartRevocation::Silent { by } => {
                    !by.is_empty() && by.iter().all(|id| self.has_pins(*id))
                }
                PartRevocation::Revoked => true,
            };
            self.expect(CALLS, holds, || format!("{part:?} is reported as {outcome:?}, which does not hold"));
        }
        // Of several parts, the first may be mapped again before the last is done.
        if let [(part, PartRevocation::Revoked)] = parts {
            let part = PartRef { allocation, part: *part };
            let mapper = self.facts.sessions.iter().find(|(_, it)| it.mappings.contains_key(&part));
            let mapper = mapper.map(|(id, _)| *id);
            self.expect(FENCES, mapper.is_none(), || format!("{part:?} is revoked, and {mapper:?} maps it"));
        }
    }

    pub(crate) fn has_pins(&self, id: SessionId) -> bool {
        self.facts.sessions.get(&id).is_some_and(|session| session.pins)
    }
}
