//! Advice on the order in which parts leave a device.
//!
//! It orders only the parts of one tenant among themselves. The policy alone says which tenant is next to give up
//! memory, so no tenant keeps its memory at another one's cost.
//!
//! Owners advise, and operators may override them for some parts. Both kinds of advice are kept apart, so that the
//! owner's is there once the operator clears the other.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use vramd_types::{AllocationId, PartIndex};

use crate::{
    event::{Adviser, MemoryClass, PartRef, PartSpan, Pattern, Preset, Retention, Tier},
    tenancy::TenantId,
    time::Time,
    view::AdviceView,
};

/// The importance of a part without advice, in percent.
const IMPORTANCE: u8 = 50;

/// Advice on one part, of its owner or an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartAdvice {
    pub need: PartNeed,
    /// In percent.
    pub importance: Option<u8>,
    pub class: Option<MemoryClass>,
    /// The tier that it should lie in.
    pub location: Option<Tier>,
    pub is_read_mostly: bool,
    pub pattern: Option<Pattern>,
}

/// When a part is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartNeed {
    /// Not needed until it has left its device.
    Unneeded,
    #[default]
    Unknown,
    /// At that time. The advice ends at `until`.
    Soon { at: Time, until: Time },
}

/// Of two parts of a tenant, the one with the lower rank leaves first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    need: u8,
    location: u8,
    importance: u8,
    class: u8,
    is_written: bool,
}

/// How parts with a pattern take turns among those of their rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Course {
    /// The parts furthest behind the last use leave first, then those furthest ahead.
    Onward,
    /// The part of the last use leaves first, since it is needed again last; then those before it, and then those
    /// furthest ahead.
    Around,
}

impl PartAdvice {
    pub(crate) fn rank(self) -> Rank {
        let need = match self.need {
            // Nothing else counts for a part that is not needed.
            PartNeed::Unneeded => {
                return Rank { need: 0, location: 0, importance: 0, class: 0, is_written: false };
            }
            PartNeed::Unknown => 1,
            PartNeed::Soon { .. } => 2,
        };
        let location = match self.location {
            Some(Tier::Host | Tier::Disk) => 0,
            None => 1,
            Some(Tier::Device) => 2,
        };
        let class = match self.class {
            Some(MemoryClass::Scratch) => 0,
            Some(MemoryClass::Weights) => 1,
            None => 2,
            Some(MemoryClass::Activations) => 3,
            Some(MemoryClass::Cache) => 4,
        };
        let importance = self.importance.unwrap_or(IMPORTANCE);
        Rank { need, location, importance, class, is_written: !self.is_read_mostly }
    }

    /// In which order parts leave host memory for the disk: a lower one first.
    pub(crate) const fn rank_on_host(self) -> u8 {
        match self.location {
            Some(Tier::Disk) => 0,
            None | Some(Tier::Device) => 1,
            Some(Tier::Host) => 2,
        }
    }

    pub(crate) const fn course(self) -> Option<Course> {
        match self.pattern {
            Some(Pattern::Sequential | Pattern::Strided | Pattern::Window) => Some(Course::Onward),
            Some(Pattern::Loop) => Some(Course::Around),
            Some(Pattern::Random | Pattern::Sparse) | None => None,
        }
    }

    /// The advice without what has ended by then.
    #[must_use]
    pub(crate) fn at(self, now: Time) -> Self {
        match self.need {
            PartNeed::Soon { until, .. } if until <= now => Self { need: PartNeed::Unknown, ..self },
            _ => self,
        }
    }

