//! An allocation is freed only because a client or an operator asks for it, its session ends, its file cannot be
//! read, or the seal of another takes its name.

use broker_core::{ClientRequest, Lifetime, OperatorRequest, Target, invariants::FREES};
use vramd_types::{AllocationId, SessionId};

use crate::oracle::{Oracle, facts::Asked};

impl Oracle {
    /// Checks that each allocation that this event has freed was to be freed.
    pub(crate) fn check_frees(&mut self) {
        for id in std::mem::take(&mut self.step.freed) {
            let is_due = self.ends_with_session(id) || self.is_asked_for(id) || self.is_over(id);
            self.expect(FREES, is_due, || format!("{id} is freed without a cause"));
        }
    }

    /// Whether the session that owns or loads it has just ended, and it does not outlive that.
    fn ends_with_session(&self, id: AllocationId) -> bool {
        let is_gone = |owner: &SessionId| self.step.gone.contains(owner);
        match self.facts.allocations.get(&id) {
            Some(it) => is_gone(&it.owner) && !(it.sealed && it.lifetime == Lifetime::Persistent),
            None => self.facts.loading.get(&id).is_none_or(|load| is_gone(&load.by)),
        }
    }

    /// Whether the call that is being handled asks for it.
    fn is_asked_for(&self, id: AllocationId) -> bool {
        let Some((_, call)) = &self.step.call else { return false };
        self.step.repeat.is_new()
            && match &call.asked {
                Asked::Client { request: ClientRequest::FreeBatch(ids), .. } => ids.contains(&id),
                Asked::Operator { request: OperatorRequest::FreeAllocation(target), .. } => match target {
                    Target::Id(asked) => *asked == id,
                    Target::Name(_) => call.named.is_none_or(|named| named == id),
                },
                _ => false,
            }
    }

    /// Whether it was replaced, or is a file that could not be loaded.
    fn is_over(&self, id: AllocationId) -> bool {
        let is_file = self.facts.loading.contains_key(&id);
        self.step.replaced == Some(id) || (is_file && self.step.hashed == Some(id))
    }
}
