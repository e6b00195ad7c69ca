//! Waiters that nothing helps let others pass in turns that double. While such a waiter lets others pass, none behind
//! it waits for memory that is free. While it holds, or while room is on its way to it, none passes it.

use std::collections::{BTreeMap, BTreeSet};

use broker_core::{Broker, Cause, PartRef, Tier, WaitView};
use vramd_types::WaitId;

use super::{
    needs::WaiterNeeds,
    waiting::{Leavable, Shortage},
};
use crate::oracle::{
    Oracle,
    facts::{ExtentFacts, ExtentPhase, Tenant},
    sessions::silences::Doubt,
};

/// A waiter further back may not have been planned for.
const PLANNED_MIN: usize = 16;

impl Oracle {
    /// Whether it is the waiter's turn to let others pass. From the start of its wait on the turns last once, once,
    /// twice, four times, … the first time.
    fn is_in_turn_to_pass(&self, wait: &WaitView) -> bool {
        let first = self.limits.hold_after;
        if first.is_zero() {
            return false;
        }
        let waited = self.facts.now.since(wait.since);
        let (mut end, mut lets_pass) = (first, true);
        while end <= waited {
            (end, lets_pass) = (end * 2, !lets_pass);
        }
        lets_pass
    }

    /// The waiters of the line that certainly let others pass: it is their turn, they have stood in the line since
    /// before this event, and even all that might leave a device would not give them enough there.
    pub(crate) fn passed_waiters(&self, line: &[WaitView], leavable_max: &[Leavable]) -> BTreeSet<WaitId> {
        let planned = line.iter().take(PLANNED_MIN);
        let stood = planned.filter(|wait| self.facts.waits.contains_key(&wait.id));
        let passed = stood.filter(|wait| self.is_in_turn_to_pass(wait));
        passed.filter(|wait| self.certainly_lacks_room(wait, leavable_max)).map(|wait| wait.id).collect()
    }

    fn certainly_lacks_room(&self, wait: &WaitView, leavable_max: &[Leavable]) -> bool {
        let Some(needs) = self.facts.needs.get(&wait.id).filter(|needs| needs.is_known()) else {
            return false;
        };
        let is_unsure = |(device, bytes): (&usize, &u64)| {
            let charged = self.facts.charged(needs.tenant, *device);
            let is_at_limit = charged.saturating_add(*bytes) > self.quota_now(needs.tenant, *device).1;
            is_at_limit || self.is_something_leaving(*device) || self.facts.places[*device].surveys_left > 0
        };
        let is_short = |(device, bytes): (&usize, &u64)| {
            self.shortage(needs.tenant, *device, *bytes, &leavable_max[*device]) == Shortage::Full
        };
        !needs.bytes.iter().any(is_unsure) && needs.bytes.iter().any(is_short)
    }

    /// Whether this waiter of the line is a part that certainly lets others pass.
    pub(crate) fn is_passed_part(&self, part: PartRef, passed: &BTreeSet<WaitId>) -> bool {
        passed.iter().any(|id| self.facts.needs.get(id).is_some_and(|needs| needs.part == Some(part)))
    }

    /// Whether a waiter that stood in the line before this event may have let others pass in it.
    pub(crate) fn may_let_pass(&self, id: WaitId, broker: &Broker) -> bool {
        let Some(wait) = self.facts.waits.get(&id).filter(|wait| self.is_in_turn_to_pass(wait)) else {
            return false;
        };
        // Memory that a session in doubt has to unmap is no certain room.
        if self.is_any_in_doubt() {
            return true;
        }
        // Waiters that passed took the room that was there for it.
        let needs = self.facts.needs.get(&wait.id);
        !(self.facts.helped.contains(&id)
            && needs.is_some_and(|needs| self.is_helped(needs, broker, &self.taken_behind(needs, broker))))
    }

