//! Waiters that start: none passes an earlier waiter for room that both need, except within its tenant's
//! guarantee. A waiter at its tenant's limit keeps only waiters of its tenant waiting.

use std::collections::BTreeSet;

use broker_core::{Broker, CallId, Cause, ClientRequest, PartRef, Tier, WaitView, invariants::LINE_ORDER};
use vramd_types::WaitId;

use super::needs::{WaiterNeeds, extents_of};
use crate::oracle::{
    Oracle,
    facts::{Asked, Call, Tenant},
};

impl Oracle {
    /// Checks the waiters that started in this event against those that stood before them and still wait.
    pub(crate) fn check_passing(&mut self, line: &[WaitView], broker: &Broker) {
        let is_unsure = self.step.quotas_changed || self.step.settings_changed || self.facts.extents_ran_out;
        let none_started = self.step.fetched.is_empty() && self.step.retried.is_empty();
        if self.facts.line.is_empty() || is_unsure || none_started {
            return;
        }
        let still: BTreeSet<_> = line.iter().map(|wait| wait.id).collect();
        for (ahead, needs) in self.started_waiters(&still, broker) {
            let mut before = self.facts.line[..ahead].iter().enumerate();
            let may_pass = |id: &WaitId| {
                self.is_behind_a_new_one(*id, line)
                    || self.may_let_pass(*id, broker)
                    || self.may_let_own_pass(*id, needs.tenant)
            };
            let passed =
                before.find(|(at, id)| still.contains(id) && !may_pass(id) && self.is_passed(*at, &needs));
            let passed = passed.and_then(|(_, id)| self.facts.needs.get(id).cloned());
            self.expect(LINE_ORDER, passed.is_none(), || {
                format!("{needs:?} starts, and {passed:?} arrived before it and needs room there")
            });
        }
    }

    /// Whether a waiter entered the line before that one in this event. It may keep that one waiting, which then keeps
    /// none waiting itself.
    fn is_behind_a_new_one(&self, id: WaitId, line: &[WaitView]) -> bool {
        let mut before = line.iter().take_while(|wait| wait.id != id);
        before.any(|wait| !self.facts.line.contains(&wait.id))
    }

    /// The waiters that started in this event, with the number of waiters that stood before them.
    fn started_waiters(&self, still: &BTreeSet<WaitId>, broker: &Broker) -> Vec<(usize, WaiterNeeds)> {
        let moves = broker.moves().into_iter();
        let demanded = moves.filter(|it| it.cause == Cause::Demand && it.to == Tier::Device);
        let fetched: BTreeSet<_> =
            demanded.map(|it| it.part).filter(|part| self.step.fetched.contains(part)).collect();
        let is_started = |needs: &WaiterNeeds| match needs.part {
            Some(part) => fetched.contains(&part),
            None => {
                let is_unanswered = |call| self.facts.calls.contains_key(&call);
                self.step.retried.contains(&needs.tenant) && needs.call.is_some_and(is_unanswered)
            }
        };
        let stood = self.facts.line.iter().enumerate().filter(|(_, id)| !still.contains(id));
        let stood = stood.filter_map(|(at, id)| Some((at, self.facts.needs.get(id)?)));
        let mut started: Vec<_> = stood.map(|(at, needs)| (at, needs.clone())).collect();
        let in_line: BTreeSet<_> = started.iter().filter_map(|(_, needs)| needs.part).collect();
        started.retain(|(_, needs)| is_started(needs));
        // Waiters that arrived in this event stand behind all others.
        let new_parts = fetched.iter().filter(|part| !in_line.contains(part));
        let new_parts = new_parts.filter(|part| self.wanted_since(**part) == self.facts.clock);
        let waits = |call| still.iter().any(|id| self.facts.needs.get(id).is_some_and(|it| it.call == call));
        let new_batch =
            self.new_batch().filter(|it| self.step.retried.contains(&it.tenant) && !waits(it.call));
        let new = new_parts.filter_map(|part| self.needs_of_part(*part)).chain(new_batch);
        started.extend(new.map(|needs| (self.facts.line.len(), needs)));
        started
    }

    pub(crate) fn needs_of_part(&self, part: PartRef) -> Option<WaiterNeeds> {
        let allocation = self.facts.allocations.get(&part.allocation)?;
        let bytes = [(allocation.device, self.size_of(part)?)].into();
        let (tenant, key) = (allocation.tenant, (None, None));
        Some(WaiterNeeds { tenant, bytes, extents: 1, part: Some(part), call: None, key })
    }

    /// The batch that arrived in this event and is not answered.
    pub(crate) fn new_batch(&self) -> Option<WaiterNeeds> {
        let arrived = |call: &Call| call.arrived == self.facts.clock && !call.joined;
        let (id, call) = self.facts.calls.iter().find(|(_, call)| arrived(call))?;
        self.needs_of_batch(*id, call)
    }

    pub(crate) fn needs_of_batch(&self, id: CallId, call: &Call) -> Option<WaiterNeeds> {
        let Asked::Client { session, request: ClientRequest::AllocateBatch { items, wait }, .. } =
            &call.asked
        else {
            return None;
        };
        let tenant = self.facts.sessions.get(session)?.tenant;
        let bytes = self.requested_on_devices(*session, items);
        let key = (Some(*session), Some(call.at.after(*wait)));
        Some(WaiterNeeds { tenant, bytes, extents: extents_of(items), part: None, call: Some(id), key })
    }

    /// Whether the waiter at that position of the line certainly keeps another one waiting that arrived later.
    fn is_passed(&self, at: usize, later: &WaiterNeeds) -> bool {
        let (ahead, here) = self.facts.line.split_at(at);
        let needs = here.first().and_then(|id| self.facts.needs.get(id));
        let Some(needs) = needs.filter(|needs| needs.is_known() && needs.meets(later)) else { return false };
        // A waiter that must wait itself keeps none waiting elsewhere.
        let leads = !ahead.iter().any(|id| self.facts.needs.get(id).is_none_or(|other| other.meets(needs)));
        // A waiter that the driver failed may let others pass.
        let has_failed = needs.part.is_some_and(|part| self.facts.failed_parts.contains(&part))
            || self.facts.failed_batches.contains_key(&needs.key)
            || self.may_lack_extents(needs)
            || needs.bytes.keys().any(|device| self.facts.places[*device].surveys_left > 0);
        let may_be_at_limit = needs.bytes.iter().any(|(device, bytes)| {
            let charged = self.facts.charged(needs.tenant, *device);
            charged.saturating_add(*bytes) > self.quota_now(needs.tenant, *device).1
        });
        leads
            && !has_failed
            && (needs.tenant == later.tenant || !may_be_at_limit)
            && later.bytes.iter().any(|(device, bytes)| {
                needs.bytes.contains_key(device) && self.exceeded_guarantee(later.tenant, *device, *bytes)
            })
    }

    /// Whether a waiter that started in this event was beyond its tenant's guarantee then, whatever else its
    /// tenant was given.
    fn exceeded_guarantee(&self, tenant: Tenant, device: usize, bytes: u64) -> bool {
        let others = self.step.taken.get(&(tenant, device)).map_or(0, |taken| taken.saturating_sub(bytes));
        let with = self.charged_in_use(tenant, device).saturating_sub(others);
        with > self.quota_now(tenant, device).0
    }
}
