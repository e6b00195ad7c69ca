//! Prefetch requests: parts that clients ask for ahead of their use. See `handler/prefetch` for the steps.
//!
//! ```text
//!            ╭─ room, and its turn ─► Fetching ─ all there ─► Arrived ─ all used ─► (gone)
//!   Queued ──┤                           │                       │
//!            ╰─ all there already ───────┼──────────────────────►│
//!      │                                 │                       │ a part leaves unused
//!      ╰───────── cancelled, failed ─────┴───────────────────────┴──► (gone, and the client is told)
//! ```
//!
//! A queued request has reserved nothing. It begins once there is room for all of it, and then each of its moves has
//! reserved its own bytes. So a request that ends leaves nothing behind but moves under way, which end by themselves.

mod fetches;
mod learnt;
mod queue;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use vramd_types::{AllocationId, Bytes, DeviceIndex, PartIndex, PrefetchNumber, SessionId};

use crate::{
    error::Refusal,
    event::PartRef,
    moves::Cause,
    sequence::SequencePlace,
    tenancy::{Standing, TenantId},
    time::Time,
};
pub(crate) use fetches::{CopyOrder, Fetches};
pub(crate) use learnt::{Forecast, Learnt};
pub use learnt::{Speculation, SpeculationEnd};
pub(crate) use queue::Queues;

/// A prefetch request, by its session and the number that the client gave it.
pub(crate) type PrefetchId = (SessionId, u64);

/// The first number of requests that the daemon makes for sequences. Numbers of clients' own requests are smaller.
pub(crate) const OWN_REQUESTS: u64 = PrefetchNumber::OWN;

/// The content of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefetchSpec {
    /// All of them on one device.
    pub parts: Vec<PartRef>,
    /// Whether to fetch all parts or none. Otherwise the daemon leaves out parts that find no room.
    pub whole: bool,
    /// Within which time the client needs the parts.
    pub within: Option<Duration>,
    /// Of the requests of one tenant, higher ones go first.
    pub priority: u8,
}

/// How far a prefetch request has come, as its client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefetchState {
    /// It has begun nothing yet.
    Deferred(Deferral),
    /// Its parts are on their way, and their room is reserved. The time is unknown until the daemon has measured a
    /// fetch to that device.
    Accepted { expected: Option<Duration> },
    /// Its parts are on their device, except `left_out` that found no room.
    Ready { left_out: u32, is_late: bool },
    /// A part of it left its device before any session used it.
    Dropped { cause: Cause, by_own_tenant: bool },
    /// The client or an operator has cancelled it.
    Cancelled { by_operator: bool },
    /// It could never be served, or it failed.
    Refused(Refusal),
}

/// Why a request has not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deferral {
    /// Clients wait for room on the device: demand goes first.
    Demand,
    /// An earlier request of its tenant goes first.
    Behind,
    /// Enough prefetched bytes are on their way to the device.
    Link,
    /// The device is full, and nothing that is worth less may leave.
    Room,
    /// Parts that are worth less are leaving for it.
    RoomOnItsWay,
    /// A part of it is on its way elsewhere.
    Moving,
    /// The device is so full that requests of its tenant's class are paused.
    Pressure,
}

impl Deferral {
    pub const ALL: [Self; 7] = [
        Self::Demand,
        Self::Behind,
        Self::Link,
        Self::Room,
        Self::RoomOnItsWay,
        Self::Moving,
        Self::Pressure,
    ];
}

/// A request that has not ended.
#[derive(Debug)]
pub(crate) struct Prefetch {
    /// The tenant of the session.
    pub(crate) tenant: TenantId,
    pub(crate) device: DeviceIndex,
    /// In the order in which the client named them.
    pub(crate) parts: Vec<PartRef>,
    pub(crate) bytes: Bytes,
    pub(crate) whole: bool,
    pub(crate) since: Time,
    pub(crate) deadline: Option<Time>,
    /// Whether the link cannot carry it by its deadline, as far as the daemon can tell. Once so, it stays so.
    pub(crate) misses_deadline: bool,
    pub(crate) priority: u8,
    /// If the daemon made it for a step of a sequence.
    pub(crate) place: Option<SequencePlace>,
    /// Whether the program has begun that step, so that all its parts count as used.
    pub(crate) in_use: bool,
    pub(crate) phase: Phase,
}

