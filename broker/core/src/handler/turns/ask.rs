//! Which owners are asked to yield, and when.
//!
//! An owner is asked only if its leaving makes room for a turn that waits: of the owners that may be asked, a choice
//! of which none can be left out. Owners whose quanta end last stay. Where no turn needs that, and the line has waited
//! for a quantum, one owner at a time is asked for the first waiter of the line.
//!
//! The choice is made anew whenever turns are looked at. An owner that is no longer in it is no longer asked.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vramd_types::{DeviceIndex, SessionId};

use super::admit::{Obstacle, earlier};
use crate::{
    broker::Broker,
    ledger::Place,
    limits::MOMENT,
    line::Need,
    tenancy::{TenantClass, TenantId},
    time::Time,
    turns::{Stage, Turn, divide},
};

impl Broker {
    /// Asks the owners of a device to yield that are due, and takes back what was asked of others. Returns when the
    /// next one is due.
    pub(super) fn ask_owners_on(&mut self, device: DeviceIndex) -> Option<Time> {
        let (now, wanted) = (self.shell.now, self.wanted_owners_on(device));
        let asked = self.sessions.turns.on(device).filter(|(_, turn)| turn.is_asked_for_others());
        let asked: BTreeSet<SessionId> = asked.map(|(id, _)| id).collect();
        for owner in asked.iter().filter(|owner| !wanted.contains_key(owner)) {
            self.withdraw_ask(*owner);
        }
        let mut next = None;
        for (owner, due) in wanted.into_iter().filter(|(owner, _)| !asked.contains(owner)) {
            match due <= now {
                true => self.ask_to_yield(owner, false),
                false => next = earlier(next, Some(due)),
            }
        }
        next
    }

    /// The owners that have to yield, each with the time at which it is asked.
    fn wanted_owners_on(&self, device: DeviceIndex) -> BTreeMap<SessionId, Time> {
        let fronts = self.fronts_on(device);
        let next = fronts.next.and_then(|(id, obstacle)| Some((id, obstacle?)));
        let waiting = fronts.limited.into_iter().map(|id| (id, Obstacle::Limit)).chain(next);
        let mut wanted = BTreeMap::new();
        for (id, obstacle) in waiting {
            let mut staying = self.admitted_on(device);
            staying.retain(|other| !wanted.contains_key(other));
            let found = self.owners_in_the_way(id, obstacle, staying);
            wanted.extend(found);
        }
        if wanted.is_empty() {
            wanted.extend(self.owner_for_the_line(device));
        }
        wanted
    }

    /// The owners that have to yield for a waiting turn, so that it meets this obstacle no more.
    fn owners_in_the_way(
        &self,
        id: SessionId,
        obstacle: Obstacle,
        mut staying: BTreeSet<SessionId>,
    ) -> Vec<(SessionId, Time)> {
        let Some(turn) = self.sessions.turns.get(id) else { return Vec::new() };
        let class = self.tenants.standing(turn.tenant).class;
        let candidate = |owner: &SessionId| {
            let held = self.sessions.turns.get(*owner)?;
            let due = self.due_for(held, class, Some(turn.tenant))?;
            Some((held.is_asked_for_others(), Reverse(due), *owner))
        };
        let mut candidates: Vec<_> = staying.iter().filter_map(candidate).collect();
        candidates.sort_unstable();
        let meets = |beside: &BTreeSet<SessionId>| match self.obstacle_beside(id, turn, beside) {
            Some(found) => found == obstacle || obstacle == Obstacle::Room,
            None => false,
        };
        candidates.iter().for_each(|(.., owner)| _ = staying.remove(owner));
        if meets(&staying) {
            return Vec::new();
        }
        let mut wanted = Vec::new();
        for (_, Reverse(due), owner) in candidates {
            staying.insert(owner);
            let is_needed = meets(&staying);
            planted!(self, TurnAskedInVain => is_needed = true);
            if is_needed {
                staying.remove(&owner);
                wanted.push((owner, due));
            }
        }
        wanted
    }

    /// The owner that has to yield for the line: what its first waiter lacks is not known in sets.
    fn owner_for_the_line(&self, device: DeviceIndex) -> Option<(SessionId, Time)> {
        let owners = || self.sessions.turns.on(device).filter(|(_, turn)| turn.granted().is_some());
        owners().next()?;
        let (since, need) = self.first_need_on(device)?;
        let class = self.tenants.standing(need.footprint.tenant).class;
        let is_over_limit = self.is_over_limit_with(&need);
        let may_help = |turn: &Turn| !is_over_limit || turn.tenant == need.footprint.tenant;
        let candidates = owners().filter(|(_, turn)| may_help(turn)).filter_map(|(id, turn)| {
            Some((!turn.is_asked_for_others(), self.due_for(turn, class, None)?, id))
        });
        let (is_new, due, owner) = candidates.min()?;
        let (now, quantum) = (self.shell.now, self.config.limits.turns.quantum);
        Some(match is_new {
            false => (owner, due),
            // It may need no more than is leaving.
            true if self.line.room.is_leaving(device) => (owner, due.max(now.after(quantum))),
            true => (owner, due.max(since.after(quantum))),
        })
    }

    fn is_over_limit_with(&self, need: &Need) -> bool {
        let tenant = need.footprint.tenant;
        let account = self.ledger.account(tenant, Place::device(need.footprint.device));
        account.is_some_and(|account| {
            self.charged_without_cached(tenant, need.footprint.device, &account)
                .saturating_add(need.footprint.size)
                > account.limit
        })
    }

    /// When an owner may be asked to yield for a waiter of that class and, if a turn waits, of that tenant. `None` is
    /// never: for a lower class.
    ///
    /// An owner keeps its turn for another quantum if its tenant has then still had no more time than that of the
    /// waiting turn. It is judged again a quantum later, if not before.
    fn due_for(&self, owner: &Turn, class: TenantClass, waiting: Option<TenantId>) -> Option<Time> {
        let Stage::Held { granted, asked } = owner.stage else { return None };
        let (now, limits) = (self.shell.now, &self.config.limits.turns);
        let own = self.tenants.standing(owner.tenant).class;
        if class < own {
            return None;
        }
        if let Some(asked) = asked.filter(|asked| !asked.by_operator) {
            return Some(asked.at);
        }
        if class > own {
            return Some(granted.after(limits.min_quantum.min(limits.quantum)));
        }
        let due = granted.after(limits.quantum);
        let used = |tenant: TenantId, more| {
            let weight = self.tenants.standing(tenant).weight;
            self.sessions
                .turns
                .used_by(tenant, owner.device, now, weight)
                .saturating_add(divide(more, weight))
        };
        let goes_on = |waiting: TenantId| {
            waiting != owner.tenant && used(owner.tenant, limits.quantum) <= used(waiting, Duration::ZERO)
        };
        if due > now || !waiting.is_some_and(goes_on) {
            return Some(due);
        }
        let quanta = now.since(granted).as_micros().checked_div(limits.quantum.as_micros()).unwrap_or(0);
        let judged =
            limits.quantum.saturating_mul(u32::try_from(quanta).unwrap_or(u32::MAX).saturating_add(1));
        Some(granted.after(judged).max(now.after(MOMENT)))
    }
}
