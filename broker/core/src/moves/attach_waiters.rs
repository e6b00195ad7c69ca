//! Sessions that wait for a part that they attached to arrive on its device.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{AllocationId, SessionId};

use crate::event::PartRef;

#[derive(Debug, Default)]
pub(crate) struct AttachWaiters(BTreeMap<PartRef, BTreeSet<SessionId>>);

impl AttachWaiters {
    pub(crate) fn insert(&mut self, part: PartRef, session: SessionId) {
        self.0.entry(part).or_default().insert(session);
    }

    pub(crate) fn remove(&mut self, part: PartRef, session: SessionId) {
        if let Some(sessions) = self.0.get_mut(&part) {
            sessions.remove(&session);
            if sessions.is_empty() {
                self.0.remove(&part);
            }
        }
    }

    /// Ends the wait of all sessions for a part, and returns them.
    pub(crate) fn take(&mut self, part: PartRef) -> BTreeSet<SessionId> {
        self.0.remove(&part).unwrap_or_default()
    }

    /// Ends the wait of all sessions for parts of an allocation, and returns the parts.
    pub(crate) fn take_all_of(&mut self, allocation: AllocationId) -> Vec<PartRef> {
        let parts: Vec<_> = self.0.range(PartRef::all_of(allocation)).map(|(part, _)| *part).collect();
        for part in &parts {
            self.0.remove(part);
        }
        parts
    }

    pub(crate) fn contains(&self, part: PartRef) -> bool {
        self.0.contains_key(&part)
    }

    pub(crate) fn of(&self, part: PartRef) -> impl Iterator<Item = SessionId> {
        self.0.get(&part).into_iter().flatten().copied()
    }
}
