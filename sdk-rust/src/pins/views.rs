//! Slices of an allocation's bytes: the rule of one writer or many readers, checked at run time.
//!
//! A guard has no lifetime, so the compiler does not see that its slices and the handle's are of one memory. They are
//! counted here, by parts: bytes in a slice to write are in no other slice. Only slices are counted, which only the
//! CPU uses; the program itself must order pointers and kernels.

use std::{
    ops::Range,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// The access of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum View {
    Shared,
    /// For writing.
    Exclusive,
}

/// Another slice forbids this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ViewConflict;

#[derive(Debug, Default)]
pub(crate) struct Views {
    state: Mutex<ViewsState>,
    /// Whether the handle may have a slice to write. Every pin reads it, without a lock.
    handle_writes: AtomicBool,
    /// Whether a pool has lent a slice of a block. No call on the handle proves that such a slice is gone.
    has_lent_block: AtomicBool,
}

#[derive(Debug, Default)]
struct ViewsState {
    /// The handle's slices. Each call on the handle proves that the slices which it forbids are gone.
    handle: Option<View>,
    /// Whether one of them was given to the program, which may still have it.
    is_lent: bool,
    guards: Vec<Guard>,
    last: u64,
}

#[derive(Debug)]
struct Guard {
    id: u64,
    parts: Range<u32>,
    view: View,
}

impl Views {
    /// Records a slice of the handle, which is borrowed as the view needs.
    pub(crate) fn add_handle_view(&self, view: View) -> Result<(), ViewConflict> {
        let mut state = self.lock();
        if state.guards.iter().any(|guard| guard.view.max(view) == View::Exclusive) {
            return Err(ViewConflict);
        }
        state.handle = Some(view);
        self.handle_writes.store(view == View::Exclusive, Ordering::Relaxed);
        Ok(())
    }

    /// Records a slice of the handle that the program gets, as [`Self::add_handle_view`] does.
    pub(crate) fn lend_handle_view(&self, view: View) -> Result<(), ViewConflict> {
        self.add_handle_view(view)?;
        self.lock().is_lent = true;
        Ok(())
    }

    /// Records that a pool lends a slice of a block in this allocation.
    pub(crate) fn lend_block(&self) {
        self.has_lent_block.store(true, Ordering::Relaxed);
    }

    /// Whether the program may have a slice of the handle or of a pool's block.
    pub(crate) fn has_lent(&self) -> bool {
        self.has_lent_block.load(Ordering::Relaxed) || self.lock().is_lent
    }

    /// Ends the handle's slices to write: the handle is borrowed.
    #[inline]
    pub(crate) fn end_handle_write(&self) {
        if self.handle_writes.load(Ordering::Relaxed) {
            let mut state = self.lock();
            state.handle = state.handle.map(|_| View::Shared);
            self.handle_writes.store(false, Ordering::Relaxed);
        }
    }

    /// Ends all slices of the handle: it is borrowed mutably.
    pub(crate) fn end_handle_views(&self) {
        let mut state = self.lock();
        (state.handle, state.is_lent) = (None, false);
        drop(state);
        self.handle_writes.store(false, Ordering::Relaxed);
    }

    /// Records a slice of a guard until the guard [leaves](Self::remove_guard). `number` is 0 before its first slice.
    pub(crate) fn add_guard_view(
        &self,
        number: &AtomicU64,
        parts: &Range<u32>,
        view: View,
    ) -> Result<(), ViewConflict> {
        let mut state = self.lock();
        // Written only under this lock.
        let known = number.load(Ordering::Relaxed);
        let forbids = |other: View| other.max(view) == View::Exclusive;
        let meets = |guard: &Guard| guard.parts.start < parts.end && parts.start < guard.parts.end;
        if state.handle.is_some_and(forbids)
            || state.guards.iter().any(|guard| guard.id != known && meets(guard) && forbids(guard.view))
        {
            return Err(ViewConflict);
        }
        if let Some(guard) = state.guards.iter_mut().find(|guard| guard.id == known) {
            guard.view = guard.view.max(view);
            return Ok(());
        }
        state.last += 1;
        let id = state.last;
        state.guards.push(Guard { id, parts: parts.clone(), view });
        number.store(id, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn remove_guard(&self, id: u64) {
        self.lock().guards.retain(|guard| guard.id != id);
    }

    fn lock(&self) -> MutexGuard<'_, ViewsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_readers_or_one_writer_have_slices() {
        let views = Views::default();
        let [one, two, three] = [const { AtomicU64::new(0) }; 3];
        views.add_guard_view(&one, &(0..2), View::Shared).unwrap();
        views.add_guard_view(&two, &(1..3), View::Shared).unwrap();
        assert_eq!(
            views.add_guard_view(&one, &(0..2), View::Exclusive),
            Err(ViewConflict),
            "the other reads there"
        );
        assert_eq!(views.add_guard_view(&three, &(3..4), View::Exclusive), Ok(()), "no other slice is there");
        views.remove_guard(two.into_inner());
        assert_eq!(views.add_guard_view(&one, &(0..2), View::Exclusive), Ok(()));
        let other = AtomicU64::new(0);
        assert_eq!(
            views.add_guard_view(&other, &(1..2), View::Shared),
            Err(ViewConflict),
            "one writes there"
        );
        assert_eq!((other.into_inner(), views.add_handle_view(View::Shared)), (0, Err(ViewConflict)));
    }

    #[test]
    fn handle_slices_count_until_a_borrow_ends_them() {
        let views = Views::default();
        let guard = AtomicU64::new(0);
        views.add_handle_view(View::Exclusive).unwrap();
        assert_eq!(views.add_guard_view(&guard, &(0..1), View::Shared), Err(ViewConflict));
        views.end_handle_write();
        views.add_guard_view(&guard, &(0..1), View::Shared).unwrap();
        assert_eq!(
            views.add_guard_view(&guard, &(0..1), View::Exclusive),
            Err(ViewConflict),
            "the handle may be read"
        );
        views.end_handle_views();
        assert_eq!(views.add_guard_view(&guard, &(0..1), View::Exclusive), Ok(()));
        assert_eq!(views.add_handle_view(View::Shared), Err(ViewConflict));
        views.remove_guard(guard.into_inner());
        assert_eq!(views.add_handle_view(View::Exclusive), Ok(()));
    }
}
