//! Memory begins as zeros. A client that accepts old content may see bytes of its own tenant instead, and so may
//! a session that is sent a part that was dropped. No session ever sees bytes of another tenant.

use broker_core::{
    PartRef,
    invariants::{CONTENT, FIRST_CONTENT},
};
use vramd_types::{AllocationId, PartIndex};

use crate::{oracle::Oracle, world::Content};

impl Oracle {
    /// Checks the content of a part that no session has written, or that was dropped since.
    pub(crate) fn check_first_content(&mut self, part: PartRef, is: Content) {
        let Some(allocation) = self.facts.allocations.get(&part.allocation) else { return };
        let takes_old = allocation.uninitialized || self.facts.drop_counts.contains_key(&part);
        let own = &self.facts.tenants[allocation.tenant];
        let may_begin_so = match is {
            Content::Zeros => true,
            Content::Written { tenant, .. } => takes_old && tenant == own,
            Content::File { file, .. } => {
                takes_old && self.facts.files_loaded.contains(&(allocation.tenant, file))
            }
            Content::Garbage(_) => false,
        };
        self.expect(FIRST_CONTENT, may_begin_so, || {
            format!("{part:?} begins as {is:?}, and is promised to be zero unless old content is accepted")
        });
    }

    /// Checks what the driver has hashed: the bytes of each part, as its sessions saw them last.
    pub(crate) fn check_hashed(&mut self, id: AllocationId, read: &[Content]) {
        if !self.facts.allocations.contains_key(&id) {
            return;
        }
        for (is, index) in read.iter().zip(0..) {
            let part = PartRef { allocation: id, part: PartIndex(index) };
            match self.facts.contents.get(&part).copied() {
                Some(expected) => self.expect(CONTENT, *is == expected, || {
                    format!("{is:?} is hashed as {part:?}, and {expected:?} was written there")
                }),
                None => self.check_first_content(part, *is),
            }
        }
    }
}
