//! Advice on which parts leave first. A part leaves its device for a waiter only if no other part of its tenant there
//! ranks lower and could certainly have left. Parts rank by what an operator says, or else by what their owners say
//! unless an operator forbids it.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
};

use broker_core::{
    Adviser, AllocationView, Broker, MemoryClass, PartAdvice, PartNeed, PartRef, PartSpan, Pattern, Preset,
    Retention, Tier, Time, invariants::ADVISED_ORDER,
};
use vramd_types::AllocationId;

use crate::oracle::{Oracle, facts::Tenant, line::waiting::UsedParts, sessions::silences::Doubt};

/// All advice for one part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Given {
    owner: PartAdvice,
    /// It counts alone.
    operator: Option<PartAdvice>,
}

impl Given {
    fn each(&self) -> impl Iterator<Item = PartAdvice> {
        [Some(self.owner), self.operator].into_iter().flatten()
    }

    fn each_mut(&mut self) -> impl Iterator<Item = &mut PartAdvice> {
        [Some(&mut self.owner), self.operator.as_mut()].into_iter().flatten()
    }

    fn apply(&mut self, by: Adviser, told: Option<Retention>, now: Time) {
        match (by, told) {
            (Adviser::Owner, Some(told)) => change(&mut self.owner, told, now),
            (Adviser::Operator, Some(told)) => change(self.operator.get_or_insert_default(), told, now),
            (Adviser::Owner, None) => {}
            (Adviser::Operator, None) => self.operator = None,
        }
    }
}

/// Ends what has ended by then, and forgets parts without advice.
fn settle(advice: &mut BTreeMap<u32, Given>, now: Time) {
    advice.values_mut().flat_map(Given::each_mut).for_each(|it| *it = standing(*it, now));
    advice.retain(|_, given| *given != Given::default());
}

/// A smaller one leaves first: need, location, importance in percent, place in the order of classes, whether it is
/// written.
type Rank = (u8, u8, u8, u8, bool);

fn rank(advice: PartAdvice) -> Rank {
    if advice.need == PartNeed::Unneeded {
        return (0, 0, 0, 0, false);
    }
    let class = match advice.class {
        Some(MemoryClass::Scratch) => 0,
        Some(MemoryClass::Weights) => 1,
        None => 2,
        Some(MemoryClass::Activations) => 3,
        Some(MemoryClass::Cache) => 4,
    };
    let need = if advice.need == PartNeed::Unknown { 1 } else { 2 };
    let location = match advice.location {
        Some(Tier::Host | Tier::Disk) => 0,
        None => 1,
        Some(Tier::Device) => 2,
    };
    (need, location, advice.importance.unwrap_or(50), class, !advice.is_read_mostly)
}

/// The advice as it stands at that time.
fn standing(advice: PartAdvice, now: Time) -> PartAdvice {
    match advice.need {
        PartNeed::Soon { until, .. } if now >= until => PartAdvice { need: PartNeed::Unknown, ..advice },
        _ => advice,
    }
}

fn change(part: &mut PartAdvice, change: Retention, now: Time) {
    match change {
        Retention::Needed(true) => part.need = PartNeed::Unknown,
        Retention::Needed(false) => part.need = PartNeed::Unneeded,
        Retention::NeededWithin(delay) => {
            part.need = PartNeed::Soon { at: now.after(delay), until: now.after(delay * 2) };
        }
        Retention::Importance(importance) => part.importance = importance,
        Retention::Class(class) => part.class = class,
        Retention::Location(location) => part.location = location,
        Retention::ReadMostly(is_read_mostly) => part.is_read_mostly = is_read_mostly,
        Retention::Pattern(pattern) => part.pattern = pattern,
        Retention::Preset(preset) => {
            let (class, location, pattern) = match preset {
                Preset::Weights => (MemoryClass::Weights, None, None),
                Preset::KvCache => (MemoryClass::Cache, Some(Tier::Device), None),
                Preset::Activations => (MemoryClass::Activations, None, None),
                Preset::Staging => (MemoryClass::Scratch, Some(Tier::Host), Some(Pattern::Sequential)),
            };
            (part.class, part.location, part.pattern) = (Some(class), location, pattern);
            part.is_read_mostly = preset == Preset::Weights;
        }
    }
}

/// The index in `pattern_uses`, for a pattern with an order.
fn course(advice: PartAdvice) -> Option<usize> {
    match advice.pattern? {
        Pattern::Sequential | Pattern::Strided | Pattern::Window => Some(0),
        Pattern::Loop => Some(1),
        Pattern::Random | Pattern::Sparse => None,
    }
}