    #[must_use]
    pub(crate) fn with(self, change: Retention, now: Time) -> Self {
        match change {
            Retention::Needed(true) => Self { need: PartNeed::Unknown, ..self },
            Retention::Needed(false) => Self { need: PartNeed::Unneeded, ..self },
            Retention::NeededWithin(delay) => {
                let at = now.after(delay);
                Self { need: PartNeed::Soon { at, until: at.after(delay) }, ..self }
            }
            Retention::Importance(importance) => Self { importance, ..self },
            Retention::Class(class) => Self { class, ..self },
            Retention::Location(location) => Self { location, ..self },
            Retention::ReadMostly(is_read_mostly) => Self { is_read_mostly, ..self },
            Retention::Pattern(pattern) => Self { pattern, ..self },
            Retention::Preset(preset) => self.with_preset(preset),
        }
    }

    /// Importance and need stay: they are about this memory, not about its use.
    fn with_preset(self, preset: Preset) -> Self {
        let Self { need, importance, .. } = self;
        let plain = |class| Self { need, importance, class: Some(class), ..Self::default() };
        match preset {
            Preset::Weights => Self { is_read_mostly: true, ..plain(MemoryClass::Weights) },
            Preset::KvCache => Self { location: Some(Tier::Device), ..plain(MemoryClass::Cache) },
            Preset::Activations => plain(MemoryClass::Activations),
            Preset::Staging => Self {
                location: Some(Tier::Host),
                pattern: Some(Pattern::Sequential),
                ..plain(MemoryClass::Scratch)
            },
        }
    }

    /// Says why the advice contradicts itself, for memory that is accessed in place or not.
    pub(crate) const fn contradiction(self, in_place: bool) -> Option<&'static str> {
        match self {
            Self { class: Some(MemoryClass::Scratch), is_read_mostly: true, .. } => {
                Some("scratch is soon overwritten, so it is not mostly read")
            }
            Self { location: Some(Tier::Device | Tier::Disk), .. } if in_place => Some(
                "memory that is accessed in place is used in the host, so it is preferred in no other tier",
            ),
            _ => None,
        }
    }
}

/// All advice on one part, by its giver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GivenAdvice {
    pub(crate) owner: PartAdvice,
    /// It counts alone, even if it says nothing.
    pub(crate) operator: Option<PartAdvice>,
}

impl GivenAdvice {
    /// The advice that counts.
    const fn in_effect(self, is_forbidden: bool) -> PartAdvice {
        match self.operator {
            Some(advice) => advice,
            None if is_forbidden => NOTHING,
            None => self.owner,
        }
    }

    pub(crate) fn by(self, adviser: Adviser) -> PartAdvice {
        match adviser {
            Adviser::Owner => self.owner,
            Adviser::Operator => self.operator.unwrap_or_default(),
        }
    }

    pub(crate) fn each(self) -> impl Iterator<Item = PartAdvice> {
        [Some(self.owner), self.operator].into_iter().flatten()
    }

    #[must_use]
    fn map(self, to: impl Fn(PartAdvice) -> PartAdvice) -> Self {
        Self { owner: to(self.owner), operator: self.operator.map(to) }
    }
}

/// Advice that says nothing.
const NOTHING: PartAdvice = PartAdvice {
    need: PartNeed::Unknown,
    importance: None,
    class: None,
    location: None,
    is_read_mostly: false,
    pattern: None,
};

/// A change of the advice for some parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdviceChange {
    ByOwner(Retention),
    ByOperator(Retention),
    /// The owner's advice counts again.
    Cleared,
}

impl AdviceChange {
    fn applied_to(self, given: GivenAdvice, now: Time) -> GivenAdvice {
        match self {
            Self::ByOwner(change) => GivenAdvice { owner: given.owner.with(change, now), ..given },
            Self::ByOperator(change) => {
                GivenAdvice { operator: Some(given.by(Adviser::Operator).with(change, now)), ..given }
            }
            Self::Cleared => GivenAdvice { operator: None, ..given },
        }
    }

    /// Whether parts may have another pattern afterwards.
    pub(crate) const fn is_of_pattern(self) -> bool {
        match self {
            Self::ByOwner(change) | Self::ByOperator(change) => {
                matches!(change, Retention::Pattern(_) | Retention::Preset(_))
            }
            Self::Cleared => true,
        }
    }
}

