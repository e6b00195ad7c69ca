//! Turns: sessions that find the descriptor budget spent are sent their parts in the order in which they began to
//! wait. Only the budget of its own tenant holds a session back behind a later one.
//!
//! The oracle does not see the turns of the core. It knows a session that still waited at the end of an event, and one
//! that certainly did not: it had not answered its last packet, or there was budget. If both hold for the same event,
//! the first session goes before the second.

use broker_core::{Broker, PartRef, invariants::FDS_TURNS};
use vramd_types::SessionId;

use crate::oracle::{
    Oracle,
    facts::{Facts, SessionFacts, Tenant},
};

/// A packet of descriptors that was sent in this event.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    to: SessionId,
    /// Tenants that had spent their own budgets.
    spent: Vec<Tenant>,
}

impl Facts {
    /// Descriptors in flight to all sessions, and to those of each tenant.
    pub(crate) fn all_in_flight(&self) -> (usize, Vec<usize>) {
        let mut by_tenant = vec![0; self.tenants.len()];
        for session in self.sessions.values() {
            by_tenant[session.tenant] += session.in_flight;
        }
        (by_tenant.iter().sum(), by_tenant)
    }

    /// Number of the last event after which the tenant had descriptor budget left.
    pub(crate) fn last_budget_of(&self, tenant: Tenant) -> u64 {
        self.budget_at.get(tenant).copied().unwrap_or_default()
    }
}

impl Oracle {
    /// Records a packet, before its descriptors count.
    pub(crate) fn record_packet(&mut self, to: SessionId) {
        if self.facts.any_starved {
            let max = self.limits.fds_in_flight_per_tenant_max;
            let tenants = 0..self.facts.tenants.len();
            let spent = tenants.filter(|tenant| self.facts.in_flight(Some(*tenant)) >= max).collect();
            self.step.packets.push(Packet { to, spent });
        }
    }

    /// Checks the packets of this event, and learns which sessions wait at its end.
    pub(crate) fn check_turns(&mut self, broker: &Broker) {
        let packets = std::mem::take(&mut self.step.packets);
        for (at, packet) in packets.iter().enumerate() {
            let Some(served) = self.facts.sessions.get(&packet.to) else { continue };
            let not_waiting = served.last_not_starved.max(self.facts.last_budget_of(served.tenant));
            let was_sent = |id: &SessionId| packets[..at].iter().any(|sent| sent.to == *id);
            let is_sent_later = |id: &SessionId| packets[at..].iter().any(|sent| sent.to == *id);
            let mut waiting = self.facts.sessions.iter().filter(|(id, it)| {
                **id != packet.to
                    && it.starved_since.is_some_and(|since| since <= not_waiting)
                    && !packet.spent.contains(&it.tenant)
                    && !was_sent(id)
            });
            let passed = waiting.find(|(id, it)| is_sent_later(id) || self.is_ready(it, broker));
            let passed = passed.map(|(id, it)| (*id, it.starved_since));
            self.expect(FDS_TURNS, passed.is_none(), || {
                format!("{} is sent descriptors before {passed:?}, which has waited for longer", packet.to)
            });
        }
        self.learn_starved(broker);
    }

    fn learn_starved(&mut self, broker: &Broker) {
        let clock = self.facts.clock;
        let (total, by_tenant) = self.facts.all_in_flight();
        let (max, own_max) = (self.limits.fds_in_flight_max, self.limits.fds_in_flight_per_tenant_max);
        let mut is_any_spent = false;
        for (tenant, spent) in by_tenant.iter().enumerate() {
            match total < max && *spent < own_max {
                true => self.facts.budget_at[tenant] = clock,
                false => is_any_spent = true,
            }
        }
        if !is_any_spent && !self.facts.any_starved {
            return;
        }
        let starves =
            |it: &SessionFacts| self.facts.budget_at[it.tenant] < clock && self.is_ready(it, broker);
        let alive = self.facts.sessions.iter().filter(|(_, it)| !it.gone);
        let states: Vec<_> = alive.map(|(id, it)| (*id, starves(it), it.in_flight > 0)).collect();
        self.facts.any_starved = false;
        for (id, is_starved, is_unanswered) in states {
            let Some(session) = self.facts.sessions.get_mut(&id) else { continue };
            session.starved_since = is_starved.then(|| session.starved_since.unwrap_or(clock));
            if is_unanswered {
                session.last_not_starved = clock;
            }
            self.facts.any_starved |= is_starved;
        }
    }

    /// Whether the session could be sent a part now, budgets aside.
    fn is_ready(&self, session: &SessionFacts, broker: &Broker) -> bool {
        let calls = session.pin_calls.values().filter(|call| !call.answered);
        let pinned = calls.flat_map(|call| &call.parts).filter(|part| session.away.contains(part));
        let pinned = pinned.filter(|part| !self.facts.fences.contains_key(part));
        let mut unsent = session.owed.iter().chain(pinned);
        let can_be_sent =
            |part: &PartRef| self.can_be_mapped_now(*part) && Self::is_to_be_mapped(*part, broker);
        session.in_flight == 0 && self.is_reachable(session) && unsent.any(can_be_sent)
    }
}
