//! Which turn is admitted next.
//!
//! Sets fit together if the line could serve pins of all their parts at once: by the capacity, the limits and the
//! guarantees. Memory that cannot leave, such as a fixed allocation, is not counted. So a hand-over that finds no room
//! for a whole quantum has owners asked to yield, as any waiter of the line does.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{AllocationId, Bytes, DeviceIndex, SessionId};

use crate::{
    broker::Broker,
    command::Notice,
    error::Refusal,
    follow_up::Fact,
    ledger::Place,
    limits::MOMENT,
    residency::{Allocation, AllocationState},
    tenancy::{OWN_CALLS, TenantId},
    time::Time,
    turns::{Stage, Turn, WorkingSet},
};

/// Why a set does not fit beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// A tenant that is charged for a part of it would be above its limit.
    Limit,
    /// The device lacks room.
    Room,
}

/// The waiting turns of a device that owners may have to yield for.
#[derive(Debug, Default)]
pub(super) struct Fronts {
    /// Of each tenant that its limit holds back, the first.
    pub(super) limited: Vec<SessionId>,
    /// The first of the others, with what keeps it from being admitted.
    pub(super) next: Option<(SessionId, Option<Obstacle>)>,
}

impl Broker {
    /// Admits all turns that can be, asks owners to yield that are due, and sets the timer for the next deadline.
    pub(crate) fn advance_turns(&mut self) {
        self.take_turn_answers();
        self.refuse_late_turns();
        self.sessions.turns.forget_unwanted();
        let mut next = None;
        for device in self.sessions.turns.devices() {
            while self.admit_next_on(device) {}
            next = earlier(next, self.ask_owners_on(device));
        }
        next = earlier(next, self.pursue_asked());
        let not_granted = self.sessions.turns.iter().filter(|(_, turn)| turn.granted().is_none());
        let deadline = not_granted.filter_map(|(_, turn)| turn.until).min();
        self.set_turn_alarm(earlier(next, deadline.map(|until| until.after(MOMENT))));
        if self.sessions.turns.has_waiting() {
            self.follow_ups.push(Fact::NextTurnWaits);
        }
    }

    /// Admits the first waiting turn of a device, or refuses it. Returns whether another may follow.
    fn admit_next_on(&mut self, device: DeviceIndex) -> bool {
        let next = self.fronts_on(device).next;
        planted!(self, TurnStarved => next = self.last_turn_waiting(device).map(|id| (id, self.obstacle_of(id))));
        let Some((id, obstacle)) = next else { return false };
        planted!(self, TurnOwnersTwo => obstacle = None);
        let turn = self.sessions.turns.get(id).copied().filter(|_| obstacle.is_none());
        if let Some(turn) = turn {
            self.admit_turn(id, &turn);
        }
        turn.is_some()
    }

    /// Finds the turns that come next. A turn that a limit holds back lets those of other tenants pass.
    pub(super) fn fronts_on(&self, device: DeviceIndex) -> Fronts {
        let ranked =
            self.sessions.turns.ranked_on(device, self.shell.now, |tenant| self.tenants.standing(tenant));
        let (mut held_back, mut fronts) = (BTreeSet::new(), Fronts::default());
        for id in ranked {
            let Some(tenant) = self.sessions.turns.get(id).map(|turn| turn.tenant) else { continue };
            if held_back.contains(&tenant) {
                continue;
            }
            match self.obstacle_of(id) {
                Some(Obstacle::Limit) => {
                    held_back.insert(tenant);
                    fronts.limited.push(id);
                }
                obstacle => {
                    fronts.next = Some((id, obstacle));
                    break;
                }
            }
        }
        fronts
    }

    /// Returns why a turn is not admitted now, if so. A set that is alone waits in the line, as any pin does.
    fn obstacle_of(&self, id: SessionId) -> Option<Obstacle> {
        let turn = self.sessions.turns.get(id)?;
        let admitted = self.admitted_on(turn.device);
        if admitted.is_empty() {
            return None;
        }
        self.obstacle_beside(id, turn, &admitted)
    }

    /// The sessions whose turns are admitted.
    pub(super) fn admitted_on(&self, device: DeviceIndex) -> BTreeSet<SessionId> {
        self.sessions.turns.on(device).filter(|(_, turn)| !turn.is_waiting()).map(|(id, _)| id).collect()
    }

