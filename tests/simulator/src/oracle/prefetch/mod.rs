//! Prefetch requests: their order, what clients are told of them, and what leaves for them.
//!
//! `told` also learns of requests and their ends, from frames alone. A part counts as unused only as long as no session
//! has certainly or possibly used it: between two harvests the core knows of no use.

mod begins;
mod copies;
mod order;
mod paused;
mod sequences;
mod speculation;
mod told;
mod victims;

use std::collections::{BTreeMap, BTreeSet};

use broker_core::{PartRef, PrefetchSpec, Time};
use vramd_types::{AllocationId, SessionId};

use super::facts::Tenant;
pub(crate) use sequences::Sequences;
pub(crate) use speculation::SpeculationFacts;

/// A request, by its session and the client's number.
pub(crate) type PrefetchId = (SessionId, u64);

/// How far a request has come, as its client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Told {
    Nothing,
    Deferred,
    Accepted,
    Ready,
    /// It is cancelled, refused or dropped.
    End,
}

#[derive(Clone, Debug)]
pub(crate) struct RequestFacts {
    pub(crate) spec: PrefetchSpec,
    pub(crate) tenant: Tenant,
    pub(crate) device: Option<usize>,
    pub(crate) since: Time,
    pub(crate) deadline: Option<Time>,
    /// Whether the daemon says that it cannot be ready by then.
    pub(crate) misses_deadline: bool,
    /// Whether it says so since this event.
    pub(crate) misses_since_now: bool,
    pub(crate) told: Told,
    /// The same before this event.
    pub(crate) told_before: Told,
    /// It was deferred or accepted in this event. It may have ended since.
    pub(crate) taken_now: bool,
    /// Its client has cancelled it, or an operator.
    pub(crate) cancelled: Option<ByOperator>,
    /// Once it has begun: parts on their way to their device.
    pub(crate) coming: BTreeSet<PartRef>,
    /// Once it has begun: parts that are there or have come, unless a session may have used them since it began.
    pub(crate) unused: BTreeSet<PartRef>,
    /// Parts that a session has certainly used where they lay on their device for the request.
    pub(crate) used: BTreeSet<PartRef>,
    /// Parts that a session may have used since it began.
    pub(crate) touched: BTreeSet<PartRef>,
    /// While it is queued: since when it certainly could begin.
    pub(crate) able_since: Option<Time>,
    /// The most parts that may have been neither there nor on their way when it began.
    pub(crate) left_out: Option<usize>,
}

/// Whether an operator has cancelled a request.
pub(crate) type ByOperator = bool;

impl RequestFacts {
    /// The deadline, unless the daemon says that it cannot be met.
    pub(crate) fn deadline_to_meet(&self) -> Option<Time> {
        self.deadline.filter(|_| !self.misses_deadline)
    }

    /// It has not begun.
    pub(crate) fn is_queued(&self) -> bool {
        self.told <= Told::Deferred
    }

    /// It had not begun before this event.
    pub(crate) fn was_queued(&self) -> bool {
        self.told_before == Told::Deferred
    }

    /// It was queued before this event or in it, and so may have made parts leave.
    pub(crate) fn may_have_made_room(&self) -> bool {
        self.was_queued() || (self.told_before == Told::Nothing && (self.told < Told::End || self.taken_now))
    }

    /// It had begun before this event.
    pub(crate) fn has_begun_before(&self) -> bool {
        matches!(self.told_before, Told::Accepted | Told::Ready)
    }

    pub(crate) fn has_begun(&self) -> bool {
        matches!(self.told, Told::Accepted | Told::Ready)
    }
}

/// Bytes fetched for a tenant, each divided by its weight at that time. The oracle does not see for whom each part is
/// fetched, so it knows only the least and the most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FetchedShare {
    pub(crate) min: u128,
    pub(crate) max: u128,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct PrefetchFacts {
    /// Requests that have not ended, and those that have ended in this event.
    pub(crate) requests: BTreeMap<PrefetchId, RequestFacts>,
    /// The number of the last request of each session.
    pub(crate) last: BTreeMap<SessionId, u64>,
    /// Bytes fetched by device and tenant.
    pub(crate) fetched: BTreeMap<(usize, Tenant), FetchedShare>,
    /// When a session or an operator last wanted a part of each allocation, or a part of a request with one.
    pub(crate) wanted: BTreeMap<AllocationId, Time>,
    /// The same for allocations of unknown names.
    pub(crate) any_wanted: Option<Time>,
    /// Moves that bring parts, of which the oracle knows the request.
    pub(crate) fetches: BTreeMap<copies::FetchKey, copies::FetchFacts>,
    /// Sequences, with the requests that the daemon makes for them.
    pub(crate) sequences: Sequences,
}

impl PrefetchFacts {
    /// Whether any request names the part.
    pub(crate) fn is_named(&self, part: PartRef) -> bool {
        self.requests.values().any(|request| request.spec.parts.contains(&part))
    }

    /// Whether anything besides prefetch requests may have wanted the part since then.
    pub(crate) fn may_be_wanted_since(&self, part: PartRef, since: Time) -> bool {
        let of_allocation = self.wanted.get(&part.allocation).copied();
        of_allocation.max(self.any_wanted).is_some_and(|last| last >= since)
    }
}