#[derive(Debug)]
pub(crate) enum Phase {
    Queued(Deferral),
    Fetching {
        /// Parts that are not there yet.
        missing: BTreeSet<PartRef>,
        /// Parts that are there, and that no session has used.
        unused: BTreeSet<PartRef>,
        left_out: u32,
    },
    Arrived {
        unused: BTreeSet<PartRef>,
        at: Time,
        left_out: u32,
    },
}

impl Prefetch {
    pub(crate) const fn is_queued(&self) -> bool {
        matches!(self.phase, Phase::Queued(_))
    }

    /// Whether some of its parts found no room when it began.
    pub(crate) const fn has_left_out(&self) -> bool {
        match self.phase {
            Phase::Queued(_) => false,
            Phase::Fetching { left_out, .. } | Phase::Arrived { left_out, .. } => left_out > 0,
        }
    }

    /// Whether its deadline is over.
    pub(crate) fn is_late(&self, now: Time) -> bool {
        self.deadline.is_some_and(|deadline| now > deadline)
    }
}

/// The use of a prefetched part.
#[derive(Debug)]
pub(crate) struct FirstUse {
    pub(crate) tenant: TenantId,
    /// How long it lay on its device unused; zero if it was used before all others had arrived.
    pub(crate) lead: Duration,
}

/// All requests that have not ended.
#[derive(Debug, Default)]
pub(crate) struct Prefetches {
    requests: BTreeMap<PrefetchId, Prefetch>,
    /// Every part that a request names, with the request.
    by_part: BTreeSet<(PartRef, PrefetchId)>,
    by_session: BTreeMap<SessionId, usize>,
    by_tenant: BTreeMap<TenantId, usize>,
    pub(crate) queues: Queues,
    pub(crate) fetches: Fetches,
    /// Parts that are brought without a request.
    pub(crate) learnt: Learnt,
    untold: BTreeSet<PrefetchId>,
    /// Requests that found no room, until something has changed that may give them some.
    tried: BTreeSet<PrefetchId>,
    /// Whether a timer is set for the next try.
    pub(crate) retry_armed: bool,
}

