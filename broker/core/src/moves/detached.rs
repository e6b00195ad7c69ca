//! Extents of a part that it does not lie in: the destination of its move, its backing, and extents that it has left.

use smallvec::{SmallVec, smallvec};
use vramd_types::{AllocationId, ExtentId};

use crate::{collections::PartMap, event::PartRef};

#[derive(Debug, Default)]
pub(crate) struct DetachedExtents(PartMap<SmallVec<[ExtentId; 2]>>);

impl DetachedExtents {
    pub(crate) fn insert(&mut self, part: PartRef, extent: ExtentId) {
        match self.0.get_mut(part) {
            Some(extents) => extents.push(extent),
            None => _ = self.0.insert(part, smallvec![extent]),
        }
    }

    pub(crate) fn remove(&mut self, part: PartRef, extent: ExtentId) {
        let Some(extents) = self.0.get_mut(part) else { return };
        extents.retain(|other| *other != extent);
        if extents.is_empty() {
            self.0.remove(part);
        }
    }

    /// The part has moved from one extent into another.
    pub(crate) fn swap(&mut self, part: PartRef, from: ExtentId, to: ExtentId) {
        let extents = self.0.get_mut(part).into_iter().flatten();
        match extents.into_iter().find(|extent| **extent == to) {
            Some(extent) => *extent = from,
            None => self.insert(part, from),
        }
    }

    pub(crate) fn contains(&self, part: PartRef, extent: ExtentId) -> bool {
        self.0.get(part).is_some_and(|extents| extents.contains(&extent))
    }

    pub(crate) fn of(&self, allocation: AllocationId) -> impl Iterator<Item = ExtentId> {
        self.0.of(allocation.get()).flat_map(|(_, extents)| extents).copied()
    }
}
