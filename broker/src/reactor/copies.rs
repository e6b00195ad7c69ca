//! Which copy is under way into which extent: the core knows extents alone, and a driver is given each copy's id once.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use vramd_types::{CopyId, ExtentId};

/// Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Copies(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    last: u64,
    into: BTreeMap<ExtentId, CopyId>,
    of: BTreeMap<CopyId, ExtentId>,
}

impl Copies {
    /// A new copy. Into one extent there is one at a time.
    pub(crate) fn begin(&self, to: ExtentId) -> CopyId {
        let mut table = self.lock();
        table.last += 1;
        let copy = CopyId::from_raw(table.last);
        table.into.insert(to, copy);
        table.of.insert(copy, to);
        copy
    }

    /// The copy that is under way into an extent.
    pub(crate) fn into_extent(&self, to: ExtentId) -> Option<CopyId> {
        self.lock().into.get(&to).copied()
    }

    /// All that have begun and not ended.
    pub(crate) fn under_way(&self) -> Vec<CopyId> {
        self.lock().of.keys().copied().collect()
    }

    /// A copy is over: where it went.
    pub(super) fn end(&self, copy: CopyId) -> Option<ExtentId> {
        let mut table = self.lock();
        let to = table.of.remove(&copy)?;
        table.into.remove(&to);
        Some(to)
    }

    /// Every change is whole before anything could panic, so a poisoned lock is a good one.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_copy_into_an_extent_has_its_own_id() {
        let (copies, to) = (Copies::default(), ExtentId::from_raw(7));
        let first = copies.begin(to);
        assert_eq!((copies.into_extent(to), copies.end(first)), (Some(first), Some(to)));
        assert_eq!((copies.into_extent(to), copies.end(first)), (None, None));
        assert_ne!(copies.begin(to), first);
    }
}
