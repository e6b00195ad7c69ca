//! Advice on which parts leave first. A part leaves its device for a waiter only if no other part of its tenant there
//! ranks lower, by what their owners say, and could certainly have left.

use std::collections::{BTreeMap, BTreeSet};

use broker_core::{
    Advice, AllocationView, Broker, MemoryClass, PartAdvice, PartRef, Retention, invariants::ADVISED_ORDER,
};
use vramd_types::AllocationId;

use crate::oracle::{
    Oracle,
    facts::{SessionFacts, Tenant},
    sessions::silences::Doubt,
};

/// A smaller one leaves first: needed, importance in percent, place in the order of classes.
type Rank = (bool, u8, u8);

fn rank(advice: PartAdvice) -> Rank {
    let class = match advice.class {
        Some(MemoryClass::Scratch) => 0,
        Some(MemoryClass::Weights) => 1,
        None => 2,
        Some(MemoryClass::Activations) => 3,
        Some(MemoryClass::Cache) => 4,
    };
    if advice.is_unneeded { (false, 0, 0) } else { (true, advice.importance.unwrap_or(50), class) }
}

impl Oracle {
    /// Applies advice that the core reports. It reports only what changes something.
    pub(crate) fn record_retention(&mut self, id: AllocationId, advice: Advice) {
        let Advice::Retain { parts, change } = advice else { return };
        let Some(allocation) = self.facts.allocations.get_mut(&id) else { return };
        let all = u32::try_from(allocation.part_count).unwrap_or(u32::MAX);
        let span = parts.map_or(0..all, |span| span.first.0..span.first.0 + span.count);
        let before = allocation.advice.clone();
        for index in span.clone() {
            let part = allocation.advice.entry(index).or_default();
            match change {
                Retention::Needed(is_needed) => part.is_unneeded = !is_needed,
                Retention::Importance(importance) => part.importance = importance,
                Retention::Class(class) => part.class = class,
            }
        }
        allocation.advice.retain(|_, advice| *advice != PartAdvice::default());
        let fits = before != allocation.advice && span.end <= all;
        self.expect(ADVISED_ORDER, fits, || format!("{id}: {advice:?} is reported, and it changes nothing"));
    }

    /// Ends the advice that a part is not needed on its device, which it left.
    fn end_unneeded(&mut self, part: PartRef) {
        let Some(allocation) = self.facts.allocations.get_mut(&part.allocation) else { return };
        if let Some(advice) = allocation.advice.get_mut(&part.part.0) {
            advice.is_unneeded = false;
            allocation.advice.retain(|_, advice| *advice != PartAdvice::default());
        }
    }

    /// Whether an answer shows the advice that stands.
    pub(crate) fn is_advice_shown(&self, view: &AllocationView) -> bool {
        let each = view.advice.iter().flat_map(|(span, advice)| {
            (span.first.0..span.first.0 + span.count).map(|index| (index, *advice))
        });
        let shown: BTreeMap<u32, PartAdvice> = each.collect();
        self.facts.allocations.get(&view.id).is_none_or(|allocation| allocation.advice == shown)
    }

    /// Checks a part of a tenant that begins to leave a device for a waiter, together with others.
    pub(crate) fn check_advised_order(
        &mut self,
        (part, tenant, device): (PartRef, Tenant, usize),
        leaving: &BTreeSet<PartRef>,
    ) {
        let own = self.rank_of(part);
        let spared = self.facts.advised_leavable.iter().find(|(other, of, on)| {
            let is_of_same = (*of, *on) == (tenant, device) && !leaving.contains(other);
            is_of_same && self.rank_of(*other) < own && self.can_certainly_leave(*other)
        });
        let spared = spared.map(|(other, ..)| *other);
        self.expect(ADVISED_ORDER, spared.is_none(), || {
            format!("{part:?} of tenant {tenant} leaves device {device}, and {spared:?} ranks lower and could leave")
        });
    }

    fn rank_of(&self, part: PartRef) -> Rank {
        let allocation = self.facts.allocations.get(&part.allocation);
        let advice = allocation.and_then(|it| it.advice.get(&part.part.0)).copied();
        rank(advice.unwrap_or_default())
    }

    /// A part that no session maps may have begun to leave before, in a way that is not reported: for pressure that
    /// fell, or ahead of a silent session.
    fn can_certainly_leave(&self, part: PartRef) -> bool {
        let maps = |session: &SessionFacts| session.mappings.contains_key(&part);
        self.facts.sessions.values().any(maps)
            && self.can_surely_leave(part)
            && self.doubt_about(part) == Doubt::Nothing
    }

    /// Records the parts that can certainly leave their devices after this event, of tenants that gave advice.
    pub(crate) fn record_advised_leavable(&mut self, broker: &Broker) {
        self.facts.advised_leavable.clear();
        for part in std::mem::take(&mut self.step.left_device) {
            self.end_unneeded(part);
        }
        let advised = self.facts.allocations.values().filter(|it| !it.advice.is_empty());
        let tenants: BTreeSet<_> = advised.map(|it| it.tenant).collect();
        if tenants.is_empty() {
            return;
        }
        let mut open = BTreeMap::new();
        let mut found = Vec::new();
        for part in self.facts.backings.keys().copied() {
            let Some((tenant, device, _)) = self.resident(part).filter(|(of, ..)| tenants.contains(of))
            else {
                continue;
            };
            let is_open = *open.entry(part.allocation).or_insert_with(|| Self::is_to_be_mapped(part, broker));
            if is_open && self.can_certainly_leave(part) {
                found.push((part, tenant, device));
            }
        }
        self.facts.advised_leavable = found;
    }
}
