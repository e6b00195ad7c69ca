//! The table that migrations and write-backs share: at most one entry for each part.

use std::collections::BTreeMap;

use vramd_types::AllocationId;

use crate::event::PartRef;

#[derive(Debug)]
pub(crate) struct UnderWay<T>(BTreeMap<PartRef, T>);

impl<T> Default for UnderWay<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> UnderWay<T> {
    pub(crate) fn get(&self, part: PartRef) -> Option<&T> {
        self.0.get(&part)
    }

    /// Only operations of `T` call this.
    pub(super) fn get_mut(&mut self, part: PartRef) -> Option<&mut T> {
        self.0.get_mut(&part)
    }

    pub(crate) fn contains(&self, part: PartRef) -> bool {
        self.0.contains_key(&part)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PartRef, &T)> {
        self.0.iter().map(|(part, it)| (*part, it))
    }

    /// Parts of an allocation that have an entry.
    pub(crate) fn of(&self, allocation: AllocationId) -> impl Iterator<Item = PartRef> {
        self.0.range(PartRef::all_of(allocation)).map(|(part, _)| *part)
    }

    pub(crate) fn begin(&mut self, part: PartRef, it: T) {
        self.0.insert(part, it);
    }

    pub(crate) fn end(&mut self, part: PartRef) -> Option<T> {
        self.0.remove(&part)
    }
}
