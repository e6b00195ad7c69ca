//! An operator's request for the parts of one allocation. Each part has its own outcome.

use std::collections::BTreeMap;

use vramd_types::{AllocationId, PartIndex};

use crate::event::PartRef;

#[derive(Debug)]
pub(crate) struct PerPart<T> {
    pub(crate) allocation: AllocationId,
    /// The outcome of each part; `None` until it is known.
    parts: BTreeMap<PartIndex, Option<T>>,
    left: usize,
    /// The first part that is not started yet.
    next: Option<PartIndex>,
}

impl<T> PerPart<T> {
    /// Creates the request with no part started.
    pub(crate) fn new(allocation: AllocationId, parts: impl IntoIterator<Item = PartIndex>) -> Self {
        let parts: BTreeMap<_, _> = parts.into_iter().map(|part| (part, None)).collect();
        let (left, next) = (parts.len(), parts.keys().next().copied());
        Self { allocation, parts, left, next }
    }

    /// Starts at most `count` further parts, and returns them.
    pub(crate) fn begin(&mut self, count: usize) -> Vec<PartRef> {
        let Some(next) = self.next else { return Vec::new() };
        let mut rest = self.parts.range(next..).map(|(part, _)| *part);
        let allocation = self.allocation;
        let begun = rest.by_ref().take(count).map(|part| PartRef { allocation, part }).collect();
        self.next = rest.next();
        begun
    }

    /// Whether there are parts that are not started.
    pub(crate) const fn has_more(&self) -> bool {
        self.next.is_some()
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

    /// Parts that are started and have no outcome yet.
    pub(crate) fn open(&self) -> impl Iterator<Item = PartIndex> {
        let begun = self.parts.iter().take_while(|(part, _)| self.next.is_none_or(|next| **part < next));
        begun.filter(|(_, outcome)| outcome.is_none()).map(|(part, _)| *part)
    }

    pub(crate) fn take(&mut self) -> Box<[(PartIndex, T)]> {
        let parts = std::mem::take(&mut self.parts);
        parts.into_iter().filter_map(|(part, outcome)| Some((part, outcome?))).collect()
    }
}
