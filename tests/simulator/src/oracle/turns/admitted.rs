//! The turn that is admitted is the first in the order of turns, and its set fits beside those of the owners.

use std::{cmp::Reverse, collections::BTreeSet, time::Duration};

use broker_core::{
    TenantClass,
    invariants::{TURN_HELD, TURN_ORDER, TURN_OWNERS},
};
use vramd_types::SessionId;

use super::{Stage, TurnFacts};
use crate::oracle::{Oracle, facts::Tenant};

/// Used time is compared in units of this part of a microsecond, divided by the weight.
const FINE: u128 = 10_000;

/// A tenant that begins to ask is at most so many quanta ahead of the least served one, and behind it.
const QUANTA: [u32; 2] = [1, 10];

impl Oracle {
    /// A time divided by the weight of a tenant.
    pub(super) fn divided(&self, tenant: Tenant, time: Duration) -> u128 {
        let weight = self.standing_of(&self.facts.tenants[tenant]).weight.get();
        time.as_micros() * FINE / u128::from(weight)
    }

    /// The time that a tenant held turns on the device, divided by its weight.
    pub(super) fn used_by(&self, tenant: Tenant, device: usize) -> u128 {
        let turns = &self.facts.turns;
        let own = turns.turns.values().filter(|turn| (turn.tenant, turn.device) == (tenant, device));
        let running = own.filter_map(TurnFacts::granted);
        let running: u128 = running.map(|granted| self.divided(tenant, self.facts.now.since(granted))).sum();
        turns.used.get(&(device, tenant)).copied().unwrap_or_default() + running
    }

    /// Has a tenant that has no turn on the device begin to ask: it is not far from the least served tenant of its
    /// class.
    pub(super) fn begin_asking(&mut self, turn: &TurnFacts) {
        let (tenant, device) = (turn.tenant, turn.device);
        let there = self.facts.turns.turns.values().filter(|turn| turn.device == device);
        let others: BTreeSet<Tenant> = there.map(|turn| turn.tenant).collect();
        if others.contains(&tenant) {
            return;
        }
        let class = self.class_of(tenant);
        let of_class = others.into_iter().filter(|other| self.class_of(*other) == class);
        let Some(least) = of_class.map(|other| self.used_by(other, device)).min() else { return };
        let [ahead, behind] = QUANTA.map(|quanta| self.divided(tenant, self.limits.turns.quantum * quanta));
        let used = self.facts.turns.used.entry((device, tenant)).or_insert(least);
        *used = (*used).clamp(least.saturating_sub(ahead), least + behind);
    }

    pub(super) fn rank(&self, turn: &TurnFacts) -> (Reverse<TenantClass>, u128, u64) {
        (Reverse(self.class_of(turn.tenant)), self.used_by(turn.tenant, turn.device), turn.arrived)
    }

    /// Records that a turn is admitted, and checks that its set fits beside those of the other owners.
    pub(crate) fn record_admitted_turn(&mut self, id: SessionId, number: u64) {
        self.queue_requested_turn();
        let turn = self.facts.turns.turns.get(&id).filter(|turn| turn.number == number && turn.is_waiting());
        let Some(turn) = turn.copied() else {
            return self.expect(TURN_HELD, false, || {
                format!("turn {number} of {id} is admitted, and does not wait")
            });
        };
        let beside = self.admitted_on(turn.device);
        if !beside.is_empty() {
            let obstacle = self.obstacle_beside(id, &turn, &beside);
            self.expect(TURN_OWNERS, obstacle.is_none(), || {
                format!("{turn:?} of {id} is admitted beside others, and their sets do not fit together")
            });
        }
        let own = self.facts.turns.sets.get(&(id, turn.set)).map(|set| set.parts.clone()).unwrap_or_default();
        if let Some(turn) = self.facts.turns.turns.get_mut(&id) {
            turn.stage = Stage::HandOver { admitted: self.facts.now };
        }
        self.facts.turns.admitted.push(id);
        self.add_own_call(id, number, own);
    }

    /// Checks that each turn that the event has admitted comes before those that wait.
    pub(super) fn check_admitted(&mut self) {
        let admitted = std::mem::take(&mut self.facts.turns.admitted);
        let turns = &self.facts.turns.turns;
        let wrong = admitted.iter().enumerate().find_map(|(at, id)| {
            let turn = turns.get(id)?;
            let later = admitted[at + 1..].iter().filter_map(|id| turns.get(id));
            let mut behind = later.chain(turns.values().filter(|other| other.is_waiting()));
            let passes = |other: &&TurnFacts| {
                other.device == turn.device
                    && self.rank(other) < self.rank(turn)
                    && (other.tenant == turn.tenant || !self.is_held_back(other))
            };
            let passed = behind.find(passes)?;
            let ranks = (self.rank(turn), self.rank(passed));
            Some(format!("{turn:?} is admitted before {passed:?}: {ranks:?}"))
        });
        self.expect(TURN_ORDER, wrong.is_none(), || wrong.unwrap_or_default());
    }
}
