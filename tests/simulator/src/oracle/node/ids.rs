//! Ids are never reused, over restarts too.

use std::collections::BTreeSet;

use broker_core::invariants::IDS;
use vramd_types::{AllocationId, ExtentId, SessionId};

use crate::oracle::Oracle;

/// Every id that was ever given out.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    allocations: BTreeSet<AllocationId>,
    sessions: BTreeSet<SessionId>,
    extents: BTreeSet<ExtentId>,
}

impl Oracle {
    pub(crate) fn record_allocation_id(&mut self, id: AllocationId) {
        let new = self.ids.allocations.insert(id);
        self.expect(IDS, new, || format!("{id} was given out before"));
    }

    pub(crate) fn record_session_id(&mut self, id: SessionId) {
        let new = self.ids.sessions.insert(id);
        self.expect(IDS, new, || format!("{id} was given out before"));
    }

    pub(crate) fn record_extent_id(&mut self, id: ExtentId) {
        let new = self.ids.extents.insert(id);
        self.expect(IDS, new, || format!("{id} was given out before"));
    }

    pub(crate) fn was_session(&self, id: SessionId) -> bool {
        self.ids.sessions.contains(&id)
    }
}
