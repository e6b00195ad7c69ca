//! The entries of the line as the core shows them, and what may end a wait: room, its deadline, or an
//! operator.

use std::time::Duration;

use broker_core::{
    AllocationSpec, CallId, OperatorRequest, Refusal, Tier, Time, WaitView, WaiterView,
    invariants::LINE_ORDER,
};
use vramd_types::{SessionId, WaitId};

use crate::oracle::{
    Oracle,
    accounting::ledger::SURVEYS,
    facts::{Asked, Call},
};

/// Number of attempts before a batch rests.
const TRIES: u32 = 4;

/// Session and deadline of a batch. They stay the same over all attempts; its position in the line does not.
pub(crate) type BatchKey = (Option<SessionId>, Option<Time>);

/// How often a driver had no memory for a batch, and whether the batch rests for that.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Failed {
    times: u32,
    rests: Option<Rests>,
}

/// A batch rests until the time of the next periodic survey, and for one more survey.
#[derive(Clone, Copy, Debug)]
struct Rests {
    until: Time,
    surveys_left: u8,
}

impl Oracle {
    /// Learns which batches the driver had no memory for: they were being made and wait after this event.
    pub(crate) fn learn_failed_batches(&mut self, line: &[WaitView]) {
        let waits = line.iter().filter(|_| self.step.create_ended);
        let new = waits.filter(|wait| !self.facts.waits.contains_key(&wait.id));
        let batches = new.filter(|wait| matches!(wait.waiter, WaiterView::Batch { .. }));
        for wait in batches.cloned().collect::<Vec<_>>() {
            if let Some(place) = self.facts.place_of(&wait.device, Tier::Device) {
                self.facts.places[place].surveys_left = SURVEYS;
            }
            let until = self.facts.now.after(self.limits.survey_interval);
            let failed = self.facts.failed_batches.entry(batch_key(&wait)).or_default();
            failed.times += 1;
            if failed.times >= TRIES {
                failed.rests = Some(Rests { until, surveys_left: SURVEYS });
            }
        }
    }

    /// Ends rests after a survey: batches that have rested long enough may be tried again.
    pub(crate) fn end_rests(&mut self) {
        let now = self.facts.now;
        for failed in self.facts.failed_batches.values_mut() {
            let Some(rests) = failed.rests.as_mut().filter(|rests| rests.until <= now) else { continue };
            rests.surveys_left -= 1;
            if rests.surveys_left == 0 {
                failed.rests = None;
            }
        }
    }

    /// Whether the batch was tried so often that it rests, whatever leaves.
    pub(crate) fn is_resting(&self, key: BatchKey) -> bool {
        self.facts.failed_batches.get(&key).is_some_and(|failed| failed.rests.is_some())
    }

    /// Whether an operator is cancelling a wait in this event.
    pub(crate) fn is_cancelling(&self) -> bool {
        let asked = self.step.call.as_ref().map(|(_, call)| &call.asked);
        matches!(asked, Some(Asked::Operator { request: OperatorRequest::CancelWait { .. }, .. }))
    }

    /// Records a cancelled wait: sessions that were to be sent the part keep it as away.
    pub(crate) fn record_cancelled_wait(&mut self, id: WaitId) {
        let Some(WaitView { waiter: WaiterView::Part { part, .. }, .. }) = self.facts.waits.get(&id) else {
            return;
        };
        let part = *part;
        for session in self.facts.sessions.values_mut() {
            if session.owed.remove(&part) {
                session.away.insert(part);
            }
        }
    }

    /// Checks that a waiting batch is not refused for want of room before its deadline.
    pub(crate) fn check_refusal_time(
        &mut self,
        id: CallId,
        call: &Call,
        items: &[AllocationSpec],
        wait: Duration,
        refusal: &Refusal,
    ) {
        let (Refusal::QuotaLimit { tier, .. } | Refusal::DeviceFull { tier, .. }) = refusal else { return };
        let Asked::Client { session: by, .. } = &call.asked else { return };
        let stood = self.facts.waits.values().any(|it| {
            matches!(it.waiter, WaiterView::Batch { session, items: count } if session == *by && count == items.len())
        });
        // A change of quotas may have made it infeasible.
        let changed = self.step.create_ended || self.step.quotas_changed;
        let judged = stood && !call.joined && *tier == Tier::Device && !changed;
        let early = judged && call.at.after(wait) > self.facts.now;
        self.expect(LINE_ORDER, !early, || {
            format!("{id:?} arrived at {:?}, may wait {wait:?}, and is refused early: {refusal:?}", call.at)
        });
    }
}

pub(crate) fn batch_key(wait: &WaitView) -> BatchKey {
    let session = match wait.waiter {
        WaiterView::Batch { session, .. } => Some(session),
        WaiterView::Part { .. } => None,
    };
    (session, wait.deadline)
}
