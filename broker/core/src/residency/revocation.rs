//! Revocations of parts: by eviction, if no session pins the part, or by fence, when all pins have ended.
//!
//! ```text
//!  evict ──► Words ── no session pins ──► Evict ── every mapper unmapped, or is silent ────► over
//!              │ ╰─── a session pins ──────────────────────────────────────────────────────► over
//!              ▼ a fence began meanwhile
//!  fence ──► Fence ──── every mapper unmapped, or one is silent, or the deadline passed ───► over
//! ```
//!
//! Meanwhile the part is sent only for pin calls that arrived before. A later call waits until the revocation
//! is over.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use vramd_types::SessionId;

use crate::{
    command::PartRevocation,
    event::PartRef,
    tenancy::{Arrival, OpId},
    time::Time,
};

#[derive(Debug)]
pub(crate) struct Revocation {
    pub(crate) began: Arrival,
    pub(crate) stage: Stage,
    /// Operations that wait for its end.
    pub(crate) ops: SmallVec<[OpId; 2]>,
    /// Sessions that attached the part meanwhile.
    pub(crate) attach_waiters: Vec<SessionId>,
    /// When a session that waits for no other part last unpinned it. A stalled call is given time from then.
    pub(crate) last_progress: Time,
    /// It began for no move: its sessions are in doubt, and the part may have to leave if others are silent.
    pub(crate) is_ahead: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The daemon checks the words of these sessions. Afterwards the revocation goes on as a fence, if one
    /// lasts until then.
    Words {
        asked: Vec<SessionId>,
        fence: Option<Time>,
    },
    /// Every mapper was told to unmap, and no session pins the part.
    Evict,
    Fence {
        until: Time,
    },
}

/// The end of a revocation, for everything that waited for it.
#[derive(Debug)]
pub(crate) struct RevocationReport {
    pub(crate) part: PartRef,
    pub(crate) outcome: PartRevocation,
    /// The revocation that is over.
    pub(crate) over: Revocation,
}

pub(crate) type Revocations = BTreeMap<PartRef, Revocation>;
