//! Which sets fit together, and which owners may be asked to yield for whom.

use std::collections::{BTreeMap, BTreeSet};

use broker_core::{PartRef, Time, WaitView, WaiterView, invariants::TURN_HELD};
use vramd_types::{AllocationId, SessionId};

use super::{TurnAsked, TurnFacts};
use crate::oracle::{Oracle, facts::Tenant};

/// Why a set does not fit beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// The limit of a tenant that pays for a part of it.
    Limit,
    Room,
}

impl Oracle {
    /// Whether a session has been granted a turn.
    pub(crate) fn has_turn(&self, id: SessionId) -> bool {
        self.facts.turns.turns.get(&id).is_some_and(|turn| turn.granted().is_some())
    }

    /// The sessions whose turns are admitted there.
    pub(super) fn admitted_on(&self, device: usize) -> BTreeSet<SessionId> {
        let there = self.facts.turns.turns.iter();
        there.filter(|(_, turn)| turn.device == device && !turn.is_waiting()).map(|(id, _)| *id).collect()
    }

    /// The allocations of a session's turn that are not freed.
    fn members_of(&self, id: SessionId, set: u64) -> impl Iterator<Item = AllocationId> {
        let members = self.facts.turns.sets.get(&(id, set)).map(|set| set.allocations.as_slice());
        let is_kept = |id: &AllocationId| {
            self.facts.allocations.get(id).is_some_and(|allocation| !allocation.freed && !allocation.leaving)
        };
        members.unwrap_or_default().iter().copied().filter(is_kept)
    }

    /// Returns why the set of a turn does not fit beside those of others, if so.
    pub(super) fn obstacle_beside(
        &self,
        id: SessionId,
        turn: &TurnFacts,
        beside: &BTreeSet<SessionId>,
    ) -> Option<Obstacle> {
        let owner_of = |id: AllocationId| self.facts.allocations.get(&id).map(|it| it.tenant);
        let own: BTreeSet<AllocationId> = self.members_of(id, turn.set).collect();
        let payers: BTreeSet<Tenant> = own.iter().filter_map(|id| owner_of(*id)).collect();
        let turns = beside.iter().filter_map(|of| Some((*of, self.facts.turns.turns.get(of)?.set)));
        let others = turns.flat_map(|(of, set)| self.members_of(of, set));
        let mut asked: BTreeMap<Tenant, u64> = BTreeMap::new();
        for allocation in others.chain(own.iter().copied()).collect::<BTreeSet<_>>() {
            let bytes: u64 = self.facts.parts_of(allocation).filter_map(|part| self.size_of(part)).sum();
            if let Some(tenant) = owner_of(allocation) {
                *asked.entry(tenant).or_default() += bytes;
            }
        }
        for (tenant, bytes) in self.managed_by_tenant(turn.device) {
            *asked.entry(tenant).or_default() += bytes;
        }
        let of_own = asked.iter().filter(|(tenant, _)| payers.contains(tenant));
        let of_own: BTreeMap<Tenant, u64> = of_own.map(|(tenant, bytes)| (*tenant, *bytes)).collect();
        match self.is_within_limits_on(turn.device, &of_own) {
            false => Some(Obstacle::Limit),
            true if beside.is_empty() || self.has_room_on(turn.device, &asked) => None,
            true => Some(Obstacle::Room),
        }
    }

    /// Whether a waiting turn stands behind a limit: its own, or that of an earlier one of its tenant.
    pub(super) fn is_held_back(&self, turn: &TurnFacts) -> bool {
        let beside = self.admitted_on(turn.device);
        let waiting = self.facts.turns.turns.iter().filter(|(_, other)| {
            other.is_waiting() && (other.tenant, other.device) == (turn.tenant, turn.device)
        });
        let mut earlier = waiting.filter(|(_, other)| self.rank(other) <= self.rank(turn));
        earlier.any(|(id, other)| self.obstacle_beside(*id, other, &beside) == Some(Obstacle::Limit))
    }

