//! Who sees an allocation's bytes as slices.
//!
//! A guard has no lifetime: the compiler does not see that its slices and the handle's are of one memory. So it is
//! counted here, by parts: bytes that one sees for writing nobody else sees. Only slices are counted, which the CPU alone
//! has; pointers and kernels are their program's own care.

use std::{
    ops::Range,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// How bytes are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum View {
    Shared,
    /// For writing.
    Exclusive,
}

/// Somebody else sees them in a way that forbids it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ViewConflict;

#[derive(Debug, Default)]
pub(crate) struct Views {
    state: Mutex<State>,
    /// The handle may have a slice to write. PinStart by every pin, which takes no lock.
    handle_writes: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The handle's slices. Each call on the handle proves that those which it forbids are gone.
    handle: Option<View>,
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
    /// The handle, borrowed as the view asks.
    pub(crate) fn add_handle_view(&self, view: View) -> Result<(), ViewConflict> {
        let mut state = self.lock();
        if state.guards.iter().any(|guard| guard.view.max(view) == View::Exclusive) {
            return Err(ViewConflict);
        }
        state.handle = Some(view);
        self.handle_writes.store(view == View::Exclusive, Ordering::Relaxed);
        Ok(())
    }

    /// The handle is borrowed: nobody writes by a slice of its own.
    #[inline]
    pub(crate) fn end_handle_write(&self) {
        if self.handle_writes.load(Ordering::Relaxed) {
            let mut state = self.lock();
            state.handle = state.handle.map(|_| View::Shared);
            self.handle_writes.store(false, Ordering::Relaxed);
        }
    }

    /// The handle is borrowed mutably: nobody has a slice of its own.
    pub(crate) fn end_handle_views(&self) {
        self.lock().handle = None;
        self.handle_writes.store(false, Ordering::Relaxed);
    }

    /// A guard, which sees the parts in that way until it [leaves](Self::remove_guard). Its number here is 0 until it sees any.
    pub(crate) fn add_guard_view(
        &self,
        number: &AtomicU64,
        parts: &Range<u32>,
        view: View,
    ) -> Result<(), ViewConflict> {
        let mut state = self.lock();
        // Written under this lock alone.
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_read_and_one_writes() {
        let views = Views::default();
        let [one, two, three] = [const { AtomicU64::new(0) }; 3];
        views.add_guard_view(&one, &(0..2), View::Shared).unwrap();
        views.add_guard_view(&two, &(1..3), View::Shared).unwrap();
        assert_eq!(
            views.add_guard_view(&one, &(0..2), View::Exclusive),
            Err(ViewConflict),
            "the other reads there"
        );
        assert_eq!(views.add_guard_view(&three, &(3..4), View::Exclusive), Ok(()), "nobody is there");
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
    fn the_handles_slices_count_until_its_borrow_proves_them_gone() {
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
