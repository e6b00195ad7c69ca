//! Who stands in the line as the core says, and what may end that: room, time, or an operator.

use std::time::Duration;

use broker_core::{
    AllocationSpec, Broker, CallId, OperatorRequest, Refusal, Tier, Time, WaitView, WaiterView,
    invariants::DEMANDS,
};
use vramd_types::SessionId;

use crate::oracle::{
    Oracle,
    accounting::ledger::SURVEYS,
    facts::{Asked, Call, Rests},
};

/// So often a batch is tried before it rests.
const TRIES: u32 = 4;

impl Oracle {
    /// A batch that was being made and waits after this event found no memory.
    pub(crate) fn learn_failed_batches(&mut self, broker: &Broker) {
        let waits = broker.waits().into_iter().filter(|_| self.step.create_ended);
        let new = waits.filter(|wait| !self.facts.waits.contains_key(&wait.id));
        let batches = new.filter(|wait| matches!(wait.waiter, WaiterView::Batch { .. }));
        for wait in batches.collect::<Vec<_>>() {
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

    /// A device was looked at: who has rested for that long may be tried again.
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

    /// Whether the batch was tried so often that it waits, whatever leaves.
    pub(crate) fn is_resting(&self, wait: &WaitView) -> bool {
        self.facts.failed_batches.get(&batch_key(wait)).is_some_and(|failed| failed.rests.is_some())
    }

    /// Whether an operator has somebody wait no more at this moment.
    pub(crate) fn is_cancelling(&self) -> bool {
        let asked = self.step.call.as_ref().map(|(_, call)| &call.asked);
        matches!(asked, Some(Asked::Operator { request: OperatorRequest::CancelWait { .. }, .. }))
    }

    /// Who was to be sent the part keeps it, and is not to be sent it any more.
    pub(crate) fn record_cancelled_wait(&mut self, id: u64) {
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

    /// A batch that stood in the line was refused for want of room: not before its time.
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
        // A change of quotas may have made it hopeless.
        let changed = self.step.create_ended || self.step.quotas_changed;
        let judged = stood && !call.joined && *tier == Tier::Device && !changed;
        let early = judged && call.at.after(wait) > self.facts.now;
        self.expect(DEMANDS, !early, || format!("{id:?} came at {:?}, waits {wait:?}: {refusal:?}", call.at));
    }
}

/// Who asked for a batch, and until when: it is the same with each try, where its place in the line is not.
fn batch_key(wait: &WaitView) -> (Option<SessionId>, Option<Time>) {
    let session = match wait.waiter {
        WaiterView::Batch { session, .. } => Some(session),
        WaiterView::Part { .. } => None,
    };
    (session, wait.deadline)
}
