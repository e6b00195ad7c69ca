//! Which copy is under way into which extent: the core knows extents alone, and a driver is given each copy's id once.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use vramd_types::{CopyId, ExtentId};

/// Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Copies(Arc<Mutex<Book>>);

#[derive(Debug, Default)]
struct Book {
    last: u64,
    into: BTreeMap<ExtentId, CopyId>,
    of: BTreeMap<CopyId, ExtentId>,
}

impl Copies {
    /// A new copy. Into one extent there is one at a time.
    pub(crate) fn begin(&self, to: ExtentId) -> CopyId {
        let mut book = self.lock();
        book.last += 1;
        let copy = CopyId::from_raw(book.last);
        book.into.insert(to, copy);
        book.of.insert(copy, to);
        copy
    }

    /// The copy that is under way into an extent.
    pub(crate) fn towards(&self, to: ExtentId) -> Option<CopyId> {
        self.lock().into.get(&to).copied()
    }

    /// All that have begun and not ended.
    pub(crate) fn under_way(&self) -> Vec<CopyId> {
        self.lock().of.keys().copied().collect()
    }

    /// A copy is over: where it went.
    pub(super) fn ended(&self, copy: CopyId) -> Option<ExtentId> {
        let mut book = self.lock();
        let to = book.of.remove(&copy)?;
        book.into.remove(&to);
        Some(to)
    }

    /// Every change is whole before anything could panic, so a poisoned lock is a good one.
    fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_into_again_is_another_copy() {
        let (copies, to) = (Copies::default(), ExtentId::from_raw(7));
        let first = copies.begin(to);
        assert_eq!((copies.towards(to), copies.ended(first)), (Some(first), Some(to)));
        assert_eq!((copies.towards(to), copies.ended(first)), (None, None));
        assert_ne!(copies.begin(to), first);
    }
}
