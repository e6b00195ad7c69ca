//! Facts about a session, its mappings and its pin calls.

use std::collections::{BTreeMap, BTreeSet};

use broker_core::{ChannelId, PartRef, Slot, Time};
use vramd_types::{AllocationId, ExtentId, PartIndex};

use super::Tenant;
use crate::oracle::sessions::answers::OwedUnmaps;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapPhase {
    /// Sent to the session, which has not answered.
    Offered,
    Mapped,
    /// The session is told to unmap it, for good.
    Revoking,
    /// The session is told to unmap it and may pin it again.
    Evicting,
}

#[derive(Clone, Debug)]
pub(crate) struct SessionFacts {
    pub(crate) tenant: Tenant,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) channel: ChannelId,
    pub(crate) gone: bool,
    /// An operator has ended it.
    pub(crate) ending: bool,
    pub(crate) kill_asked: bool,
    /// Devices that the process sees.
    pub(crate) devices: Vec<usize>,
    pub(crate) mappings: BTreeMap<PartRef, (MapPhase, ExtentId)>,
    /// Parts that the daemon has yet to send.
    pub(crate) owed: BTreeSet<PartRef>,
    /// Since when it has not answered a packet of descriptors.
    pub(crate) owes_since: Option<Time>,
    /// Since when it has not mapped its word table.
    pub(crate) owes_words: Option<Time>,
    /// Descriptors that lie in its socket.
    pub(crate) in_flight: usize,
    /// It has a word table.
    pub(crate) pins: bool,
    pub(crate) hears_pressure: bool,
    /// The broker has reported it as silent.
    pub(crate) silent: bool,
    pub(crate) silent_since: Option<Time>,
    /// How many silences there were when it last unmapped something that it was told to.
    pub(crate) answered: u64,
    /// Parts that were evicted, or that have no handle pin and were not pinned yet.
    pub(crate) away: BTreeSet<PartRef>,
    /// Parts that it asked to pin and was not sent since. They may be queued although the call is over.
    pub(crate) pin_requested: BTreeSet<PartRef>,
    pub(crate) slots: BTreeMap<Slot, PartRef>,
    /// Parts that it was told to unmap and could have unmapped by now.
    pub(crate) unmaps: OwedUnmaps,
    pub(crate) last_pin: Option<u64>,
    /// Pin calls that have not ended.
    pub(crate) pin_calls: BTreeMap<u64, PinFacts>,
    /// Since when any of its calls has been unanswered without a break.
    pub(crate) waits_since: Option<Time>,
    /// Number of the event since which it could be sent a part if there were budget.
    pub(crate) starved_since: Option<u64>,
    /// Number of the last event after which it certainly waited for no budget.
    pub(crate) last_not_starved: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct PinFacts {
    pub(crate) parts: Vec<PartRef>,
    /// The number of the event.
    pub(crate) arrived: u64,
    /// Its place among the calls of turns that the event admits. 0 for a client's call.
    pub(crate) place: usize,
    pub(crate) at: Time,
    pub(crate) answered: bool,
    /// Since when all sessions that it waits for wait themselves.
    pub(crate) stalled_since: Option<Time>,
    /// When it is refused at the latest, if the client gave a time.
    pub(crate) until: Option<Time>,
}

/// A part that an operator fenced while every mapper of it answered and could be told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FenceFacts {
    /// The number of the event.
    pub(crate) arrived: u64,
    pub(crate) until: Time,
    /// When it began, or a session that did not wait last let go of the part. `None` if it joined a revocation
    /// that was under way.
    pub(crate) progress: Option<Time>,
}

/// An order of an operator to revoke parts, or to move them.
#[derive(Clone, Debug)]
pub(crate) struct RevocationFacts {
    /// `None` for a name that leads to no allocation that a client was told of.
    pub(crate) allocation: Option<AllocationId>,
    /// None means all parts.
    pub(crate) parts: Vec<PartIndex>,
    /// For a fence: when it ends at the earliest, if the parts stay in use. It may join an earlier fence, and
    /// ends with that.
    pub(crate) fence_until: Option<Time>,
}

impl RevocationFacts {
    /// Whether it may be about the part.
    pub(crate) fn may_name(&self, part: PartRef) -> bool {
        self.allocation.is_none_or(|allocation| allocation == part.allocation)
    }

    /// Whether it is a fence of the part.
    pub(crate) fn fences(&self, part: PartRef) -> bool {
        let names = self.parts.is_empty() || self.parts.contains(&part.part);
        self.fence_until.is_some() && self.allocation == Some(part.allocation) && names
    }
}
