//! The life of a request as its client is told of it: every request is answered at once, its states follow each other
//! in order, and each is true when it is told. A request that has ended holds nothing.

use std::collections::{BTreeMap, BTreeSet};

use broker_core::{
    Broker, ChannelId, ClientRequest, MigrationState, MoveView, OperatorRequest, PartRef, PrefetchPhase,
    PrefetchSpec, PrefetchState, PrefetchView, Refusal, Target, Tier,
    invariants::{PREFETCH_HELD, PREFETCH_TOLD, SEQUENCE_HELD},
};
use vramd_types::SessionId;

use super::{PrefetchId, RequestFacts, Told};
use crate::oracle::{
    Oracle,
    facts::{Asked, Call, MapPhase},
    requests::reasons::PREFETCH_REASONS,
};

impl Oracle {
    /// Records a request. Returns whether the frame keeps to the protocol.
    pub(crate) fn record_prefetch(&mut self, id: SessionId, number: u64, spec: &PrefetchSpec) -> bool {
        let Some(session) = self.facts.sessions.get(&id) else { return false };
        let last = self.facts.prefetches.last.get(&id);
        if !session.pins || last.is_some_and(|last| number <= *last) {
            return false;
        }
        let first = spec.parts.first().and_then(|part| self.facts.allocations.get(&part.allocation));
        let request = RequestFacts {
            spec: spec.clone(),
            tenant: session.tenant,
            device: first.map(|allocation| allocation.device),
            since: self.facts.now,
            deadline: spec.within.map(|within| self.facts.now.after(within)),
            misses_deadline: false,
            misses_since_now: false,
            told: Told::Nothing,
            told_before: Told::Nothing,
            taken_now: false,
            cancelled: None,
            coming: BTreeSet::new(),
            unused: BTreeSet::new(),
            used: BTreeSet::new(),
            touched: BTreeSet::new(),
            able_since: None,
            left_out: None,
        };
        self.facts.prefetches.last.insert(id, number);
        self.facts.prefetches.requests.insert((id, number), request);
        true
    }

    /// Records that a client cancels a request. Returns whether the frame keeps to the protocol.
    pub(crate) fn record_prefetch_cancel(&mut self, id: SessionId, number: u64) -> bool {
        let last = self.facts.prefetches.last.get(&id).copied();
        if let Some(request) = self.facts.prefetches.requests.get_mut(&(id, number)) {
            request.cancelled = Some(false);
        }
        self.facts.sessions.get(&id).is_some_and(|session| session.pins)
            && last.is_some_and(|last| number <= last)
    }

    /// Learns which parts clients and operators want, other than by requests.
    pub(crate) fn record_other_wants(&mut self, call: &Call) {
        let target = match &call.asked {
            Asked::Client {
                request: ClientRequest::Attach(target) | ClientRequest::AttachUnpinned(target),
                ..
            }
            | Asked::Operator {
                request:
                    OperatorRequest::MoveParts { target, .. } | OperatorRequest::WriteBackParts { target, .. },
                ..
            } => target,
            Asked::Operator { request: OperatorRequest::CancelPrefetch { session, number }, .. } => {
                if let Some(request) = self.facts.prefetches.requests.get_mut(&(*session, *number)) {
                    request.cancelled = Some(true).filter(|_| self.step.repeat.is_new());
                }
                if self.step.repeat.is_new() {
                    self.record_sequence_cancel((*session, *number), Some(true));
                }
                return;
            }
            Asked::Client { request: ClientRequest::Evict(id, _), .. } => &Target::Id(*id),
            _ => return,
        };
        let id = match target {
            Target::Id(id) => Some(*id),
            Target::Name(_) => call.named,
        };
        match id {
            Some(id) => _ = self.facts.prefetches.wanted.insert(id, self.facts.now),
            None => self.facts.prefetches.any_wanted = Some(self.facts.now),
        }
    }

