//! Counts the memory that each user makes the daemon hold before any tenant is charged: connections, requests that are
//! read or wait, and answers that are not written yet.
//!
//! A charge is taken before the memory and given back with it. A user beyond its budget is refused, and other users are
//! served. A refusal costs memory too until the user reads it, so a reserve beyond the budget is for refusals.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

/// The bytes of a refusal until it is written: its headers, and the stream in the HTTP/2 library.
const REFUSAL_BYTES: usize = 4 << 10;
/// The reserve is one of this many parts of the budget.
const RESERVE_DIVISOR: usize = 8;

/// The budgets of all users. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Budgets(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    bytes_max: usize,
    by_uid: Mutex<HashMap<u32, usize>>,
}

/// Bytes that are charged to a user until this is dropped.
#[derive(Debug)]
pub(super) struct Charge {
    budgets: Budgets,
    uid: u32,
    bytes: AtomicUsize,
}

impl Budgets {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self(Arc::new(Shared { bytes_max, by_uid: Mutex::default() }))
    }

    /// The maximum bytes of one user.
    pub(super) fn bytes_max(&self) -> usize {
        self.0.bytes_max
    }

    /// Charges bytes to a user. `None` if its budget has too few left.
    pub(super) fn charge(&self, uid: u32, bytes: usize) -> Option<Charge> {
        self.charge_within(self.0.bytes_max, uid, bytes)
    }

    /// Charges a refusal. `None` if the user leaves too many refusals unread.
    pub(super) fn charge_refusal(&self, uid: u32) -> Option<Charge> {
        self.charge_within(self.with_reserve(), uid, REFUSAL_BYTES)
    }

    fn charge_within(&self, bytes_max: usize, uid: u32, bytes: usize) -> Option<Charge> {
        let taken = self.take(bytes_max, uid, bytes);
        taken.then(|| Charge { budgets: self.clone(), uid, bytes: AtomicUsize::new(bytes) })
    }

    fn with_reserve(&self) -> usize {
        self.0.bytes_max.saturating_add(self.0.bytes_max / RESERVE_DIVISOR)
    }

    fn take(&self, bytes_max: usize, uid: u32, bytes: usize) -> bool {
        let mut by_uid = self.0.by_uid.lock().unwrap_or_else(PoisonError::into_inner);
        let held = by_uid.get(&uid).copied().unwrap_or_default();
        match held.checked_add(bytes) {
            Some(sum) if sum <= bytes_max => {
                by_uid.insert(uid, sum);
                true
            }
            _ => false,
        }
    }

    fn give_back(&self, uid: u32, bytes: usize) {
        let mut by_uid = self.0.by_uid.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = by_uid.get_mut(&uid) {
            *held -= bytes;
            if *held == 0 {
                by_uid.remove(&uid);
            }
        }
    }
}

impl Charge {
    /// Charges more bytes. Changes nothing if the budget has too few left.
    pub(super) fn grow(&self, more: usize) -> bool {
        self.grow_within(self.budgets.0.bytes_max, more)
    }

    /// Charges more bytes that a refusal needs too.
    pub(super) fn grow_into_reserve(&self, more: usize) -> bool {
        self.grow_within(self.budgets.with_reserve(), more)
    }

    fn grow_within(&self, bytes_max: usize, more: usize) -> bool {
        let taken = self.budgets.take(bytes_max, self.uid, more);
        if taken {
            self.bytes.fetch_add(more, Ordering::Relaxed);
        }
        taken
    }

    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    /// The maximum bytes of the user.
    pub(super) fn bytes_max(&self) -> usize {
        self.budgets.bytes_max()
    }

    /// Charges the same user for other memory.
    pub(super) fn beside(&self, bytes: usize) -> Option<Self> {
        self.budgets.charge(self.uid, bytes)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budgets.give_back(self.uid, *self.bytes.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_beyond_its_budget_is_refused_and_others_are_served() {
        let budgets = Budgets::new(1 << 20);
        let first = budgets.charge(1, 1 << 19).unwrap();
        let second = first.beside(1 << 18).unwrap();
        assert!(!first.grow(1 << 19), "three quarters are taken");
        assert!(second.grow(1 << 18));
        assert!(budgets.charge(1, 1).is_none() && budgets.charge(1, usize::MAX).is_none());
        let other = budgets.charge(2, 1 << 20).unwrap();
        drop(second);
        assert!(first.grow(1 << 19));
        drop((first, other));
        assert!(budgets.0.by_uid.lock().unwrap().is_empty());
    }

    #[test]
    fn refusals_have_a_bound_of_their_own() {
        let budgets = Budgets::new(8 * RESERVE_DIVISOR * REFUSAL_BYTES);
        let all = budgets.charge(1, budgets.bytes_max()).unwrap();
        assert!(all.grow_into_reserve(REFUSAL_BYTES) && !all.grow(1));
        let refusals: Vec<_> = std::iter::from_fn(|| budgets.charge_refusal(1)).collect();
        assert_eq!(refusals.len(), 7);
    }
}