/// Parts in a row with the same advice: those before `end` that no earlier run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    end: u32,
    given: GivenAdvice,
}

#[derive(Debug)]
struct Advised {
    tenant: TenantId,
    /// They cover the allocation, and no two neighbours are equal.
    runs: Vec<Run>,
    /// For each course, the last use that was seen: when, and of which part. Of several at a time, the furthest on.
    last_used: BTreeMap<Course, (Time, u32)>,
}

impl Advised {
    /// The parts of each run, with their advice.
    fn spans(&self) -> impl Iterator<Item = (Range<u32>, GivenAdvice)> {
        let mut begin = 0;
        self.runs.iter().map(move |run| (std::mem::replace(&mut begin, run.end)..run.end, run.given))
    }

    /// The index of the run that begins with that part, which a longer run is split for.
    fn split_at(&mut self, part: u32) -> usize {
        let at = self.runs.partition_point(|run| run.end <= part);
        let begin = at.checked_sub(1).and_then(|before| self.runs.get(before)).map_or(0, |before| before.end);
        match self.runs.get(at).copied() {
            Some(run) if begin < part => {
                self.runs.insert(at, Run { end: part, ..run });
                at.saturating_add(1)
            }
            _ => at,
        }
    }

    /// Makes one run of neighbours with the same advice.
    fn join_runs(&mut self) {
        // The last of equal neighbours has the end of all.
        let mut runs: Vec<Run> = Vec::with_capacity(self.runs.len());
        for run in self.runs.drain(..) {
            match runs.last_mut().filter(|last| last.given == run.given) {
                Some(last) => last.end = run.end,
                None => runs.push(run),
            }
        }
        self.runs = runs;
    }
}

/// The advice for all parts of which the order of leaving was advised.
#[derive(Debug, Default)]
pub(crate) struct AdviceTable {
    advised: BTreeMap<AllocationId, Advised>,
    by_tenant: BTreeMap<TenantId, BTreeSet<AllocationId>>,
}

