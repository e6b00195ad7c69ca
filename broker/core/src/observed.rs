//! Records which rows an event changed and which transitions it took, for observers of every step of the
//! core.
//!
//! Tables record the key of every row that they hand out for a change, so that the invariants of just these
//! rows can be checked after the event. Without the feature `observed` nothing is recorded and every call
//! here is empty.

use crate::{
    moves::{MigrationEvent, MigrationState, WriteBackEvent, WriteBackState},
    residency::{AllocationEvent, AllocationState, MapEvent, MapState},
    tenancy::{SessionEvent, SessionState},
};

/// A transition of one of the tables: its start, its event, and whether the table allowed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    Allocation { from: AllocationState, event: AllocationEvent, legal: bool },
    Session { from: SessionState, event: SessionEvent, legal: bool },
    Mapping { from: MapState, event: MapEvent, legal: bool },
    Migration { from: MigrationState, event: MigrationEvent, legal: bool },
    WriteBack { from: WriteBackState, event: WriteBackEvent, legal: bool },
}

/// Keys of one table's rows that were changed, or handed out for a change, since the event began.
#[derive(Debug)]
pub(crate) struct ChangedKeys<K> {
    #[cfg(feature = "observed")]
    keys: Vec<K>,
    #[cfg(not(feature = "observed"))]
    keys: std::marker::PhantomData<K>,
}

/// The transitions of the event.
#[derive(Debug, Default)]
pub(crate) struct Transitions {
    #[cfg(feature = "observed")]
    steps: Vec<Transition>,
}

impl<K> Default for ChangedKeys<K> {
    fn default() -> Self {
        Self { keys: Default::default() }
    }
}

#[cfg(feature = "observed")]
impl<K: Copy + Ord> ChangedKeys<K> {
    pub(crate) fn note(&mut self, key: K) {
        if self.keys.last() != Some(&key) {
            self.keys.push(key);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.keys.clear();
    }

    /// Returns each key once, in order.
    pub(crate) fn keys(&self) -> Vec<K> {
        let mut keys = self.keys.clone();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

#[cfg(not(feature = "observed"))]
impl<K> ChangedKeys<K> {
    #[allow(
        clippy::unused_self,
        clippy::needless_pass_by_ref_mut,
        reason = "empty by intent: see the module"
    )]
    pub(crate) fn note(&mut self, _: K) {}
}

impl Transitions {
    #[cfg(feature = "observed")]
    pub(crate) fn note(&mut self, transition: Transition) {
        self.steps.push(transition);
    }

    #[cfg(not(feature = "observed"))]
    #[allow(
        clippy::unused_self,
        clippy::needless_pass_by_ref_mut,
        reason = "empty by intent: see the module"
    )]
    pub(crate) fn note(&mut self, _: Transition) {}
}

#[cfg(feature = "observed")]
mod watched {
    use super::Transition;
    use crate::broker::Broker;

    impl Broker {
        /// Returns the transitions that the last event took or was refused.
        pub fn transitions(&self) -> &[Transition] {
            &self.shell.transitions.steps
        }

        /// Returns the part that an extent was created for. Commands do not carry it.
        pub fn part_of_extent(&self, extent: vramd_types::ExtentId) -> Option<crate::event::PartRef> {
            self.pool.get(extent)?.part
        }

        /// Whether the allocation was created without a handle pin.
        pub fn is_unpinned(&self, id: vramd_types::AllocationId) -> bool {
            self.allocations.get(id).is_some_and(|allocation| allocation.unpinned)
        }

        /// Forgets what the last event changed.
        pub(crate) fn forget_observed(&mut self) {
            self.shell.transitions.steps.clear();
            self.allocations.changed_keys.clear();
            self.sessions.changed_keys.clear();
            self.pool.changed_keys.clear();
            self.ledger.changed_keys.clear();
            self.requests.ops.changed_keys.clear();
        }
    }
}