    /// Records that a session uses the part, or is about to: the part is no longer kept for requests. `certainly`: it
    /// uses the part where it lies.
    pub(crate) fn record_prefetched_use(&mut self, part: PartRef, certainly: bool) {
        let now = self.facts.now;
        self.facts.prefetches.wanted.insert(part.allocation, now);
        let of_steps = self.facts.prefetches.sequences.hastened_by(part);
        self.facts.prefetches.wanted.extend(of_steps.into_iter().map(|id| (id, now)));
        if !self.facts.prefetches.is_named(part) {
            return;
        }
        let is_there = certainly && self.tier_of(part) == Some(Tier::Device) && !self.may_move(part);
        let mut hastened = BTreeSet::new();
        let begun = self.facts.prefetches.requests.values_mut().filter(|request| request.has_begun());
        for request in begun.filter(|request| request.spec.parts.contains(&part)) {
            if request.unused.remove(&part) && is_there {
                request.used.insert(part);
            }
            request.touched.insert(part);
            hastened.extend(request.spec.parts.iter().map(|part| part.allocation));
        }
        self.facts.prefetches.wanted.extend(hastened.into_iter().map(|id| (id, now)));
    }

    /// Checks what a client is told of a request.
    pub(crate) fn check_prefetch_frame(&mut self, channel: ChannelId, number: u64, state: &PrefetchState) {
        let Some(id) = self.facts.on_channel.get(&channel).map(|session| (*session, number)) else { return };
        let Some(request) = self.facts.prefetches.requests.get(&id).cloned() else {
            return self.expect(PREFETCH_TOLD, false, || format!("{id:?} has ended, and is now {state:?}"));
        };
        let now = self.facts.now;
        let (follows, next) = match state {
            PrefetchState::Deferred(_) => (request.told == Told::Nothing, Told::Deferred),
            PrefetchState::Accepted { .. } => (request.told <= Told::Deferred, Told::Accepted),
            PrefetchState::Ready { .. } => (request.told == Told::Accepted, Told::Ready),
            PrefetchState::Dropped { .. } => (request.has_begun(), Told::End),
            PrefetchState::Cancelled { by_operator } => {
                (request.told < Told::End && request.cancelled == Some(*by_operator), Told::End)
            }
            PrefetchState::Refused(_) => (request.told < Told::End, Told::End),
        };
        self.expect(PREFETCH_TOLD, follows, || format!("{id:?} is {state:?} after {request:?}"));
        match state {
            PrefetchState::Refused(refusal) => self.check_prefetch_refusal(id, &request, refusal),
            PrefetchState::Ready { left_out, is_late } => {
                let late = request.deadline.is_some_and(|deadline| deadline < now);
                self.expect(PREFETCH_TOLD, late == *is_late, || {
                    format!("{id:?} is ready at {now:?} with late {is_late}: {request:?}")
                });
                self.check_ready(id, &request, usize::try_from(*left_out).unwrap_or(usize::MAX));
            }
            PrefetchState::Deferred(_) | PrefetchState::Accepted { .. } => self.check_taken(id, &request),
            PrefetchState::Dropped { .. } | PrefetchState::Cancelled { .. } => {}
        }
        if let Some(request) = self.facts.prefetches.requests.get_mut(&id) {
            request.told = next;
            request.taken_now |= matches!(next, Told::Deferred | Told::Accepted);
        }
    }

    /// Whether the request can never be taken, whatever is there.
    fn is_malformed(&self, spec: &PrefetchSpec) -> bool {
        let distinct: BTreeSet<_> = spec.parts.iter().collect();
        let allocations = spec.parts.iter().filter_map(|part| self.facts.allocations.get(&part.allocation));
        let devices: BTreeSet<_> = allocations.map(|it| it.device).collect();
        spec.parts.is_empty()
            || distinct.len() < spec.parts.len()
            || spec.within.is_some_and(|within| within.is_zero())
            || devices.len() > 1
    }