impl AdviceTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.advised.is_empty()
    }

    /// The advice that counts for a part, with the tenants whose advice is forbidden.
    pub(crate) fn of(&self, part: PartRef, is_forbidden: impl Fn(TenantId) -> bool) -> PartAdvice {
        match self.advised.get(&part.allocation) {
            Some(advised) => self.given_for(part).in_effect(is_forbidden(advised.tenant)),
            None => PartAdvice::default(),
        }
    }

    fn given_for(&self, part: PartRef) -> GivenAdvice {
        let advised = self.advised.get(&part.allocation);
        let run = advised
            .and_then(|advised| advised.runs.get(advised.runs.partition_point(|run| run.end <= part.part.0)));
        run.map(|run| run.given).unwrap_or_default()
    }

    /// All advice for the parts of a span, each once for parts in a row.
    pub(crate) fn within(&self, id: AllocationId, span: PartSpan) -> Vec<GivenAdvice> {
        let end = span.first.0.saturating_add(span.count);
        match self.advised.get(&id) {
            None => vec![GivenAdvice::default()],
            Some(advised) => {
                let spans =
                    advised.spans().filter(|(parts, _)| parts.start < end && parts.end > span.first.0);
                spans.map(|(_, given)| given).collect()
            }
        }
    }

    /// Changes the advice for a span of an allocation with that many parts. Returns whether anything is different.
    pub(crate) fn change(
        &mut self,
        (id, tenant): (AllocationId, TenantId),
        part_count: u32,
        span: PartSpan,
        (change, now): (AdviceChange, Time),
    ) -> bool {
        let whole = Run { end: part_count, given: GivenAdvice::default() };
        let made = || Advised { tenant, runs: vec![whole], last_used: BTreeMap::new() };
        let advised = self.advised.entry(id).or_insert_with(made);
        self.by_tenant.entry(tenant).or_default().insert(id);
        for run in &mut advised.runs {
            run.given = run.given.map(|advice| advice.at(now));
        }
        let from = advised.split_at(span.first.0);
        let to = advised.split_at(span.first.0.saturating_add(span.count));
        let mut changed = false;
        for run in advised.runs.get_mut(from..to).unwrap_or_default() {
            let before = run.given;
            run.given = change.applied_to(before, now);
            changed |= before != run.given;
        }
        if changed && change.is_of_pattern() {
            advised.last_used.clear();
        }
        advised.join_runs();
        if advised.runs.iter().all(|run| run.given == GivenAdvice::default()) {
            self.forget(id);
        }
        changed
    }

    /// Ends what is said about the need of a part, whether or not it counts, where `ends` says so.
    pub(crate) fn end_need(&mut self, part: PartRef, ends: impl Fn(PartNeed) -> bool, now: Time) {
        if !self.given_for(part).each().any(|advice| ends(advice.need)) {
            return;
        }
        let Some(advised) = self.advised.get_mut(&part.allocation) else { return };
        for run in &mut advised.runs {
            run.given = run.given.map(|advice| advice.at(now));
        }
        let from = advised.split_at(part.part.0);
        let to = advised.split_at(part.part.0.saturating_add(1));
        for run in advised.runs.get_mut(from..to).unwrap_or_default() {
            run.given = run.given.map(|advice| match ends(advice.need) {
                true => PartAdvice { need: PartNeed::Unknown, ..advice },
                false => advice,
            });
        }
        advised.join_runs();
        if advised.runs.iter().all(|run| run.given == GivenAdvice::default()) {
            self.forget(part.allocation);
        }
    }

    /// Records a use of a part: its patterns go on from there, also one that does not count now.
    pub(crate) fn record_use(&mut self, part: PartRef, now: Time) {
        let courses: BTreeSet<Course> = self.given_for(part).each().filter_map(PartAdvice::course).collect();
        let Some(advised) = self.advised.get_mut(&part.allocation) else { return };
        for course in courses {
            let last = advised.last_used.entry(course).or_default();
            *last = if last.0 < now { (now, part.part.0) } else { (now, last.1.max(part.part.0)) };
        }
    }

    pub(crate) fn forget(&mut self, id: AllocationId) {
        let Some(Advised { tenant, .. }) = self.advised.remove(&id) else { return };
        if let Some(of_tenant) = self.by_tenant.get_mut(&tenant) {
            of_tenant.remove(&id);
            if of_tenant.is_empty() {
                self.by_tenant.remove(&tenant);
            }
        }
    }

    /// The ranks that parts of a tenant may have, the lowest first. `None` if all have the same.
    pub(crate) fn ranks(&self, tenant: TenantId, is_forbidden: bool, now: Time) -> Option<BTreeSet<Rank>> {
        let advised = self.by_tenant.get(&tenant)?.iter().filter_map(|id| self.advised.get(id));
        let ranks =
            advised.flat_map(|it| &it.runs).map(|run| run.given.in_effect(is_forbidden).at(now).rank());
        Some(ranks.chain([PartAdvice::default().rank()]).collect())
    }

    /// The parts of an allocation of that rank and course, in the order in which they leave.
    pub(crate) fn on_course(
        &self,
        id: AllocationId,
        (rank, course): (Rank, Course),
        is_forbidden: bool,
        now: Time,
    ) -> impl Iterator<Item = PartRef> + use<> {
        let advised = self.advised.get(&id);
        // Parts from here on were not used in this pass.
        let ahead_from =
            advised.and_then(|it| it.last_used.get(&course)).map_or(0, |(_, part)| part.saturating_add(1));
        let spans: Vec<_> = advised.into_iter().flat_map(Advised::spans).collect();
        let spans = spans.into_iter().filter(move |(_, given)| {
            let advice = given.in_effect(is_forbidden).at(now);
            advice.course() == Some(course) && advice.rank() == rank
        });
        let parts: Vec<Range<u32>> = spans.map(|(parts, _)| parts).collect();
        let ahead = parts.clone().into_iter().rev().map(move |it| it.start.max(ahead_from)..it.end);
        let behind = parts.into_iter().map(move |it| it.start..it.end.min(ahead_from));
        let behind: Box<dyn Iterator<Item = u32>> = match course {
            Course::Onward => Box::new(behind.flatten()),
            Course::Around => Box::new(behind.rev().flat_map(Iterator::rev)),
        };
        let indices = behind.chain(ahead.flat_map(Iterator::rev));
        indices.map(move |part| PartRef { allocation: id, part: PartIndex(part) })
    }

    /// All advice for an allocation, in spans: for each of them the owner's, then the operator's that counts instead.
    pub(crate) fn spans(
        &self,
        id: AllocationId,
        is_forbidden: bool,
        now: Time,
    ) -> impl Iterator<Item = AdviceView> {
        let spans = self.advised.get(&id).into_iter().flat_map(Advised::spans);
        spans.flat_map(move |(parts, given)| {
            let GivenAdvice { owner, operator } = given.map(|advice| advice.at(now));
            let parts = PartSpan::new(parts.start, parts.end.saturating_sub(parts.start));
            let counts = operator.is_none() && !is_forbidden;
            let owner = AdviceView { parts, advice: owner, by: Adviser::Owner, counts };
            let owner = Some(owner).filter(|view| view.advice != PartAdvice::default());
            let operator =
                operator.map(|advice| AdviceView { parts, advice, by: Adviser::Operator, counts: true });
            owner.into_iter().chain(operator)
        })
    }

    /// The tenants with advice of owners, and none of operators.
    pub(crate) fn tenants_with_owners_alone(&self) -> impl Iterator<Item = TenantId> {
        let has_operators = |id: &AllocationId| {
            let runs = self.advised.get(id).map(|advised| &advised.runs);
            runs.is_some_and(|runs| runs.iter().any(|run| run.given.operator.is_some()))
        };
        self.by_tenant
            .iter()
            .filter(move |(_, ids)| !ids.iter().any(has_operators))
            .map(|(tenant, _)| *tenant)
    }

    pub(crate) fn allocations(&self) -> impl Iterator<Item = AllocationId> {
        self.advised.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use vramd_types::PartIndex;

    use super::*;
    use crate::tenancy::Tenants;

    const ID: AllocationId = AllocationId::from_raw(7);

    const PARTS: u32 = 10;

    fn tenant() -> TenantId {
        Tenants::default().intern("team-a")
    }

    fn change(table: &mut AdviceTable, first: u32, count: u32, change: Retention) -> bool {
        change_at(table, (first, count), change, 0)
    }

    fn change_at(
        table: &mut AdviceTable,
        (first, count): (u32, u32),
        change: Retention,
        micros: u64,
    ) -> bool {
        let at = Time::from_micros(micros);
        table.change((ID, tenant()), PARTS, PartSpan::new(first, count), (AdviceChange::ByOwner(change), at))
    }

    /// As an operator; `None` clears.
    fn overrule(table: &mut AdviceTable, first: u32, count: u32, change: Option<Retention>) -> bool {
        let change = change.map_or(AdviceChange::Cleared, AdviceChange::ByOperator);
        table.change((ID, tenant()), PARTS, PartSpan::new(first, count), (change, Time::START))
    }

    fn part(part: u32) -> PartRef {
        PartRef { allocation: ID, part: PartIndex(part) }
    }

    fn of(table: &AdviceTable, index: u32) -> PartAdvice {
        table.of(part(index), |_| false)
    }

    #[test]
    fn advice_is_for_its_span_alone_and_ends_with_its_withdrawal() {
        let mut table = AdviceTable::default();
        assert!(change(&mut table, 2, 3, Retention::Importance(Some(90))));
        assert!(!change(&mut table, 3, 1, Retention::Importance(Some(90))));
        assert!(change(&mut table, 4, 3, Retention::Needed(false)));
        let found: Vec<_> = (0..PARTS).map(|part| of(&table, part)).collect();
        let importance = [None, None, Some(90), Some(90), Some(90), None, None, None, None, None];
        assert_eq!(found.iter().map(|it| it.importance).collect::<Vec<_>>(), importance);
        let unneeded: Vec<_> =
            (0..PARTS).filter(|part| of(&table, *part).need == PartNeed::Unneeded).collect();
        assert_eq!(unneeded, [4, 5, 6]);
        let spans: Vec<_> =
            table.spans(ID, false, Time::START).map(|it| (it.parts.first.0, it.parts.count)).collect();
        assert_eq!(spans, [(2, 2), (4, 1), (5, 2)]);
        assert!(change(&mut table, 0, PARTS, Retention::Importance(None)));
        assert!(change(&mut table, 0, PARTS, Retention::Needed(true)));
        assert!(table.is_empty() && table.ranks(tenant(), false, Time::START).is_none());
    }

    #[test]
    fn need_ranks_before_location_importance_class_and_writes() {
        let none = PartAdvice::default();
        let soon = PartNeed::Soon { at: Time::START, until: Time::from_micros(1) };
        let prefers = |location| PartAdvice { location: Some(location), ..none };
        let important = |importance, class| PartAdvice { importance, class, ..none };
        let ascending = [
            PartAdvice {
                need: PartNeed::Unneeded,
                location: Some(Tier::Device),
                ..important(Some(100), Some(MemoryClass::Cache))
            },
            PartAdvice { importance: Some(100), ..prefers(Tier::Host) },
            important(Some(0), Some(MemoryClass::Cache)),
            important(None, Some(MemoryClass::Scratch)),
            important(None, Some(MemoryClass::Weights)),
            PartAdvice { is_read_mostly: true, ..none },
            none,
            important(Some(IMPORTANCE), Some(MemoryClass::Activations)),
            important(None, Some(MemoryClass::Cache)),
            important(Some(100), Some(MemoryClass::Scratch)),
            PartAdvice { importance: Some(0), ..prefers(Tier::Device) },
            PartAdvice { need: soon, ..prefers(Tier::Disk) },
        ];
        assert!(ascending.is_sorted_by(|a, b| a.rank() < b.rank()));
        assert_eq!(prefers(Tier::Host).rank(), prefers(Tier::Disk).rank());
    }

    #[test]
    fn need_ends_after_twice_its_time_and_later_advice_replaces_it() {
        let mut table = AdviceTable::default();
        let within = |micros| Retention::NeededWithin(std::time::Duration::from_micros(micros));
        assert!(change_at(&mut table, (2, 2), within(10), 100));
        let until = PartNeed::Soon { at: Time::from_micros(110), until: Time::from_micros(120) };
        assert_eq!((of(&table, 2).need, of(&table, 4).need), (until, PartNeed::Unknown));
        assert_eq!(of(&table, 2).at(Time::from_micros(119)).need, until);
        assert_eq!(of(&table, 2).at(Time::from_micros(120)), PartAdvice::default());
        assert_eq!(table.spans(ID, false, Time::from_micros(120)).count(), 0);
        assert!(change_at(&mut table, (2, 2), Retention::Needed(false), 110));
        assert_eq!(of(&table, 3).need, PartNeed::Unneeded);
        assert!(change_at(&mut table, (3, 1), within(5), 110));
        assert_eq!(
            of(&table, 3).need,
            PartNeed::Soon { at: Time::from_micros(115), until: Time::from_micros(120) }
        );
        // Advice that has ended is gone with the next change.
        assert!(!change_at(&mut table, (3, 1), Retention::Needed(true), 200));
        assert_eq!(table.spans(ID, false, Time::START).count(), 1);
    }

    #[test]
    fn patterns_order_parts_by_the_last_use_that_was_seen() {
        let order = |pattern, uses: &[(u32, u64)]| {
            let mut table = AdviceTable::default();
            change(&mut table, 1, 3, Retention::Pattern(Some(pattern)));
            change(&mut table, 5, 3, Retention::Pattern(Some(pattern)));
            for (index, micros) in uses {
                table.record_use(part(*index), Time::from_micros(*micros));
            }
            let course = of(&table, 1).course().expect("an order");
            let found = table.on_course(ID, (PartAdvice::default().rank(), course), false, Time::START);
            found.map(|part| part.part.0).collect::<Vec<_>>()
        };
        assert_eq!(order(Pattern::Sequential, &[]), [7, 6, 5, 3, 2, 1]);
        assert_eq!(order(Pattern::Window, &[(1, 1), (5, 2)]), [1, 2, 3, 5, 7, 6]);
        // The furthest of those that were used at one time counts, and a use outside the span does not.
        assert_eq!(order(Pattern::Strided, &[(6, 1), (3, 2), (2, 2), (4, 3)]), [1, 2, 3, 7, 6, 5]);
        assert_eq!(order(Pattern::Loop, &[(7, 1), (3, 2)]), [3, 2, 1, 7, 6, 5]);
        assert_eq!(order(Pattern::Loop, &[(7, 1)]), [7, 6, 5, 3, 2, 1]);
        let none = PartAdvice { pattern: Some(Pattern::Random), ..PartAdvice::default() };
        assert_eq!(none.course(), None);
    }

    #[test]
    fn operators_advice_counts_alone_for_its_span_until_it_is_cleared() {
        let mut table = AdviceTable::default();
        change(&mut table, 0, 6, Retention::Importance(Some(90)));
        assert!(overrule(&mut table, 4, 3, Some(Retention::Class(Some(MemoryClass::Scratch)))));
        assert!(!overrule(&mut table, 4, 3, Some(Retention::Class(Some(MemoryClass::Scratch)))));
        assert!(!overrule(&mut table, 5, 1, Some(Retention::ReadMostly(false))));
        let scratch = PartAdvice { class: Some(MemoryClass::Scratch), ..PartAdvice::default() };
        let important = PartAdvice { importance: Some(90), ..PartAdvice::default() };
        let counts = |table: &AdviceTable| (0..PARTS).map(|part| of(table, part)).collect::<Vec<_>>();
        let none = PartAdvice::default();
        assert_eq!(
            counts(&table),
            [important, important, important, important, scratch, scratch, scratch, none, none, none]
        );
        // Later advice of the owner is kept, and does not count.
        assert!(change(&mut table, 4, 4, Retention::Importance(Some(20))));
        assert_eq!((of(&table, 5), of(&table, 7).importance), (scratch, Some(20)));
        let shown: Vec<_> = table
            .spans(ID, false, Time::START)
            .map(|it| (it.parts.first.0, it.parts.count, it.by, it.counts))
            .collect();
        let (owner, operator) = (Adviser::Owner, Adviser::Operator);
        assert_eq!(
            shown,
            [(0, 4, owner, true), (4, 3, owner, false), (4, 3, operator, true), (7, 1, owner, true)]
        );
        assert!(overrule(&mut table, 0, PARTS, None) && !overrule(&mut table, 0, PARTS, None));
        assert_eq!((of(&table, 5).importance, of(&table, 5).class), (Some(20), None));
    }

    #[test]
    fn operator_can_say_that_no_advice_counts() {
        let mut table = AdviceTable::default();
        change(&mut table, 0, 2, Retention::Needed(false));
        assert!(overrule(&mut table, 0, 1, Some(Retention::Needed(true))));
        assert_eq!((of(&table, 0).need, of(&table, 1).need), (PartNeed::Unknown, PartNeed::Unneeded));
        change(&mut table, 0, 2, Retention::Needed(true));
        assert!(!table.is_empty());
        assert!(overrule(&mut table, 0, 1, None) && table.is_empty());
    }

    #[test]
    fn forbidden_advice_does_not_count_and_that_of_operators_does() {
        let mut table = AdviceTable::default();
        change(&mut table, 0, 4, Retention::Importance(Some(90)));
        overrule(&mut table, 1, 1, Some(Retention::Importance(Some(10))));
        let importance = |index| table.of(part(index), |_| true).importance;
        assert_eq!([0, 1, 2].map(importance), [None, Some(10), None]);
        assert_eq!(table.ranks(tenant(), true, Time::START).map(|ranks| ranks.len()), Some(2));
        assert_eq!(table.ranks(tenant(), false, Time::START).map(|ranks| ranks.len()), Some(3));
        assert_eq!(table.spans(ID, true, Time::START).filter(|it| it.counts).count(), 1);
    }

    #[test]
    fn needs_end_and_patterns_go_on_below_the_advice_that_counts() {
        let mut table = AdviceTable::default();
        change(&mut table, 0, 4, Retention::Needed(false));
        change(&mut table, 0, 4, Retention::Pattern(Some(Pattern::Loop)));
        overrule(&mut table, 0, 4, Some(Retention::Needed(false)));
        table.end_need(part(1), |need| need == PartNeed::Unneeded, Time::START);
        table.record_use(part(2), Time::from_micros(1));
        let order = |table: &AdviceTable| {
            let rank = PartAdvice { need: PartNeed::Unneeded, ..PartAdvice::default() }.rank();
            let found = table.on_course(ID, (rank, Course::Around), false, Time::START);
            found.map(|part| part.part.0).collect::<Vec<_>>()
        };
        assert_eq!((of(&table, 1).need, of(&table, 2).need), (PartNeed::Unknown, PartNeed::Unneeded));
        assert!(order(&table).is_empty());
        assert_eq!(table.given_for(part(1)).owner.need, PartNeed::Unknown);
        // A change of the pattern that counts begins a pass anew.
        assert!(overrule(&mut table, 0, 4, None));
        assert_eq!(order(&table), [3, 2, 0]);
        table.record_use(part(2), Time::from_micros(2));
        assert_eq!(order(&table), [2, 0, 3]);
    }

    #[test]
    fn presets_replace_the_use_and_leave_importance_and_need() {
        let mut table = AdviceTable::default();
        change(&mut table, 0, PARTS, Retention::Importance(Some(7)));
        change(&mut table, 0, PARTS, Retention::Preset(Preset::Staging));
        let staging = PartAdvice {
            importance: Some(7),
            class: Some(MemoryClass::Scratch),
            location: Some(Tier::Host),
            pattern: Some(Pattern::Sequential),
            ..PartAdvice::default()
        };
        assert_eq!(of(&table, 9), staging);
        change(&mut table, 0, PARTS, Retention::Preset(Preset::Weights));
        let weights = PartAdvice {
            importance: Some(7),
            class: Some(MemoryClass::Weights),
            is_read_mostly: true,
            ..PartAdvice::default()
        };
        assert_eq!(of(&table, 9), weights);
        assert!(
            weights
                .with(Retention::Class(Some(MemoryClass::Scratch)), Time::START)
                .contradiction(false)
                .is_some()
        );
        for preset in [Preset::Weights, Preset::KvCache, Preset::Activations, Preset::Staging] {
            let of_preset = weights.with(Retention::Preset(preset), Time::START);
            assert_eq!(of_preset.contradiction(false), None, "{preset:?}");
            assert_eq!(of_preset.contradiction(true).is_some(), preset == Preset::KvCache, "{preset:?}");
        }
    }
}
