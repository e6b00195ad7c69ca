//! Memory that was made for a session, or attached by it, is sent to it as soon as the budgets allow.

use broker_core::{AllocationState, Broker, PartRef, Target, invariants::SENT};
use vramd_types::{AllocationId, PartIndex, SessionId};

use crate::oracle::{Oracle, facts::Tenant};

impl Oracle {
    /// Records that the daemon is to send a session all parts that it does not map. Without a handle pin
    /// these are away until the session pins them. Returns them.
    pub(crate) fn owe(&mut self, to: SessionId, allocation: AllocationId, unpinned: bool) -> Vec<PartRef> {
        let Some(facts) = self.facts.allocations.get(&allocation) else { return Vec::new() };
        let (count, unpinned) = (facts.part_count, unpinned || (facts.unpinned && facts.owner == to));
        let Some(session) = self.facts.sessions.get_mut(&to) else { return Vec::new() };
        let parts = (0..).map(PartIndex).take(count).map(|part| PartRef { allocation, part });
        let has = |part: &PartRef| session.mappings.contains_key(part) || session.away.contains(part);
        let lacks: Vec<_> = parts.filter(|part| !has(part)).collect();
        match unpinned {
            true => session.away.extend(&lacks),
            false => session.owed.extend(&lacks),
        }
        lacks
    }

    /// Records that a session asks to detach: what it asks for after that is not undone by the answer. A part
    /// that is away and was never sent has no slot that could be given up.
    pub(crate) fn stop_owing(&mut self, to: SessionId, allocation: AllocationId) {
        if let Some(session) = self.facts.sessions.get_mut(&to) {
            let slots = &session.slots;
            let of_it = |part: &PartRef| part.allocation == allocation;
            let unsent = |part: &PartRef| of_it(part) && !slots.values().any(|of| of == part);
            self.step
                .owed_before
                .extend(session.owed.iter().filter(|part| of_it(part)).map(|part| (to, *part)));
            self.step
                .away_before
                .extend(session.away.iter().filter(|part| unsent(part)).map(|part| (to, *part)));
            session.owed.retain(|part| !of_it(part));
            session.away.retain(|part| !unsent(part));
        }
    }

    /// Restores what `stop_owing` removed: the detach was refused.
    pub(crate) fn restore_owed(&mut self) {
        for (to, part) in std::mem::take(&mut self.step.owed_before) {
            if let Some(session) = self.facts.sessions.get_mut(&to) {
                session.owed.insert(part);
            }
        }
        for (to, part) in std::mem::take(&mut self.step.away_before) {
            if let Some(session) = self.facts.sessions.get_mut(&to) {
                session.away.insert(part);
            }
        }
    }

    /// Records that the owner of a hashed allocation is to map its parts again, sealed or not. Parts off
    /// their device stay away, even if the driver has not ended a copy of them that was cancelled before the hash.
    pub(crate) fn owe_again(&mut self, allocation: AllocationId) {
        let Some(owner) = self.facts.allocations.get(&allocation).map(|it| it.owner) else { return };
        let lacks = self.owe(owner, allocation, false);
        let is_elsewhere = |part: &PartRef| !self.may_lie_on_device(*part) && !self.is_in_place(*part);
        let elsewhere: Vec<_> = lacks.into_iter().filter(is_elsewhere).collect();
        if let Some(session) = self.facts.sessions.get_mut(&owner) {
            for part in elsewhere.into_iter().filter(|part| session.owed.remove(part)) {
                session.away.insert(part);
            }
        }
    }

    /// Whether sessions that own or attached the part may map it: an allocation that is being freed or sealed
    /// cannot be mapped.
    pub(crate) fn is_to_be_mapped(part: PartRef, broker: &Broker) -> bool {
        let state = broker.show(&Target::Id(part.allocation)).map(|view| view.state);
        matches!(state, Ok(AllocationState::Open | AllocationState::Sealed))
    }

    /// Whether the part can be mapped now: it is where it can be mapped, is not being revoked, and is not
    /// about to leave.
    pub(crate) fn can_be_mapped_now(&self, part: PartRef) -> bool {
        let revoked = self.is_being_revoked(part) || self.is_being_evicted(part);
        let leaves = self.facts.departing.contains(&part) || self.facts.in_place_to_unmap.contains(&part);
        !(revoked || leaves || self.may_move(part) || self.is_off_device(part))
    }

    /// Checks that a session that can be reached, has answered everything and has budget left waits for no
    /// part that could be sent.
    pub fn check_deliveries(&mut self, broker: &Broker) {
        let sessions = self.facts.sessions.iter().filter(|(_, session)| {
            !session.owed.is_empty()
                && session.in_flight == 0
                && !(session.gone || session.ending)
                && self.facts.is_heard(session)
                && self.has_budget(session.tenant)
        });
        let waiting = sessions.flat_map(|(id, session)| session.owed.iter().map(move |part| (*id, *part)));
        let starved = |part: &PartRef| self.can_be_mapped_now(*part) && Self::is_to_be_mapped(*part, broker);
        let starved: Vec<_> = waiting.filter(|(_, part)| starved(part)).take(3).collect();
        self.expect(SENT, starved.is_empty(), || format!("never sent: {starved:?}"));
    }

    /// Whether one more descriptor may be in flight. Descriptors that a silent session has not received count
    /// until it is gone.
    pub(crate) fn has_budget(&self, tenant: Tenant) -> bool {
        let (all, own) = (self.facts.in_flight(None), self.facts.in_flight(Some(tenant)));
        all < self.limits.fds_in_flight_max && own < self.limits.fds_in_flight_per_tenant_max
    }
}