impl Oracle {
    /// Applies advice that the core reports; `None` is the end of an operator's. It reports only what changes something.
    pub(crate) fn record_retention(
        &mut self,
        id: AllocationId,
        parts: Option<PartSpan>,
        (by, told): (Adviser, Option<Retention>),
    ) {
        let Some(allocation) = self.facts.allocations.get_mut(&id) else { return };
        let all = u32::try_from(allocation.part_count).unwrap_or(u32::MAX);
        let span = parts.map_or(0..all, |span| span.first.0..span.first.0 + span.count);
        let now = self.facts.now;
        settle(&mut allocation.advice, now);
        let before = allocation.advice.clone();
        for index in span.clone() {
            allocation.advice.entry(index).or_default().apply(by, told, now);
        }
        settle(&mut allocation.advice, now);
        let is_of_pattern = told.is_none_or(|it| matches!(it, Retention::Pattern(_) | Retention::Preset(_)));
        if allocation.advice.is_empty() || is_of_pattern {
            allocation.pattern_uses = [None; 2];
        }
        let fits = before != allocation.advice && span.end <= all;
        self.expect(ADVISED_ORDER, fits, || {
            format!("{id}: {told:?} by {by:?} for {parts:?} is reported, and it changes nothing")
        });
    }

    /// Whether advice that was accepted stands: the same advice would change nothing.
    pub(crate) fn stands(
        &self,
        id: AllocationId,
        parts: Option<PartSpan>,
        (by, told): (Adviser, Option<Retention>),
    ) -> bool {
        self.facts.allocations.get(&id).is_none_or(|allocation| {
            let all = u32::try_from(allocation.part_count).unwrap_or(u32::MAX);
            let span = parts.map_or(0..all, |span| span.first.0..span.first.0 + span.count);
            span.into_iter().all(|index| {
                let is = allocation.advice.get(&index).copied().unwrap_or_default();
                let mut again = is;
                again.apply(by, told, self.facts.now);
                is == again
            })
        })
    }

    /// Whether an operator or the configuration forbids the advice of the allocation's tenant.
    pub(crate) fn is_advice_forbidden(&self, id: AllocationId) -> bool {
        let tenant = self.facts.allocations.get(&id).map(|allocation| allocation.tenant);
        tenant.is_some_and(|tenant| self.standing_of(&self.facts.tenants[tenant]).advice.is_forbidden())
    }

    /// Ends the advice that a part is not needed on its device, which it left.
    fn end_unneeded(&mut self, part: PartRef) {
        self.end_need(part, |need| need == PartNeed::Unneeded);
    }

    /// A session was seen to use the part: it is no longer needed soon, and its patterns go on from there.
    pub(crate) fn record_advised_use(&mut self, part: PartRef) {
        let now = self.facts.now;
        if let Some(allocation) = self.facts.allocations.get_mut(&part.allocation)
            && let Some(given) = allocation.advice.get(&part.part.0)
        {
            let courses: BTreeSet<usize> = given.each().filter_map(course).collect();
            for course in courses {
                let last = &mut allocation.pattern_uses[course];
                let before = last.filter(|(at, _)| *at == now).map(|(_, furthest)| furthest);
                *last = Some((now, before.unwrap_or(0).max(part.part.0)));
            }
        }
        self.end_need(part, |need| matches!(need, PartNeed::Soon { .. }));
    }

    fn end_need(&mut self, part: PartRef, ends: impl Fn(PartNeed) -> bool) {
        let now = self.facts.now;
        let Some(allocation) = self.facts.allocations.get_mut(&part.allocation) else { return };
        let Some(given) = allocation.advice.get_mut(&part.part.0) else { return };
        let mut is_ended = false;
        for advice in given.each_mut().filter(|it| ends(it.need)) {
            advice.need = PartNeed::Unknown;
            is_ended = true;
        }
        if !is_ended {
            return;
        }
        settle(&mut allocation.advice, now);
        if allocation.advice.is_empty() {
            allocation.pattern_uses = [None; 2];
        }
    }

    /// Whether an answer shows the advice that stands, by whom, and whether it counts.
    pub(crate) fn is_advice_shown(&self, view: &AllocationView) -> bool {
        let each = view.advice.iter().flat_map(|view| {
            let span = view.parts.first.0..view.parts.first.0 + view.parts.count;
            span.map(|index| ((index, view.by), (view.advice, view.counts)))
        });
        let shown: BTreeMap<(u32, Adviser), (PartAdvice, bool)> = each.collect();
        let is_forbidden = self.is_advice_forbidden(view.id);
        let now = self.facts.now;
        self.facts.allocations.get(&view.id).is_none_or(|allocation| {
            let mut stands = BTreeMap::new();
            for (index, given) in &allocation.advice {
                let owner = standing(given.owner, now);
                if owner != PartAdvice::default() {
                    let counts = given.operator.is_none() && !is_forbidden;
                    stands.insert((*index, Adviser::Owner), (owner, counts));
                }
                if let Some(operator) = given.operator {
                    stands.insert((*index, Adviser::Operator), (standing(operator, now), true));
                }
            }
            stands == shown
        })
    }