impl Prefetches {
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether there are no requests, and no moves for any.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.fetches.is_empty()
    }

    pub(crate) fn get(&self, id: PrefetchId) -> Option<&Prefetch> {
        self.requests.get(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PrefetchId, &Prefetch)> {
        self.requests.iter().map(|(id, request)| (*id, request))
    }

    /// The requests that a session, and that a tenant, has made and that have not ended.
    pub(crate) fn counts(&self, session: SessionId, tenant: TenantId) -> (usize, usize) {
        let count = |found: Option<&usize>| found.copied().unwrap_or_default();
        (count(self.by_session.get(&session)), count(self.by_tenant.get(&tenant)))
    }

    /// Queues a request.
    pub(crate) fn insert(
        &mut self,
        id: PrefetchId,
        request: Prefetch,
        standing: impl Fn(TenantId) -> Standing,
    ) {
        self.by_part.extend(request.parts.iter().map(|part| (*part, id)));
        if request.place.is_none() {
            self.untold.insert(id);
            *self.by_session.entry(id.0).or_default() += 1;
            *self.by_tenant.entry(request.tenant).or_default() += 1;
        }
        self.queues.enter(id, &request, standing);
        self.requests.insert(id, request);
    }

    /// Removes a request, whatever its phase.
    pub(crate) fn remove(&mut self, id: PrefetchId) -> Option<Prefetch> {
        let request = self.requests.remove(&id)?;
        for part in &request.parts {
            self.by_part.remove(&(*part, id));
        }
        if request.place.is_none() {
            lower(&mut self.by_session, id.0);
            lower(&mut self.by_tenant, request.tenant);
        }
        if request.is_queued() {
            self.queues.leave(id, &request);
        }
        self.untold.remove(&id);
        self.tried.remove(&id);
        Some(request)
    }

    /// The requests that name a part.
    pub(crate) fn naming(&self, part: PartRef) -> Vec<PrefetchId> {
        let all = (part, (SessionId::from_raw(0), 0))..=(part, (SessionId::from_raw(u64::MAX), u64::MAX));
        self.by_part.range(all).map(|(_, id)| *id).collect()
    }

    /// Whether any request names the part. It costs nothing while there are no requests.
    pub(crate) fn is_named(&self, part: PartRef) -> bool {
        !self.by_part.is_empty()
            && self
                .by_part
                .range((part, (SessionId::from_raw(0), 0))..)
                .next()
                .is_some_and(|(found, _)| *found == part)
    }

    /// The parts of an allocation that requests name.
    pub(crate) fn named_parts_of(&self, allocation: AllocationId) -> BTreeSet<PartRef> {
        let first = PartRef { allocation, part: PartIndex(0) };
        let after = self.by_part.range((first, (SessionId::from_raw(0), 0))..);
        after.map(|(part, _)| *part).take_while(|part| part.allocation == allocation).collect()
    }

    pub(crate) fn of_session(&self, session: SessionId) -> Vec<PrefetchId> {
        self.requests.range((session, 0)..=(session, u64::MAX)).map(|(id, _)| *id).collect()
    }

    /// Whether a request brings the part, or has brought it and no session has used it.
    pub(crate) fn is_kept(&self, part: PartRef) -> bool {
        self.is_named(part)
            && self.naming(part).into_iter().filter_map(|id| self.requests.get(&id)).any(|it| {
                match &it.phase {
                    Phase::Queued(_) => false,
                    Phase::Fetching { missing, unused, .. } => {
                        missing.contains(&part) || unused.contains(&part)
                    }
                    Phase::Arrived { unused, .. } => unused.contains(&part),
                }
            })
    }

    /// Defers a queued request. The client is told the first reason only, since reasons change often.
    pub(crate) fn defer(&mut self, id: PrefetchId, why: Deferral) {
        if let Some(Prefetch { phase: Phase::Queued(reason), .. }) = self.requests.get_mut(&id) {
            *reason = why;
        }
    }

    /// Records that a queued request found no room.
    pub(crate) fn record_try(&mut self, id: PrefetchId) {
        self.tried.insert(id);
    }

    /// Whether nothing has changed since the request found no room.
    pub(crate) fn was_tried(&self, id: PrefetchId) -> bool {
        self.tried.contains(&id)
    }

    /// Whether room is on its way to the request.
    pub(crate) fn awaits_room(&self, id: PrefetchId) -> bool {
        let phase = self.requests.get(&id).map(|request| &request.phase);
        matches!(phase, Some(Phase::Queued(Deferral::RoomOnItsWay)))
    }

    /// Lets all queued requests be tried again.
    pub(crate) fn retry_all(&mut self) {
        self.tried.clear();
    }

    /// Lets a queued request be tried again.
    pub(crate) fn retry(&mut self, id: PrefetchId) {
        self.tried.remove(&id);
    }

    /// Records that a queued request misses its deadline.
    pub(crate) fn drop_deadline(&mut self, id: PrefetchId) {
        if let Some(request) = self.requests.get_mut(&id).filter(|request| request.is_queued()) {
            self.queues.drop_deadline(id, request);
        }
    }

    /// Takes a request out of its queue: these parts are there, those are on their way, and others found no room.
    pub(crate) fn begin(
        &mut self,
        id: PrefetchId,
        there: BTreeSet<PartRef>,
        missing: BTreeSet<PartRef>,
        left_out: u32,
    ) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        self.queues.leave(id, request);
        request.phase = Phase::Fetching { missing, unused: there, left_out };
        if request.place.is_none() {
            self.untold.insert(id);
        }
    }

    /// Records that a part has arrived. Returns whether the request has all its parts with that.
    pub(crate) fn record_arrival(&mut self, id: PrefetchId, part: PartRef) -> bool {
        let Some(Prefetch { phase: Phase::Fetching { missing, unused, .. }, in_use, .. }) =
            self.requests.get_mut(&id)
        else {
            return false;
        };
        if missing.remove(&part) && !*in_use {
            unused.insert(part);
        }
        missing.is_empty()
    }

    /// Whether the request has begun and misses no part.
    pub(crate) fn is_complete(&self, id: PrefetchId) -> bool {
        let phase = self.requests.get(&id).map(|request| &request.phase);
        matches!(phase, Some(Phase::Fetching { missing, .. }) if missing.is_empty())
    }

    /// Ends the fetch of a request. Returns how many parts were left out.
    pub(crate) fn arrive(&mut self, id: PrefetchId, now: Time) -> Option<u32> {
        let request = self.requests.get_mut(&id)?;
        let Phase::Fetching { unused, left_out, .. } = &mut request.phase else { return None };
        let (unused, left_out) = (std::mem::take(unused), *left_out);
        request.phase = Phase::Arrived { unused, at: now, left_out };
        self.untold.remove(&id);
        Some(left_out)
    }

    /// Whether all parts of a request that has arrived were used.
    pub(crate) fn is_used_up(&self, id: PrefetchId) -> bool {
        let phase = self.requests.get(&id).map(|request| &request.phase);
        matches!(phase, Some(Phase::Arrived { unused, .. }) if unused.is_empty())
    }

    /// Records a use of a part. Returns what it means for each request that brought it.
    pub(crate) fn record_use(&mut self, part: PartRef, now: Time) -> Vec<(PrefetchId, FirstUse)> {
        let mut uses = Vec::new();
        for id in self.naming(part) {
            let Some(request) = self.requests.get_mut(&id).filter(|it| it.place.is_none()) else { continue };
            let (was_there, at) = match &mut request.phase {
                Phase::Queued(_) => (false, now),
                Phase::Fetching { unused, .. } => (unused.remove(&part), now),
                Phase::Arrived { unused, at, .. } => (unused.remove(&part), *at),
            };
            if was_there {
                uses.push((id, FirstUse { tenant: request.tenant, lead: now.since(at) }));
            }
        }
        uses
    }

    /// Takes all parts of a request as used: the program has begun its step. From then on the request is late. Returns
    /// the parts that lay unused, and for how long.
    pub(crate) fn use_all(&mut self, id: PrefetchId, now: Time) -> (BTreeSet<PartRef>, Duration) {
        let Some(request) = self.requests.get_mut(&id) else { return Default::default() };
        request.in_use = true;
        request.deadline = Some(now);
        match &mut request.phase {
            Phase::Queued(_) => Default::default(),
            Phase::Fetching { unused, .. } => (std::mem::take(unused), Duration::ZERO),
            Phase::Arrived { unused, at, .. } => (std::mem::take(unused), now.since(*at)),
        }
    }

    /// Whether the part lies on its device for this request, unused so far.
    pub(crate) fn is_unused(&self, id: PrefetchId, part: PartRef) -> bool {
        match self.requests.get(&id).map(|request| &request.phase) {
            Some(Phase::Fetching { unused, .. } | Phase::Arrived { unused, .. }) => unused.contains(&part),
            Some(Phase::Queued(_)) | None => false,
        }
    }

    /// Whether the request waits for the part.
    pub(crate) fn is_missing(&self, id: PrefetchId, part: PartRef) -> bool {
        let phase = self.requests.get(&id).map(|request| &request.phase);
        matches!(phase, Some(Phase::Fetching { missing, .. }) if missing.contains(&part))
    }

    /// Takes a request whose phase its client does not know.
    pub(crate) fn take_untold(&mut self) -> Option<PrefetchId> {
        self.untold.pop_first()
    }
}

