//! Extents of an allocation that none of its parts lies in: destinations of moves, backings, and extents that
//! parts have left.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{AllocationId, ExtentId};

#[derive(Debug, Default)]
pub(crate) struct DetachedExtents(BTreeMap<AllocationId, BTreeSet<ExtentId>>);

impl DetachedExtents {
    pub(crate) fn insert(&mut self, allocation: AllocationId, extent: ExtentId) {
        self.0.entry(allocation).or_default().insert(extent);
    }

    pub(crate) fn remove(&mut self, allocation: AllocationId, extent: ExtentId) {
        if let Some(extents) = self.0.get_mut(&allocation) {
            extents.remove(&extent);
            if extents.is_empty() {
                self.0.remove(&allocation);
            }
        }
    }

    /// A part has moved from one extent into another.
    pub(crate) fn swap(&mut self, allocation: AllocationId, from: ExtentId, to: ExtentId) {
        let extents = self.0.entry(allocation).or_default();
        extents.remove(&to);
        extents.insert(from);
    }

    pub(crate) fn contains(&self, allocation: AllocationId, extent: ExtentId) -> bool {
        self.0.get(&allocation).is_some_and(|extents| extents.contains(&extent))
    }

    pub(crate) fn of(&self, allocation: AllocationId) -> impl Iterator<Item = ExtentId> {
        self.0.get(&allocation).into_iter().flatten().copied()
    }
}
