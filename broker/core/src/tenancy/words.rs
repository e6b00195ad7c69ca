//! What a session with pins has besides.

use std::collections::BTreeSet;

use super::Slots;
use crate::{event::PartRef, time::Time};

#[derive(Debug)]
pub(crate) struct Words {
    /// By when the client is to have mapped the table; until then the daemon keeps a descriptor for it.
    pub(crate) map_deadline: Option<Time>,
    pub(crate) slots: Slots,
    /// Parts that it was told to unmap when nobody pinned them: it can do so at once, and is overdue if it does not. What
    /// is fenced may be pinned for as long as its program likes.
    pub(crate) unmap_soon: BTreeSet<PartRef>,
    /// By when it is to have unmapped one more of them.
    pub(crate) unmap_deadline: Option<Time>,
    /// The number of its last pin call.
    pub(crate) last_call: Option<u64>,
    /// Its pin calls that have not ended.
    pub(crate) calls: usize,
    /// All parts of these.
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
            calls: 0,
            call_parts: 0,
        }
    }
}
