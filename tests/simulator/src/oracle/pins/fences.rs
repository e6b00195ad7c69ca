//! Fences, where the oracle can be certain of them: every mapper of the part has pins, answers and could be
//! told. The oracle forgets a fence once that is in doubt; the core may know better.
//!
//! A fence that joins a revocation under way holds up the calls that arrive after it like any other. It ends
//! with an earlier fence that it joins.

use broker_core::{
    CallId, PartRef, PartRevocation,
    invariants::{CALLS, FENCES},
};
use vramd_types::{AllocationId, PartIndex, SessionId};

use crate::oracle::{
    Oracle,
    facts::{FenceFacts, RevocationFacts, SessionFacts},
};

impl Oracle {
    /// Records an operator's revocation. With `wait` it is a fence.
    pub(crate) fn record_revocation(
        &mut self,
        call: CallId,
        allocation: Option<AllocationId>,
        parts: &[PartIndex],
        wait: bool,
    ) {
        let fence_until = wait.then(|| self.facts.now.after(self.limits.revoke_answer_timeout));
        let mut order = RevocationFacts { allocation, parts: parts.to_vec(), fence_until };
        let all = allocation.into_iter().flat_map(|allocation| self.facts.parts_of(allocation));
        let fenced: Vec<_> = all.filter(|part| order.fences(*part)).collect();
        for part in fenced {
            let until = self.record_fence(part, &order);
            order.fence_until = order.fence_until.min(until);
        }
        self.facts.revoking.insert(call, order);
        self.forget_uncertain_fences();
    }

    /// Records the fence of one part. Returns when it ends.
    fn record_fence(&mut self, part: PartRef, order: &RevocationFacts) -> Option<broker_core::Time> {
        let earlier =
            self.facts.revoking.values().filter(|it| it.fences(part)).filter_map(|it| it.fence_until);
        let until = earlier.chain(order.fence_until).min()?;
        let arrived = self.facts.clock;
        let joins = self.is_being_revoked(part) || self.is_being_evicted(part);
        let words = self.facts.words_asked.get(&part).copied().filter(|_| self.is_being_evicted(part));
        let before = self.facts.fences_began.get(&part).copied().filter(|_| joins);
        self.facts
            .fences_began
            .insert(part, arrived.min(words.unwrap_or(arrived)).min(before.unwrap_or(arrived)));
        let new = FenceFacts { arrived, until, progress: (!joins).then_some(self.facts.now) };
        let fence = self.facts.fences.entry(part).or_insert(new);
        fence.until = fence.until.min(until);
        Some(until)
    }

    /// Records the end of an order: the fences of its parts are over.
    pub(crate) fn end_revocation(&mut self, call: CallId) {
        let Some(order) = self.facts.revoking.remove(&call) else { return };
        self.facts.fences.retain(|part, _| !order.fences(*part));
        self.step.ended_orders.insert(call, order);
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

    /// Whether a fence of the part is in force, or ended in this event.
    pub(crate) fn is_fenced(&self, part: PartRef) -> bool {
        let ended = self.step.ended_orders.values();
        self.facts.revoking.values().chain(ended).any(|order| order.fences(part))
    }

    pub(crate) fn set_silent(&mut self, session: SessionId, silent: bool) {
        let now = self.facts.now;
        if let Some(session) = self.facts.sessions.get_mut(&session) {
            session.silent_since = silent.then(|| session.silent_since.unwrap_or(now));
            session.silent = silent;
        }
        self.forget_uncertain_fences();
    }

    /// Checks what an operator is told of each part.
    pub(crate) fn check_revocation_reply(
        &mut self,
        call: CallId,
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
        self.check_fence_lasted(call, parts);
        // Of several parts, the first may be mapped again before the last is done.
        if let [(part, PartRevocation::Revoked)] = parts {
            let part = PartRef { allocation, part: *part };
            let mapper = self.facts.sessions.iter().find(|(_, it)| it.mappings.contains_key(&part));
            let mapper = mapper.map(|(id, _)| *id);
            self.expect(FENCES, mapper.is_none(), || format!("{part:?} is revoked, and {mapper:?} maps it"));
        }
    }

    /// Checks that a fence was given up for pins only after its time.
    fn check_fence_lasted(&mut self, call: CallId, parts: &[(PartIndex, PartRevocation)]) {
        let pinned = parts.iter().any(|(_, outcome)| matches!(outcome, PartRevocation::Pinned { .. }));
        let until = self.step.ended_orders.get(&call).and_then(|order| order.fence_until);
        let lasts = until.filter(|until| *until > self.facts.now);
        self.expect(FENCES, !pinned || lasts.is_none(), || {
            format!("the fence of {call:?} is given up, although it is to last until {lasts:?}")
        });
    }

    pub(crate) fn has_pins(&self, id: SessionId) -> bool {
        self.facts.sessions.get(&id).is_some_and(|session| session.pins)
    }
}
