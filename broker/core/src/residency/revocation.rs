//! Parts that everybody is to unmap, because an operator said so: evicted if nobody pins them, or fenced until all pins
//! have ended.
//!
//! ```text
//!  evict ──► Words ──── nobody pins ────► Evict ──── everybody unmapped, or is silent ────► over
//!              │ ╰─── somebody does ───────────────────────────────────────────────────────► over
//!              ▼ a fence came meanwhile
//!  fence ──► Fence ──── everybody unmapped, or somebody is silent, or the time is over ────► over
//! ```
//!
//! Meanwhile nobody is sent the part but for a pin call that came before: who comes later waits until it is over.

use std::collections::BTreeMap;

use vramd_types::SessionId;

use crate::{
    collections::Few,
    event::PartRef,
    tenancy::{Arrival, OpId},
    time::Time,
};

#[derive(Debug)]
pub(crate) struct Revocation {
    pub(crate) began: Arrival,
    pub(crate) stage: Stage,
    /// Operations that wait for it to be over.
    pub(crate) ops: Few<OpId>,
    /// Sessions that attached the part meanwhile.
    pub(crate) attach_waiters: Vec<SessionId>,
    /// When somebody let go of it last who did not wait for other parts.
    pub(crate) last_progress: Time,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The words of these are looked at. Whatever comes of it, it goes on as a fence if one is to last until then.
    Words {
        asked: Vec<SessionId>,
        fence: Option<Time>,
    },
    /// Everybody was told to unmap, and nobody pinned.
    Evict,
    Fence {
        until: Time,
    },
}

pub(crate) type Revocations = BTreeMap<PartRef, Revocation>;
