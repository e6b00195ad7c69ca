//! Facts about extents, allocations and moves.

use std::collections::{BTreeMap, BTreeSet};

use broker_core::{CallId, Kind, Lifetime, PartRef, Time};
use vramd_types::{ExtentId, SessionId};

use super::Tenant;
use crate::oracle::moves::advised::Given;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtentPhase {
    Creating,
    Live,
    Cached,
    Releasing,
    /// Released out of the cache.
    GivenUp,
    Unreturned,
}

#[derive(Clone, Debug)]
pub(crate) struct ExtentFacts {
    pub(crate) place: usize,
    pub(crate) size: u64,
    /// The tenant whose session requested it.
    pub(crate) owner: Tenant,
    pub(crate) phase: ExtentPhase,
    /// The part that moves there, or that was first sent in it since it was created or reused.
    pub(crate) part: Option<PartRef>,
    /// Its part does not lie in it: it is on its way there, or has left.
    pub(crate) detached: bool,
    pub(crate) copied: bool,
    /// Tenants whose sessions were sent it, in that order.
    pub(crate) sent_to: Vec<Tenant>,
    pub(crate) mappers: BTreeSet<SessionId>,
    pub(crate) being_read: bool,
    /// It is one end of a write-back: sessions may go on mapping it.
    pub(crate) written_back: bool,
    /// A session that was sent it ended without reporting that it unmapped it.
    pub(crate) unacknowledged: bool,
    /// It was cached once: its content is not zero.
    pub(crate) reused: bool,
    /// It lies on disk and was never written: it cannot be read.
    pub(crate) unwritten: bool,
    pub(crate) debts: Vec<(Tenant, u64)>,
    /// It is a piece of a client's file.
    pub(crate) in_file: bool,
}

impl ExtentFacts {
    /// The bytes that its tenant pays for it.
    pub(crate) const fn cost(&self) -> u64 {
        if self.in_file { 0 } else { self.size }
    }
}

/// An allocation that is being loaded. No client has its id yet.
#[derive(Clone, Debug)]
pub(crate) struct LoadFacts {
    pub(crate) call: CallId,
    pub(crate) by: SessionId,
    /// Pieces that were opened, by index.
    pub(crate) parts: BTreeMap<u32, ExtentId>,
    /// Bytes of the file that these pieces cover.
    pub(crate) bytes: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct AllocationFacts {
    pub(crate) tenant: Tenant,
    pub(crate) owner: SessionId,
    /// `tenant/name`, or empty.
    pub(crate) name: String,
    /// When it is sealed, it takes its name from the sealed allocation that has it.
    pub(crate) replace: bool,
    pub(crate) kind: Kind,
    /// The device that it is mapped on.
    pub(crate) device: usize,
    pub(crate) lifetime: Lifetime,
    pub(crate) readers: Vec<String>,
    pub(crate) size: u64,
    pub(crate) uninitialized: bool,
    pub(crate) discardable: bool,
    /// Its owner advised that its device accesses it in host memory.
    pub(crate) in_place: bool,
    /// The advice on the order in which its parts leave, by index.
    pub(crate) advice: BTreeMap<u32, Given>,
    /// For parts that are used onward and in a loop: the last use that was seen, and the furthest part then.
    pub(crate) pattern_uses: [Option<(Time, u32)>; 2],
    /// It was loaded from a file.
    pub(crate) loaded: bool,
    /// It has no handle pin: its owner is sent only what it pins.
    pub(crate) unpinned: bool,
    pub(crate) part_count: usize,
    /// A session has called for its seal, which takes it from all sessions, also if the call fails later.
    pub(crate) seal_requested: bool,
    pub(crate) sealed: bool,
    /// Its owner or an operator was told that it is freed.
    pub(crate) freed: bool,
    /// The core is freeing it, whether or not a client was told.
    pub(crate) leaving: bool,
    /// A part was dropped before any session was sent it, so the oracle does not know which extent it left.
    pub(crate) left_unseen: bool,
    pub(crate) parts: BTreeMap<u32, ExtentId>,
}

/// A part that is moving to an extent, for as long as that may last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoveFacts {
    pub(crate) part: PartRef,
    /// The extent that it is copied from, once the copy has begun.
    pub(crate) from: Option<ExtentId>,
    /// The core has cancelled the copy.
    pub(crate) cancelled: bool,
}

/// A write-back that is under way, keyed by its target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteBackFacts {
    pub(crate) part: PartRef,
    pub(crate) from: ExtentId,
    /// The core has cancelled the copy.
    pub(crate) cancelled: bool,
}

/// The backing of a part on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackingFacts {
    /// Bytes that are charged, in which no memory is made yet.
    Reserved { owner: Tenant, place: usize, size: u64 },
    /// The extent that it came from, or that was made for it.
    Kept(ExtentId),
    /// It is discardable and needs no backing.
    Unneeded,
}
