//! A call is served only for the process of its session, while the session is connected.

use broker_core::{Refusal, invariants::CALLERS};
use vramd_types::Reason;

use crate::oracle::{
    Oracle,
    facts::{Asked, Call},
};

impl Oracle {
    /// The refusal that the call must get whatever it requests, if any.
    pub(crate) fn expected_refusal(&self, call: &Call) -> Option<Refusal> {
        let Asked::Client { session: id, peer, .. } = &call.asked else { return None };
        let (session, pid) = (*id, peer.pid);
        if id.get() == 0 {
            return Some(Refusal::SessionMissing);
        }
        match self.facts.sessions.get(id) {
            None if self.was_session(session) => Some(Refusal::SessionLost { session }),
            None => Some(Refusal::SessionNotFound { session }),
            Some(facts) if facts.gone => Some(Refusal::SessionLost { session }),
            Some(facts) if (facts.pid, facts.uid) != (peer.pid, peer.uid) => {
                Some(Refusal::SessionForeign { session, pid })
            }
            Some(facts) if facts.ending || !self.facts.is_heard(facts) => {
                Some(Refusal::SessionLost { session })
            }
            Some(_) => None,
        }
    }

    /// Checks that calls that must be refused were, with the expected refusal, and no others.
    pub(crate) fn check_expected_refusal(&mut self) {
        let Some((id, _)) = self.step.call.take() else { return };
        let about_callers = |reason| {
            matches!(reason, Reason::SessionMissing | Reason::SessionForeign | Reason::SessionNotFound)
        };
        match (self.step.expected.take(), self.step.answer.take()) {
            (Some(expected), answer) => {
                let fits = matches!(&answer, Some(Err(refusal)) if *refusal == expected);
                self.expect(CALLERS, fits, || {
                    format!("{id:?} must be refused with {expected:?}: {answer:?}")
                });
            }
            (None, Some(Err(refusal))) if self.step.by_client && about_callers(refusal.reason()) => {
                self.expect(CALLERS, false, || format!("{id:?} is refused with {refusal:?} without a cause"));
            }
            (None, _) => {}
        }
    }
}
