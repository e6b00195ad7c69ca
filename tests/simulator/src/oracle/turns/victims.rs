//! Parts of working sets leave a device in the order of their turns: first those of the set whose turn comes last.

use std::{cell::LazyCell, collections::BTreeSet};

use broker_core::{Broker, PartRef, TenantClass, invariants::TURN_VICTIMS};
use vramd_types::AllocationId;

use crate::oracle::{Oracle, facts::Tenant};

/// When the turn of a set comes. A smaller one comes sooner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NextTurn {
    Now,
    /// It waits with this rank, which [`Oracle::rank`] gives.
    Waits(std::cmp::Reverse<TenantClass>, u128, u64),
    Never,
}

impl Oracle {
    /// When the turn of an allocation's set comes, the soonest if it has several. `None` if it is of no set there.
    fn next_turn(&self, id: AllocationId, device: usize) -> Option<NextTurn> {
        let turns = &self.facts.turns;
        let of_sets =
            turns.sets.iter().filter(|(_, set)| set.device == device && set.allocations.contains(&id));
        let next = of_sets.map(|((session, number), _)| {
            match turns.turns.get(session).filter(|turn| turn.set == *number) {
                Some(turn) if turn.is_waiting() => {
                    let (class, used, arrived) = self.rank(turn);
                    NextTurn::Waits(class, used, arrived)
                }
                Some(_) => NextTurn::Now,
                None => NextTurn::Never,
            }
        });
        next.min()
    }

    /// Whether its turn may decide when the part leaves, before advice and sequences: sessions take turns on the device, or
    /// did before the event.
    pub(crate) fn leaves_by_turn(&self, part: PartRef, device: usize) -> bool {
        let turns = &self.facts.turns;
        let takes_turns =
            turns.taken_on.contains(&device) || turns.turns.values().any(|turn| turn.device == device);
        takes_turns
            && turns
                .sets
                .values()
                .any(|set| set.device == device && set.allocations.contains(&part.allocation))
    }

    /// Records when the turns of all sets come after this event, and their parts that can certainly leave their devices.
    pub(crate) fn record_leavable_of_sets(&mut self, broker: &Broker) {
        self.facts.turns.leavable.clear();
        self.facts.turns.next_before.clear();
        self.facts.turns.ended.clear();
        self.facts.turns.taken_on = self.facts.turns.turns.values().map(|turn| turn.device).collect();
        if self.facts.turns.turns.is_empty() {
            return;
        }
        let sets = self.facts.turns.sets.values();
        let of_sets = sets.flat_map(|set| set.allocations.iter().map(|id| (*id, set.device)));
        let next = of_sets.filter_map(|(id, device)| Some(((id, device), self.next_turn(id, device)?)));
        self.facts.turns.next_before = next.collect();
        let used = self.used_parts();
        let parts = self.facts.turns.sets.values().flat_map(|set| set.parts.iter().copied());
        let mut found = Vec::new();
        for part in parts.collect::<BTreeSet<PartRef>>() {
            let Some((tenant, device, _)) = self.resident(part) else { continue };
            let is_open = Self::is_to_be_mapped(part, broker);
            if is_open && self.facts.backings.contains_key(&part) && self.can_certainly_leave(part, &used) {
                found.push((part, tenant, device));
            }
        }
        self.facts.turns.leavable = found;
    }

    /// Checks a part that begins to leave a device for a waiter, together with others. The event may change turns before or
    /// after the choice, so another part must have been a better choice by both.
    pub(crate) fn check_turn_order(
        &mut self,
        (part, tenant, device): (PartRef, Tenant, usize),
        leaving: &BTreeSet<PartRef>,
        broker: &Broker,
    ) {
        let is_unsure = self.step.quotas_changed || self.step.settings_changed || self.facts.extents_ran_out;
        // A tenant at its limit gives up its own memory.
        let (_, limit) = self.quota_now(tenant, device);
        let wants = self.wanted_bytes(tenant, device, broker);
        if is_unsure || self.facts.charged(tenant, device).saturating_add(wants) > limit {
            return;
        }
        let class = self.class_of(tenant);
        let next_before =
            |part: PartRef| self.facts.turns.next_before.get(&(part.allocation, device)).copied();
        let (Some(own), Some(before)) = (self.next_turn(part.allocation, device), next_before(part)) else {
            return;
        };
        let used = LazyCell::new(|| self.used_parts());
        let known = self.facts.turns.leavable.iter().copied();
        let known = known.filter(|(other, ..)| next_before(*other).is_some_and(|next| next > before));
        // The event begins with the end of a turn, so all its choices come later.
        let sets = self.facts.turns.ended.iter().filter_map(|id| self.facts.turns.sets.get(id));
        let yielded = sets.flat_map(|set| &set.parts).filter_map(|part| {
            let (of, on, _) = self.resident(*part)?;
            Some((*part, of, on))
        });
        let spared = known.chain(yielded).find(|(other, of, on)| {
            *on == device
                && self.class_of(*of) == class
                && self.next_turn(other.allocation, device).is_some_and(|next| next > own)
                && !leaving.contains(other)
                && !self.facts.prefetches.is_named(*other)
                && !self.facts.prefetches.sequences.is_named(*other)
                && self.facts.backings.contains_key(other)
                && Self::is_to_be_mapped(*other, broker)
                && self.can_certainly_leave(*other, &used)
                && self.is_surely_above_guarantee(*other, *of, device)
                && self.resident(*other).is_some()
        });
        drop(used);
        self.expect(TURN_VICTIMS, spared.is_none(), || {
            format!("{part:?} of tenant {tenant} leaves device {device} with {own:?}, and {spared:?} stays")
        });
    }
}
