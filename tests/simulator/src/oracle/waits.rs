//! Who stands in the line as the core says, and what may end that: room, time, or an operator.

use std::time::Duration;

use broker_core::{
    AllocationSpec, Broker, CallId, OperatorRequest, Refusal, Tier, WaitView, Waiting, invariants::DEMANDS,
};

use super::{
    Oracle,
    facts::{Asked, Call},
    ledger::LOOKS,
};

impl Oracle {
    /// A batch that was being made and waits after this event found no memory.
    pub(super) fn learn_failed_batches(&mut self, broker: &Broker) {
        let waits = broker.waits().into_iter().filter(|_| self.step.made);
        let new = waits.filter(|wait| !self.facts.waits.contains_key(&wait.id));
        let batches = new.filter(|wait| matches!(wait.what, Waiting::Batch { .. }));
        let devices: Vec<_> = batches.map(|wait| wait.device).collect();
        for place in
            devices.iter().filter_map(|device| self.facts.place_of(device, Tier::Device)).collect::<Vec<_>>()
        {
            self.facts.places[place].looks_left = LOOKS;
        }
    }

    /// Whether an operator has somebody wait no more at this moment.
    pub(super) fn is_cancelling(&self) -> bool {
        let asked = self.step.call.as_ref().map(|(_, call)| &call.asked);
        matches!(asked, Some(Asked::Operator { request: OperatorRequest::CancelWait { .. }, .. }))
    }

    /// Who was to be sent the part keeps it, and is not to be sent it any more.
    pub(super) fn wait_cancelled(&mut self, id: u64) {
        let Some(WaitView { what: Waiting::Part { part, .. }, .. }) = self.facts.waits.get(&id) else {
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
    pub(super) fn refused_in_time(
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
            matches!(it.what, Waiting::Batch { session, items: count } if session == *by && count == items.len())
        });
        // A change of quotas may have made it hopeless.
        let changed = self.step.made || self.step.quotas_changed;
        let judged = stood && !call.joined && *tier == Tier::Device && !changed;
        let early = judged && call.at.after(wait) > self.facts.now;
        self.expect(DEMANDS, !early, || format!("{id:?} came at {:?}, waits {wait:?}: {refusal:?}", call.at));
    }
}