    /// Whether the part is of the set of the waiting turn that comes first on its device.
    pub(crate) fn is_of_next_turn(&self, part: PartRef) -> bool {
        let turns = self.facts.turns.turns.iter();
        let waiting: Vec<_> =
            turns.filter(|(_, turn)| turn.is_waiting() && !self.is_held_back(turn)).collect();
        waiting.iter().any(|(id, turn)| {
            let is_first = waiting
                .iter()
                .all(|(_, other)| other.device != turn.device || self.rank(turn) <= self.rank(other));
            is_first && self.members_of(**id, turn.set).any(|member| member == part.allocation)
        })
    }

    /// Whether an owner may be asked to yield now for a waiter of that tenant: it is of no higher class, its quantum
    /// is over, and another one would give its tenant more time than the waiting one has.
    pub(super) fn may_be_asked(&self, owner: &TurnFacts, waiting: Tenant, is_turn: bool) -> bool {
        let (limits, now) = (&self.limits.turns, self.facts.now);
        let (own, class) = (self.class_of(owner.tenant), self.class_of(waiting));
        let quantum = match class > own {
            true => limits.min_quantum.min(limits.quantum),
            false => limits.quantum,
        };
        let goes_on = || {
            let with = self.used_by(owner.tenant, owner.device) + self.divided(owner.tenant, limits.quantum);
            waiting != owner.tenant && with <= self.used_by(waiting, owner.device)
        };
        let is_over = owner.granted().is_some_and(|granted| granted.after(quantum) <= now);
        class >= own && is_over && !(is_turn && class == own && goes_on())
    }

    /// Checks that the owners which the event asks to yield make room by that.
    pub(super) fn check_all_asked(&mut self) {
        for id in std::mem::take(&mut self.facts.turns.asked) {
            let Some(owner) = self.facts.turns.turns.get(&id).copied() else { continue };
            let holds = self.makes_room(id, &owner) || self.serves_line(&owner);
            let now = self.facts.now;
            self.expect(TURN_HELD, holds, || {
                format!("{id} is asked at {now:?} to yield {owner:?}, which makes room for no one")
            });
        }
    }

    /// Whether a turn waits that fits only if this owner leaves, with all others that were asked.
    fn makes_room(&self, id: SessionId, owner: &TurnFacts) -> bool {
        let turns = &self.facts.turns.turns;
        let there = self.admitted_on(owner.device);
        let is_asked = |of: &SessionId| {
            turns.get(of).and_then(TurnFacts::asked).is_some_and(|asked: TurnAsked| !asked.by_operator)
        };
        let mut beside: BTreeSet<SessionId> = there.iter().copied().filter(|of| !is_asked(of)).collect();
        beside.insert(id);
        let mut waiting = turns.iter().filter(|(_, turn)| turn.is_waiting() && turn.device == owner.device);
        waiting.any(|(of, turn)| {
            let class = self.class_of(turn.tenant);
            let stays = |of: &SessionId| {
                turns.get(of).is_some_and(|it| it.granted().is_none() || self.class_of(it.tenant) > class)
            };
            let least: BTreeSet<SessionId> = there.iter().copied().filter(stays).collect();
            let before = self.obstacle_beside(*of, turn, &beside);
            self.may_be_asked(owner, turn.tenant, true)
                && before.is_some()
                && self.obstacle_beside(*of, turn, &least).is_none_or(|after| Some(after) != before)
        })
    }

    /// Whether the line has had a waiter of that device for a quantum.
    fn serves_line(&self, owner: &TurnFacts) -> bool {
        let uuid = &self.facts.places[owner.device].uuid;
        let is_late = |since: Time| since.after(self.limits.turns.quantum) <= self.facts.now;
        // A batch shows the first device that it needs, and may need others.
        let may_need =
            |wait: &WaitView| wait.device == *uuid || matches!(wait.waiter, WaiterView::Batch { .. });
        let waits = self.facts.waits.values().filter(|wait| may_need(wait) && is_late(wait.since));
        let tenants = waits.filter_map(|wait| self.facts.tenants.iter().position(|of| *of == wait.tenant));
        tenants.into_iter().any(|tenant| self.may_be_asked(owner, tenant, false))
    }
}