    fn check_taken(&mut self, id: PrefetchId, request: &RequestFacts) {
        if request.since < self.facts.now {
            return;
        }
        let malformed = self.is_malformed(&request.spec);
        let foreign = request.spec.parts.iter().find(|part| !self.may_be_asked_for(id.0, **part)).copied();
        self.expect(PREFETCH_TOLD, !malformed && foreign.is_none(), || {
            format!("{id:?} is taken, with {foreign:?} that is not the session's: {request:?}")
        });
    }

    /// Whether the part may be the session's, as far as is known.
    fn may_be_asked_for(&self, id: SessionId, part: PartRef) -> bool {
        let is_there =
            self.facts.allocations.get(&part.allocation).is_some_and(|it| !it.freed && !it.leaving);
        let has = self.facts.sessions.get(&id).is_some_and(|session| {
            let phase = session.mappings.get(&part).map(|(phase, _)| *phase);
            phase.is_some_and(|phase| phase != MapPhase::Revoking)
                || session.away.contains(&part)
                || session.owed.contains(&part)
        });
        is_there && has
    }

    fn check_prefetch_refusal(&mut self, id: PrefetchId, request: &RequestFacts, refusal: &Refusal) {
        let possible = PREFETCH_REASONS.contains(&refusal.cause().reason());
        let is_new = request.told == Told::Nothing;
        let live = self.facts.prefetches.requests.iter().filter(|((session, _), it)| {
            (*session == id.0 || it.tenant == request.tenant) && it.told < Told::End
        });
        let holds = match refusal.cause() {
            Refusal::RequestInvalid { .. } => is_new && self.is_malformed(&request.spec),
            Refusal::QueueFull { limit } => is_new && live.count() > *limit,
            _ => true,
        };
        self.expect(PREFETCH_TOLD, possible && holds, || {
            format!("{id:?} is refused with {refusal:?}, which does not hold: {request:?}")
        });
    }

    /// Records that parts are no longer to be read in place: if they lay in host memory for requests, they may be there no
    /// longer.
    pub(crate) fn record_prefetched_in_place(&mut self, parts: impl IntoIterator<Item = PartRef>) {
        for part in parts {
            for request in self.facts.prefetches.requests.values_mut() {
                if request.spec.parts.contains(&part) {
                    request.touched.insert(part);
                }
            }
        }
    }

    /// Checks that all parts of a request that is ready are on their device, except parts that were left out, and
    /// parts that a session may have used meanwhile.
    fn check_ready(&mut self, id: PrefetchId, request: &RequestFacts, left_out: usize) {
        let away = |part: &&PartRef| {
            let is_elsewhere = self.tier_of(**part).is_some_and(|tier| tier != Tier::Device);
            is_elsewhere && !self.is_in_place(**part) && !request.touched.contains(*part)
        };
        let away = request.spec.parts.iter().filter(away).count();
        let most = if request.spec.whole { 0 } else { request.left_out.unwrap_or(request.spec.parts.len()) };
        self.expect(PREFETCH_TOLD, away <= left_out && left_out <= most, || {
            format!(
                "{id:?} is ready with {left_out} left out, at most {most}, and {away} are not there: {request:?}"
            )
        });
    }

