//! The state of a session with pins: its word table, and its pin calls.

use std::collections::BTreeSet;

use super::Slots;
use crate::{event::PartRef, time::Time};

#[derive(Debug)]
pub(crate) struct Words {
    /// When the client must have mapped the table. Until then the daemon keeps a descriptor for it.
    pub(crate) map_deadline: Option<Time>,
    pub(crate) slots: Slots,
    /// Evicted parts, which no session pins: the client can unmap them at once, and is overdue if it does
    /// not. A fenced part may be pinned for as long as the program likes.
    pub(crate) unmap_soon: BTreeSet<PartRef>,
    /// When it must have unmapped one more of them.
    pub(crate) unmap_deadline: Option<Time>,
    /// The number of its last pin call.
    pub(crate) last_call: Option<u64>,
    /// The number of its last prefetch request.
    pub(crate) last_prefetch: Option<u64>,
    /// The number of its last sequence.
    pub(crate) last_sequence: Option<u64>,
    /// The number of its last working set.
    pub(crate) last_set: Option<u64>,
    /// The number of its last turn.
    pub(crate) last_turn: Option<u64>,
    /// Its pin calls that have not ended, without those of turns.
    pub(crate) calls: usize,
    /// The number of parts of these calls.
    pub(crate) call_parts: usize,
}

impl Words {
    pub(crate) const fn new(slots: u32, map_deadline: Time) -> Self {
        Self {
            map_deadline: Some(map_deadline),
            slots: Slots::new(slots),
            unmap_soon: BTreeSet::new(),
            unmap_deadline: None,
            last_call: None,
            last_prefetch: None,
            last_sequence: None,
            last_set: None,
            last_turn: None,
            calls: 0,
            call_parts: 0,
        }
    }
}