    /// Checks a part of a tenant that begins to leave a device, together with others. `may_leave` says which parts may
    /// certainly leave for the same.
    pub(crate) fn check_advised_order(
        &mut self,
        (part, tenant, device): (PartRef, Tenant, usize),
        leaving: &BTreeSet<PartRef>,
        may_leave: impl Fn(&Self, PartRef) -> bool,
    ) {
        let own = self.rank_of(part);
        let sequences = &self.facts.prefetches.sequences;
        if sequences.is_named(part) || self.leaves_by_turn(part, device) {
            return;
        }
        let used = LazyCell::new(|| self.used_parts());
        let spared = self.facts.advised_leavable.iter().find(|(other, of, on)| {
            let is_of_same = (*of, *on) == (tenant, device) && !leaving.contains(other);
            let is_before = self.rank_of(*other) < own || self.comes_before_by_pattern(*other, part);
            // A part that a request brings does not leave for others.
            let is_kept = self.facts.prefetches.is_named(*other) || sequences.is_named(*other);
            is_of_same
                && !is_kept
                && !self.leaves_by_turn(*other, device)
                && is_before
                && self.can_certainly_leave(*other, &used)
                && may_leave(self, *other)
        });
        let spared = spared.map(|(other, ..)| *other);
        drop(used);
        self.expect(ADVISED_ORDER, spared.is_none(), || {
            format!("{part:?} of tenant {tenant} leaves device {device}, and {spared:?} comes before it and could leave")
        });
    }

    /// Whether the part ranks no higher than the highest of these.
    pub(crate) fn ranks_no_higher(&self, part: PartRef, than: &[PartRef]) -> bool {
        than.iter().any(|other| self.rank_of(part) <= self.rank_of(*other))
    }

    /// The advice that counts for a part.
    fn advice_of(&self, part: PartRef) -> PartAdvice {
        let allocation = self.facts.allocations.get(&part.allocation);
        let given = allocation.and_then(|it| it.advice.get(&part.part.0)).copied().unwrap_or_default();
        let owner = match self.is_advice_forbidden(part.allocation) {
            true => PartAdvice::default(),
            false => given.owner,
        };
        standing(given.operator.unwrap_or(owner), self.facts.now)
    }

    /// Whether the part has a pattern, by the advice that counts.
    pub(crate) fn has_pattern(&self, part: PartRef) -> bool {
        self.advice_of(part).pattern.is_some()
    }

    /// Whether its pattern says that its parts are not used in an order.
    pub(crate) fn has_disorderly_pattern(&self, part: PartRef) -> bool {
        matches!(self.advice_of(part).pattern, Some(Pattern::Random | Pattern::Sparse))
    }

    /// The pattern by which a sum decides where the part is read, if it is not to lie on its device by advice.
    pub(crate) fn pattern_to_place_by(&self, part: PartRef) -> Option<Pattern> {
        let advice = self.advice_of(part);
        advice.pattern.filter(|_| advice.location != Some(Tier::Device))
    }

    fn rank_of(&self, part: PartRef) -> Rank {
        rank(self.advice_of(part))
    }

    /// Whether one of two parts of an allocation with the same rank leaves first by their pattern.
    fn comes_before_by_pattern(&self, one: PartRef, other: PartRef) -> bool {
        let (advice, course) = (self.advice_of(one), course(self.advice_of(one)));
        let is_same = |other: PartAdvice| rank(advice) == rank(other) && course == self::course(other);
        let Some(course) =
            course.filter(|_| one.allocation == other.allocation && is_same(self.advice_of(other)))
        else {
            return false;
        };
        let allocation = self.facts.allocations.get(&one.allocation);
        let used = allocation.and_then(|it| it.pattern_uses[course]).map(|(_, furthest)| furthest);
        let place = |part: PartRef| {
            let index = i64::from(part.part.0);
            let is_behind = used.is_some_and(|used| part.part.0 <= used);
            match (is_behind, course) {
                (true, 0) => (0, index),
                (true, _) => (0, -index),
                (false, _) => (1, -index),
            }
        };
        place(one) < place(other)
    }

    /// A part that no session maps may have begun to leave before, in a way that is not reported: for pressure that
    /// fell, or ahead of a silent session.
    pub(crate) fn can_certainly_leave(&self, part: PartRef, used: &UsedParts) -> bool {
        used.mapped.contains(part)
            && self.can_surely_leave(part, used)
            && self.doubt_about(part) == Doubt::Nothing
    }

    /// Records the parts that can certainly leave their devices after this event, of tenants that gave advice.
    pub(crate) fn record_advised_leavable(&mut self, broker: &Broker) {
        self.facts.advised_leavable.clear();
        for part in std::mem::take(&mut self.step.left_device) {
            self.end_unneeded(part);
        }
        let advised = self.facts.allocations.values().filter(|it| !it.advice.is_empty());
        let mut tenants: BTreeSet<_> = advised.map(|it| it.tenant).collect();
        tenants.extend(self.facts.prefetches.sequences.tenants());
        if tenants.is_empty() {
            return;
        }
        let mut open = BTreeMap::new();
        let mut found = Vec::new();
        let used = self.used_parts();
        for part in self.facts.backings.keys().copied() {
            let Some((tenant, device, _)) = self.resident(part).filter(|(of, ..)| tenants.contains(of))
            else {
                continue;
            };
            let is_open = *open.entry(part.allocation).or_insert_with(|| Self::is_to_be_mapped(part, broker));
            if is_open && self.can_certainly_leave(part, &used) {
                found.push((part, tenant, device));
            }
        }
        self.facts.advised_leavable = found;
    }
}