    /// Bytes that requests behind a waiter took in this event, by tenant and device. An operator's fetch is not in the
    /// line, and a part of an earlier call may have entered the line before the waiter. The room that these took is no
    /// longer there for the waiter, so it may let others pass.
    fn taken_behind(&self, needs: &WaiterNeeds, broker: &Broker) -> BTreeMap<(Tenant, usize), u64> {
        let mut taken = self.step.taken.clone();
        let (moves, arrived) = (broker.moves(), self.arrival_of(needs));
        let by_operator = |part: &PartRef| {
            let is_moved = moves.iter().any(|it| it.part == *part && it.cause == Cause::Operator);
            is_moved || self.step.arrived_for_operator.contains(part)
        };
        let is_before = |part: &PartRef| arrived.is_some_and(|arrived| self.wanted_since(*part) < arrived);
        for part in self.step.fetched.iter().filter(|part| by_operator(part) || is_before(part)) {
            let Some(fetched) = self.needs_of_part(*part) else { continue };
            for (device, bytes) in fetched.bytes {
                let taken = taken.entry((fetched.tenant, device)).or_default();
                *taken = taken.saturating_sub(bytes);
            }
        }
        taken
    }

    /// Number of the event in which the waiter's request arrived.
    fn arrival_of(&self, needs: &WaiterNeeds) -> Option<u64> {
        match (needs.part, needs.call) {
            (Some(part), _) => self.facts.part_waiters.get(&part).copied(),
            (None, call) => Some(self.facts.calls.get(&call?)?.arrived),
        }
    }

    /// Whether it is the waiter's turn to let others pass, and this tenant is its own: what a tenant has cached is no
    /// certain room for its other waiters.
    pub(crate) fn may_let_own_pass(&self, id: WaitId, tenant: Tenant) -> bool {
        let is_own = self.facts.needs.get(&id).is_some_and(|needs| needs.tenant == tenant);
        is_own && self.facts.waits.get(&id).is_some_and(|wait| self.is_in_turn_to_pass(wait))
    }

    /// Whether a part of the line may have let others pass in this event.
    pub(crate) fn may_part_let_pass(&self, part: PartRef, broker: &Broker) -> bool {
        let stood = self.facts.line.iter().copied();
        let mut its = stood.filter(|id| self.facts.needs.get(id).is_some_and(|it| it.part == Some(part)));
        its.any(|id| self.may_let_pass(id, broker))
    }

    /// Records the first waiters of their devices for which there is certainly room, once what leaves has left.
    pub(crate) fn record_helped(&mut self, line: &[WaitView], broker: &Broker) {
        let mut helped = BTreeSet::new();
        if !self.limits.hold_after.is_zero() {
            let mut before = BTreeSet::new();
            for wait in line {
                let Some(needs) = self.facts.needs.get(&wait.id).filter(|it| it.is_known()) else { break };
                let leads = !needs.bytes.keys().any(|device| before.contains(device));
                before.extend(needs.bytes.keys().copied());
                if leads && self.is_helped(needs, broker, &BTreeMap::new()) {
                    helped.insert(wait.id);
                }
            }
        }
        self.facts.helped = helped;
    }

    /// Whether there is room for the waiter with what is leaving, with what certainly could, and with what others have
    /// taken.
    fn is_helped(
        &self,
        needs: &WaiterNeeds,
        broker: &Broker,
        taken: &BTreeMap<(Tenant, usize), u64>,
    ) -> bool {
        let used = self.used_parts();
        needs.bytes.iter().all(|(device, bytes)| {
            // Room is not counted on while a session in doubt has to unmap the part.
            let mut leavable = self.leavable_of(*device, broker, |part| {
                self.can_surely_leave(part, &used) && self.doubt_about(part) == Doubt::Nothing
            });
            let is_leaving = |it: &&ExtentFacts| it.place == *device && it.phase == ExtentPhase::Releasing;
            // Where nothing can be moved away, the core plans with nothing that leaves.
            let plans = self.facts.places.iter().any(|place| place.tier != Tier::Device);
            for extent in self.facts.extents.values().filter(|it| plans && is_leaving(it)) {
                *leavable.entry(extent.owner).or_default() += extent.size;
            }
            for ((tenant, _), taken) in taken.iter().filter(|((_, on), _)| on == device) {
                // Others may pass within their guarantee, and that room is then no longer there for it.
                let guarantee = self.quota_now(*tenant, *device).0;
                let beyond = self.charged_in_use(*tenant, *device).saturating_sub(guarantee);
                *leavable.entry(*tenant).or_default() += (*taken).min(beyond);
            }
            self.shortage(needs.tenant, *device, *bytes, &leavable) == Shortage::None
        })
    }
}
