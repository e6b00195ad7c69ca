//! The parts of a `RevokeMappings`, each with its own end.

use std::collections::BTreeMap;

use vramd_types::{AllocationId, PartIndex};

use super::Outcome;
use crate::command::PartRevocation;

#[derive(Debug)]
pub(crate) struct Revoked {
    pub(crate) allocation: AllocationId,
    /// `None` until its revocation is over.
    parts: BTreeMap<PartIndex, Option<PartRevocation>>,
    left: usize,
}

impl Revoked {
    pub(crate) fn new(allocation: AllocationId, parts: BTreeMap<PartIndex, Option<PartRevocation>>) -> Self {
        let left = parts.values().filter(|outcome| outcome.is_none()).count();
        Self { allocation, parts, left }
    }

    pub(crate) fn resolve(&mut self, part: PartIndex, outcome: PartRevocation) {
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

    pub(crate) fn outcome(&mut self) -> Outcome {
        let parts = std::mem::take(&mut self.parts);
        let known = parts.into_iter().filter_map(|(part, outcome)| Some((part, outcome?)));
        Outcome::MappingsRevoked { allocation: self.allocation, parts: known.collect() }
    }
}