    /// Checks and learns how far all requests are after the event.
    pub(crate) fn check_prefetches(&mut self, broker: &Broker) {
        if self.facts.prefetches.requests.is_empty() {
            return;
        }
        let views = broker.prefetches().into_iter().filter(|view| view.place.is_none());
        let listed: BTreeMap<PrefetchId, PrefetchView> =
            views.map(|view| ((view.session, view.number), view)).collect();
        let moves = broker.moves();
        self.end_requests_of_closed_sessions();
        self.learn_missed_deadlines(&listed);
        self.record_entered_queues(&listed);
        self.learn_begun(&moves);
        self.check_prefetch_order(broker, &moves);
        self.count_fetched(&moves);
        self.check_copy_order(&listed, &moves);
        self.check_queued(broker, &moves);
        let requests = std::mem::take(&mut self.facts.prefetches.requests);
        let mut any_ended = false;
        for (id, request) in &requests {
            any_ended |= self.check_request(*id, request, listed.get(id));
        }
        let unknown = listed.keys().find(|id| !requests.contains_key(id)).copied();
        self.expect(PREFETCH_HELD, unknown.is_none(), || format!("{unknown:?} has ended and is listed"));
        let of_sessions: BTreeSet<SessionId> = listed.keys().map(|(session, _)| *session).collect();
        for session in of_sessions {
            let (count, max) = (
                listed.keys().filter(|(of, _)| *of == session).count(),
                self.limits.prefetches_per_session_max,
            );
            self.expect(PREFETCH_HELD, count <= max, || {
                format!("{session} has {count} requests, at most {max}")
            });
        }
        let stays = |(id, _): &(PrefetchId, RequestFacts)| listed.contains_key(id);
        self.facts.prefetches.requests = requests.into_iter().filter(stays).collect();
        if any_ended {
            self.check_stopped_moves(&listed, &moves);
        }
        for request in self.facts.prefetches.requests.values_mut() {
            request.told_before = request.told;
            request.taken_now = false;
        }
    }

    pub(crate) fn is_prefetch_heard(&self, id: SessionId) -> bool {
        let session = self.facts.sessions.get(&id);
        session.is_some_and(|it| !it.gone && self.facts.open_channels.contains(&it.channel))
    }

    fn end_requests_of_closed_sessions(&mut self) {
        let ids = self.facts.prefetches.requests.keys().copied();
        let closed: Vec<PrefetchId> = ids.filter(|id| !self.is_prefetch_heard(id.0)).collect();
        for id in closed {
            if let Some(request) = self.facts.prefetches.requests.get_mut(&id) {
                request.told = Told::End;
            }
        }
    }

    /// Forgets that an operator cancels a request: the call is refused.
    pub(crate) fn keep_prefetch(&mut self, id: PrefetchId) {
        if let Some(request) = self.facts.prefetches.requests.get_mut(&id) {
            request.cancelled = request.cancelled.filter(|by_operator| !by_operator);
        }
        self.record_sequence_cancel(id, None);
    }

    /// Checks one request after the event. Returns whether it has ended.
    fn check_request(
        &mut self,
        id: PrefetchId,
        request: &RequestFacts,
        listed: Option<&PrefetchView>,
    ) -> bool {
        if request.told == Told::End {
            self.expect(PREFETCH_HELD, listed.is_none(), || format!("{id:?} has ended and is listed"));
            return true;
        }
        self.expect(PREFETCH_HELD, request.cancelled.is_none(), || format!("{id:?} goes on: {request:?}"));
        self.expect(PREFETCH_TOLD, request.told > Told::Nothing, || format!("{id:?} gets no answer"));
        // A part of a request that begins may have left before in the same event.
        let is_lost = |part: &&PartRef| request.has_begun_before() && request.unused.contains(*part);
        let lost = self.step.left_device.iter().find(is_lost).copied();
        self.expect(PREFETCH_TOLD, lost.is_none(), || {
            format!("{lost:?} has left its device, and the client of {id:?} is not told: {request:?}")
        });
        let is_used_up = |parts: &BTreeSet<PartRef>| request.spec.parts.iter().all(|it| parts.contains(it));
        let Some(view) = listed else {
            let may_be_over = request.told == Told::Ready && request.unused.is_empty();
            self.expect(PREFETCH_TOLD, may_be_over, || format!("{id:?} is gone without a word: {request:?}"));
            return true;
        };
        let is_over = request.told == Told::Ready && is_used_up(&request.used);
        self.expect(PREFETCH_HELD, !is_over, || format!("all parts of {id:?} are used, and it is listed"));
        let freed = request.spec.parts.iter().find(|part| {
            self.facts.allocations.get(&part.allocation).is_none_or(|it| it.leaving || it.freed)
        });
        let freed = freed.copied();
        self.expect(PREFETCH_HELD, freed.is_none(), || format!("{freed:?} of {id:?} is freed"));
        let phase = match view.phase {
            PrefetchPhase::Queued(_) => Told::Deferred,
            PrefetchPhase::Fetching => Told::Accepted,
            PrefetchPhase::Arrived => Told::Ready,
        };
        self.expect(PREFETCH_TOLD, phase == request.told, || format!("{id:?} is {view:?}: {request:?}"));
        false
    }

