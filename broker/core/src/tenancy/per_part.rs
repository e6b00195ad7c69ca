//! What an operator asked for the parts of one allocation, each with its own end.

use std::collections::BTreeMap;

use vramd_types::{AllocationId, PartIndex};

#[derive(Debug)]
pub(crate) struct PerPart<T> {
    pub(crate) allocation: AllocationId,
    /// `None` until it has ended.
    parts: BTreeMap<PartIndex, Option<T>>,
    left: usize,
}

impl<T> PerPart<T> {
    pub(crate) fn new(allocation: AllocationId, parts: BTreeMap<PartIndex, Option<T>>) -> Self {
        let left = parts.values().filter(|outcome| outcome.is_none()).count();
        Self { allocation, parts, left }
    }

    pub(crate) fn resolve(&mut self, part: PartIndex, outcome: T) {
        if let Some(known @ None) = self.parts.get_mut(&part) {
            *known = Some(outcome);
            self.left = self.left.saturating_sub(1);
        }
    }

    pub(crate) const fn is_complete(&self) -> bool {
        self.left == 0
    }

    /// Parts whose end is awaited.
    pub(crate) fn open(&self) -> impl Iterator<Item = PartIndex> {
        self.parts.iter().filter(|(_, outcome)| outcome.is_none()).map(|(part, _)| *part)
    }

    pub(crate) fn take(&mut self) -> Box<[(PartIndex, T)]> {
        let parts = std::mem::take(&mut self.parts);
        parts.into_iter().filter_map(|(part, outcome)| Some((part, outcome?))).collect()
    }
}
