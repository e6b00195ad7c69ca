//! Bounds the connections that have not said hello. Such a connection costs the daemon descriptors before a tenant is
//! charged for it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Bounds on connections that have not said hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) all: usize,
    /// The bound for one user, so that it cannot keep other users out.
    pub(super) per_uid: usize,
}

#[derive(Debug)]
pub(super) struct Gate {
    bounds: Bounds,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    all: usize,
    by_uid: BTreeMap<u32, usize>,
}

/// A connection's place in the gate, which it gives back when dropped.
#[derive(Debug)]
pub(super) struct GreetingPermit {
    gate: Arc<Gate>,
    uid: u32,
}

impl Gate {
    pub(super) fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { bounds, inside: Mutex::default() })
    }

    /// Admits a connection, or returns the bound that it would exceed.
    pub(super) fn enter(self: &Arc<Self>, uid: u32) -> Result<GreetingPermit, usize> {
        let mut inside = self.inside();
        if inside.all >= self.bounds.all {
            return Err(self.bounds.all);
        }
        let of_uid = inside.by_uid.entry(uid).or_default();
        if *of_uid >= self.bounds.per_uid {
            return Err(self.bounds.per_uid);
        }
        *of_uid += 1;
        inside.all += 1;
        drop(inside);
        Ok(GreetingPermit { gate: Arc::clone(self), uid })
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for GreetingPermit {
    fn drop(&mut self) {
        let mut inside = self.gate.inside();
        inside.all -= 1;
        if let Some(of_uid) = inside.by_uid.get_mut(&self.uid) {
            *of_uid -= 1;
            if *of_uid == 0 {
                inside.by_uid.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_does_not_keep_the_others_out() {
        let gate = Gate::new(Bounds { all: 3, per_uid: 2 });
        let first = gate.enter(1).unwrap();
        let _second = gate.enter(1).unwrap();
        assert_eq!(gate.enter(1).unwrap_err(), 2);
        let _other = gate.enter(2).unwrap();
        assert_eq!(gate.enter(3).unwrap_err(), 3);
        drop(first);
        let _again = gate.enter(1).unwrap();
        assert_eq!(gate.inside().by_uid, BTreeMap::from([(1, 2), (2, 1)]));
    }

    #[test]
    fn dropped_permits_leave_no_count() {
        let gate = Gate::new(Bounds { all: 3, per_uid: 2 });
        drop((gate.enter(1), gate.enter(2)));
        assert!(gate.inside().by_uid.is_empty());
        assert_eq!(gate.inside().all, 0);
    }
}
