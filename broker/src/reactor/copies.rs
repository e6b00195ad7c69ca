//! Maps each copy in progress to the extent that it copies into. The core knows only extents, and the driver needs a
//! new id for each copy.

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
    /// Begins a copy. One extent has one copy into it at a time.
    pub(crate) fn begin(&self, to: ExtentId) -> CopyId {
        let mut table = self.lock();
        table.last += 1;
        let copy = CopyId::from_raw(table.last);
        table.into.insert(to, copy);
        table.of.insert(copy, to);
        copy
    }

    /// Returns the copy in progress into an extent.
    pub(crate) fn copy_to_extent(&self, to: ExtentId) -> Option<CopyId> {
        self.lock().into.get(&to).copied()
    }

    /// Lists the copies that have begun and not ended.
    pub(crate) fn under_way(&self) -> Vec<CopyId> {
        self.lock().of.keys().copied().collect()
    }

    /// Ends a copy and returns the extent that it copied into.
    pub(super) fn end(&self, copy: CopyId) -> Option<ExtentId> {
        let mut table = self.lock();
        let to = table.of.remove(&copy)?;
        table.into.remove(&to);
        Some(to)
    }

    /// Every change is complete before any code could panic, so the data behind a poisoned lock is valid.
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
        assert_eq!((copies.copy_to_extent(to), copies.end(first)), (Some(first), Some(to)));
        assert_eq!((copies.copy_to_extent(to), copies.end(first)), (None, None));
        assert_ne!(copies.begin(to), first);
    }
}