    fn admit_turn(&mut self, id: SessionId, turn: &Turn) {
        let ended = Refusal::RequestInvalid { field: "set", problem: "the working set has ended" };
        let set = self.sessions.turns.set((id, turn.set)).ok_or(ended);
        let checked = set.and_then(|set| {
            let parts = self.parts_of_set(set)?;
            self.check_pinnable(id, &parts)?;
            Ok((parts, self.bytes_of_set(set), set.name.clone()))
        });
        let (parts, bytes, set) = match checked {
            Ok(checked) => checked,
            Err(refusal) => return self.refuse_turn(id, refusal),
        };
        if let Some(turn) = self.sessions.turns.get_mut(id) {
            turn.stage = Stage::HandOver { admitted: self.shell.now };
        }
        self.push_notice(Notice::TurnAdmitted {
            session: id,
            turn: turn.number,
            tenant: self.tenants.shared(turn.tenant),
            device: turn.device,
            set,
            bytes,
            since: turn.requested,
        });
        self.begin_own_call((id, OWN_CALLS.saturating_add(turn.number)), parts);
        planted!(self, TurnGrantedEarly => self.grant_turn(id));
    }

    /// Returns why the set of a turn does not fit beside those of certain other turns, if so.
    pub(super) fn obstacle_beside(
        &self,
        id: SessionId,
        turn: &Turn,
        beside: &BTreeSet<SessionId>,
    ) -> Option<Obstacle> {
        let own = self.sessions.turns.set((id, turn.set))?;
        let others = beside.iter().filter_map(|other| self.set_of_turn(*other));
        // Sets may share allocations.
        let members: BTreeMap<AllocationId, (TenantId, Bytes)> = others
            .chain([own])
            .flat_map(|set| self.members_of(set))
            .map(|(allocation, entry)| (allocation, (entry.tenant, entry.span)))
            .collect();
        let place = Place::device(turn.device);
        let mut sums: BTreeMap<TenantId, Bytes> = BTreeMap::new();
        for (tenant, bytes) in members.into_values().chain(self.allocations.managed.charged_in(place)) {
            let sum = sums.entry(tenant).or_default();
            *sum = sum.saturating_add(bytes);
        }
        let requested = || sums.iter().map(|(tenant, bytes)| (*tenant, *bytes));
        let own: BTreeSet<TenantId> = self.members_of(own).map(|(_, entry)| entry.tenant).collect();
        let of_own = requested().filter(|(tenant, _)| own.contains(tenant));
        if self.check_limits_on(turn.device, of_own).is_err() {
            return Some(Obstacle::Limit);
        }
        // The line knows best what is too large for a device.
        let is_alone = beside.is_empty();
        (!is_alone && self.check_capacity_on(turn.device, requested()).is_err()).then_some(Obstacle::Room)
    }

    pub(super) fn set_of_turn(&self, id: SessionId) -> Option<&WorkingSet> {
        self.sessions.turns.get(id).and_then(|turn| self.sessions.turns.set((id, turn.set)))
    }

    /// The allocations of a set that are not being freed.
    pub(super) fn members_of<'a>(
        &'a self,
        set: &'a WorkingSet,
    ) -> impl Iterator<Item = (AllocationId, &'a Allocation)> {
        let entries = set.members.iter().filter_map(|id| Some((*id, self.allocations.get(*id)?)));
        entries.filter(|(_, entry)| entry.state != AllocationState::Freeing)
    }

    pub(super) fn bytes_of_set(&self, set: &WorkingSet) -> Bytes {
        self.members_of(set).fold(Bytes::ZERO, |sum, (_, entry)| sum.saturating_add(entry.span))
    }

    /// Describes what a turn that is not granted waits for.
    pub(super) fn describe_turn_wait(&self, id: SessionId) -> String {
        let Some(turn) = self.sessions.turns.get(id) else { return String::new() };
        if !turn.is_waiting() {
            return self.describe_pin_wait((id, OWN_CALLS.saturating_add(turn.number)));
        }
        // A tenant does not learn how many sessions of others there are.
        format!("other sessions have turns on {}, or come first", self.uuid(turn.device))
    }
}

/// The earlier of two times, or the one that there is.
pub(super) fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    one.into_iter().chain(other).min()
}
