//! What an operator asked for the parts of one allocation, each with its own end.

use std::collections::BTreeMap;

use vramd_types::{AllocationId, PartIndex};

use crate::event::PartRef;

#[derive(Debug)]
pub(crate) struct PerPart<T> {
    pub(crate) allocation: AllocationId,
    /// `None` until it has ended.
    parts: BTreeMap<PartIndex, Option<T>>,
    left: usize,
    /// With this and those after it nothing was begun yet.
    next: Option<PartIndex>,
}

impl<T> PerPart<T> {
    /// With none of them anything was begun.
    pub(crate) fn new(allocation: AllocationId, parts: impl IntoIterator<Item = PartIndex>) -> Self {
        let parts: BTreeMap<_, _> = parts.into_iter().map(|part| (part, None)).collect();
        let (left, next) = (parts.len(), parts.keys().next().copied());
        Self { allocation, parts, left, next }
    }

    /// The next of these, so many at most: they are begun with now.
    pub(crate) fn begin(&mut self, count: usize) -> Vec<PartRef> {
        let Some(next) = self.next else { return Vec::new() };
        let mut rest = self.parts.range(next..).map(|(part, _)| *part);
        let allocation = self.allocation;
        let begun = rest.by_ref().take(count).map(|part| PartRef { allocation, part }).collect();
        self.next = rest.next();
        begun
    }

    /// Whether there are parts with which nothing was begun.
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

    /// Parts that were begun with and whose end is awaited.
    pub(crate) fn open(&self) -> impl Iterator<Item = PartIndex> {
        let begun = self.parts.iter().take_while(|(part, _)| self.next.is_none_or(|next| **part < next));
        begun.filter(|(_, outcome)| outcome.is_none()).map(|(part, _)| *part)
    }

    pub(crate) fn take(&mut self) -> Box<[(PartIndex, T)]> {
        let parts = std::mem::take(&mut self.parts);
        parts.into_iter().filter_map(|(part, outcome)| Some((part, outcome?))).collect()
    }
}
