//! Advice of owners on the order in which their parts leave a device.
//!
//! It orders only the parts of one tenant among themselves. The policy alone says which tenant is next to give up
//! memory, so no tenant keeps its memory at another one's cost.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::AllocationId;

use crate::{
    event::{MemoryClass, PartRef, PartSpan, Retention},
    tenancy::TenantId,
};

/// The importance of a part without advice, in percent.
const IMPORTANCE: u8 = 50;

/// The owner's advice on one part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartAdvice {
    pub is_unneeded: bool,
    /// In percent.
    pub importance: Option<u8>,
    pub class: Option<MemoryClass>,
}

/// Of two parts of a tenant, the one with the lower rank leaves first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    is_needed: bool,
    importance: u8,
    class: u8,
}

impl PartAdvice {
    pub(crate) fn rank(self) -> Rank {
        let class = match self.class {
            Some(MemoryClass::Scratch) => 0,
            Some(MemoryClass::Weights) => 1,
            None => 2,
            Some(MemoryClass::Activations) => 3,
            Some(MemoryClass::Cache) => 4,
        };
        match self.is_unneeded {
            // Nothing else counts for a part that is not needed.
            true => Rank { is_needed: false, importance: 0, class: 0 },
            false => Rank { is_needed: true, importance: self.importance.unwrap_or(IMPORTANCE), class },
        }
    }

    fn with(self, change: Retention) -> Self {
        match change {
            Retention::Needed(is_needed) => Self { is_unneeded: !is_needed, ..self },
            Retention::Importance(importance) => Self { importance, ..self },
            Retention::Class(class) => Self { class, ..self },
        }
    }
}

/// Parts in a row with the same advice: those before `end` that no earlier run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    end: u32,
    advice: PartAdvice,
}

#[derive(Debug)]
struct Advised {
    tenant: TenantId,
    /// They cover the allocation, and no two neighbours are equal.
    runs: Vec<Run>,
}

impl Advised {
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

    pub(crate) fn of(&self, part: PartRef) -> PartAdvice {
        let run = self
            .advised
            .get(&part.allocation)
            .and_then(|advised| advised.runs.get(advised.runs.partition_point(|run| run.end <= part.part.0)));
        run.map(|run| run.advice).unwrap_or_default()
    }

    /// Changes the advice for a span of an allocation with that many parts. Returns whether anything is different.
    pub(crate) fn change(
        &mut self,
        (id, tenant): (AllocationId, TenantId),
        part_count: u32,
        span: PartSpan,
        change: Retention,
    ) -> bool {
        let whole = Run { end: part_count, advice: PartAdvice::default() };
        let advised = self.advised.entry(id).or_insert_with(|| Advised { tenant, runs: vec![whole] });
        self.by_tenant.entry(tenant).or_default().insert(id);
        let from = advised.split_at(span.first.0);
        let to = advised.split_at(span.first.0.saturating_add(span.count));
        let mut changed = false;
        for run in advised.runs.get_mut(from..to).unwrap_or_default() {
            let before = run.advice;
            run.advice = before.with(change);
            changed |= before != run.advice;
        }
        // The last of equal neighbours has the end of all.
        let mut runs: Vec<Run> = Vec::with_capacity(advised.runs.len());
        for run in advised.runs.drain(..) {
            match runs.last_mut().filter(|last| last.advice == run.advice) {
                Some(last) => last.end = run.end,
                None => runs.push(run),
            }
        }
        advised.runs = runs;
        if advised.runs.iter().all(|run| run.advice == PartAdvice::default()) {
            self.forget(id);
        }
        changed
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
    pub(crate) fn ranks(&self, tenant: TenantId) -> Option<BTreeSet<Rank>> {
        let advised = self.by_tenant.get(&tenant)?.iter().filter_map(|id| self.advised.get(id));
        let ranks = advised.flat_map(|it| &it.runs).map(|run| run.advice.rank());
        Some(ranks.chain([PartAdvice::default().rank()]).collect())
    }

    /// The advised parts of an allocation, in spans.
    pub(crate) fn spans(&self, id: AllocationId) -> impl Iterator<Item = (PartSpan, PartAdvice)> {
        let runs = self.advised.get(&id).map(|advised| &*advised.runs).unwrap_or_default();
        let mut first = 0;
        let spans = runs.iter().map(move |run| {
            let begin = std::mem::replace(&mut first, run.end);
            (PartSpan::new(begin, run.end.saturating_sub(begin)), run.advice)
        });
        spans.filter(|(_, advice)| *advice != PartAdvice::default())
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
        table.change((ID, tenant()), PARTS, PartSpan::new(first, count), change)
    }

    fn of(table: &AdviceTable, part: u32) -> PartAdvice {
        table.of(PartRef { allocation: ID, part: PartIndex(part) })
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
        let unneeded: Vec<_> = (0..PARTS).filter(|part| of(&table, *part).is_unneeded).collect();
        assert_eq!(unneeded, [4, 5, 6]);
        let spans: Vec<_> = table.spans(ID).map(|(span, _)| (span.first.0, span.count)).collect();
        assert_eq!(spans, [(2, 2), (4, 1), (5, 2)]);
        assert!(change(&mut table, 0, PARTS, Retention::Importance(None)));
        assert!(change(&mut table, 0, PARTS, Retention::Needed(true)));
        assert!(table.is_empty() && table.ranks(tenant()).is_none());
    }

    #[test]
    fn unneeded_parts_rank_lowest_then_importance_then_class() {
        let unneeded =
            PartAdvice { is_unneeded: true, importance: Some(100), class: Some(MemoryClass::Cache) };
        let of = |importance, class| PartAdvice { is_unneeded: false, importance, class };
        let ascending = [
            unneeded,
            of(Some(0), Some(MemoryClass::Cache)),
            of(None, Some(MemoryClass::Scratch)),
            of(None, Some(MemoryClass::Weights)),
            PartAdvice::default(),
            of(Some(IMPORTANCE), Some(MemoryClass::Activations)),
            of(None, Some(MemoryClass::Cache)),
            of(Some(100), Some(MemoryClass::Scratch)),
        ];
        assert!(ascending.is_sorted_by(|a, b| a.rank() < b.rank()));
    }
}