    /// Learns which parts of requests are there, which are on their way, and which have arrived.
    fn learn_begun(&mut self, moves: &[MoveView]) {
        let mut requests = std::mem::take(&mut self.facts.prefetches.requests);
        for (id, request) in requests.iter_mut().filter(|(_, request)| request.has_begun()) {
            let is_new = request.told_before <= Told::Deferred;
            let RequestFacts { coming, unused, touched, spec, .. } = request;
            let is_coming = |part: &PartRef| moves.iter().any(|it| it.part == *part && it.to == Tier::Device);
            let is_there = |part: &PartRef| {
                // A part that has left may have come back within the event.
                let has_left = self.step.left_device.contains(part) && !self.step.fetched.contains(part);
                self.tier_of(*part).is_none_or(|tier| tier == Tier::Device) && !has_left
            };
            if is_new {
                coming.extend(spec.parts.iter().copied().filter(is_coming));
                let there = spec.parts.iter().copied().filter(|part| !coming.contains(part));
                let (there, others): (Vec<_>, Vec<_>) = there.partition(is_there);
                unused.extend(there.into_iter().filter(|part| !touched.contains(part)));
                let is_split = spec.whole && others.iter().any(|part| !self.is_in_place(*part));
                self.expect(PREFETCH_TOLD, !is_split, || {
                    format!("{id:?} begins without {others:?}, and is whole")
                });
                let left_out = others.iter().filter(|part| !self.is_surely_in_place(**part)).count();
                request.left_out = Some(left_out);
            } else {
                let arrived = coming.iter().copied().filter(|part| !is_coming(part));
                let arrived: Vec<_> = arrived.collect();
                for part in arrived {
                    coming.remove(&part);
                    if is_there(&part) && !touched.contains(&part) {
                        unused.insert(part);
                    }
                }
            }
        }
        self.facts.prefetches.requests = requests;
    }

    /// Checks that no copy goes on for requests that have ended, unless anything else wants its part.
    fn check_stopped_moves(&mut self, listed: &BTreeMap<PrefetchId, PrefetchView>, moves: &[MoveView]) {
        let is_for_request =
            |it: &&MoveView| it.cause == broker_core::Cause::Prefetch && it.to == Tier::Device;
        for it in moves.iter().filter(is_for_request).filter(|it| it.state != MigrationState::Stopping) {
            let requests = &self.facts.prefetches.requests;
            let is_named = listed
                .keys()
                .filter_map(|id| requests.get(id))
                .any(|request| request.has_begun() && request.spec.parts.contains(&it.part));
            let is_wanted = self.facts.prefetches.may_be_wanted_since(it.part, it.since);
            let of_sequence = self.facts.prefetches.sequences.is_named(it.part);
            self.expect(PREFETCH_HELD, is_named || is_wanted || of_sequence, || {
                format!("{:?} goes on although no request wants it: {it:?}", it.part)
            });
        }
    }

    /// Checks that no request is left.
    pub(crate) fn check_no_prefetches(&mut self, broker: &Broker) {
        let left = broker.prefetches();
        self.expect(PREFETCH_HELD, left.is_empty(), || format!("left in the end: {left:?}"));
        let left = broker.sequences();
        self.expect(SEQUENCE_HELD, left.is_empty(), || format!("left in the end: {left:?}"));
    }
}