impl Prefetch {
    pub(crate) fn new(
        tenant: TenantId,
        (device, bytes): (DeviceIndex, Bytes),
        spec: PrefetchSpec,
        (since, deadline): (Time, Option<Time>),
    ) -> Self {
        let PrefetchSpec { parts, whole, priority, .. } = spec;
        let phase = Phase::Queued(Deferral::Behind);
        Self {
            tenant,
            device,
            parts,
            bytes,
            whole,
            since,
            deadline,
            misses_deadline: false,
            priority,
            place: None,
            in_use: false,
            phase,
        }
    }

    /// A request of the daemon's own for a step of a sequence. Parts that find no room are left out.
    pub(crate) fn of_sequence(
        place: SequencePlace,
        (tenant, device, bytes): (TenantId, DeviceIndex, Bytes),
        parts: Vec<PartRef>,
        since: Time,
    ) -> Self {
        let spec = PrefetchSpec { parts, whole: false, within: None, priority: 0 };
        Self { place: Some(place), ..Self::new(tenant, (device, bytes), spec, (since, None)) }
    }
}

fn lower<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let std::collections::btree_map::Entry::Occupied(mut entry) = counts.entry(key) {
        *entry.get_mut() = entry.get().saturating_sub(1);
        if *entry.get() == 0 {
            entry.remove();
        }
    }
}

/// A request as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefetchView {
    pub session: SessionId,
    /// The client's number.
    pub number: u64,
    pub tenant: Arc<str>,
    /// The UUID.
    pub device: String,
    pub parts: u32,
    /// All parts together.
    pub bytes: Bytes,
    /// Parts that are not on the device yet.
    pub missing: u32,
    /// Parts that are there, and that no session has used.
    pub unused: u32,
    pub since: Time,
    pub deadline: Option<Time>,
    /// Whether it waits as one without a deadline, since it cannot be ready by then.
    pub misses_deadline: bool,
    pub priority: u8,
    /// If the daemon made it for a step of a sequence.
    pub place: Option<SequencePlace>,
    pub phase: PrefetchPhase,
}

/// The phase of a request that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefetchPhase {
    Queued(Deferral),
    Fetching,
    Arrived,
}
