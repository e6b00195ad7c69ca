//! Requests are taken, cancelled and ended.

use std::collections::BTreeSet;

use vramd_types::{Bytes, DeviceIndex, SessionId};

use crate::{
    broker::Broker,
    command::{Command, DaemonFrame, Notice, PrefetchEnd, PrefetchLoss},
    error::Refusal,
    event::{Kind, PartRef},
    follow_up::Fact,
    handler::{Start, Started},
    limits::PREFETCHES_PER_TENANT_MAX,
    moves::{Cause, Stop},
    prefetch::{OWN_REQUESTS, Phase, Prefetch, PrefetchId, PrefetchSpec, PrefetchState},
    residency::MapState,
    tenancy::{Outcome, TenantId},
};

impl Broker {
    /// Takes a request. Its client is told at the end of the event how far it came.
    pub(crate) fn on_prefetch(
        &mut self,
        id: SessionId,
        number: u64,
        spec: PrefetchSpec,
    ) -> Result<(), String> {
        let session = self.sessions.get_mut(id);
        let Some(words) = session.and_then(|session| session.words.as_mut()) else {
            return Err("a prefetch in a session without pins".to_owned());
        };
        if let Some(last) = words.last_prefetch.filter(|last| number <= *last) {
            return Err(format!("prefetch {number} after {last}"));
        }
        if number >= OWN_REQUESTS {
            return Err(format!("prefetch {number} has a number of the daemon's own"));
        }
        words.last_prefetch = Some(number);
        match self.check_prefetch(id, &spec) {
            Ok((tenant, device, bytes)) => {
                let deadline = spec.within.map(|within| self.shell.now.after(within));
                let chosen = self.chosen_in_place_among(spec.parts.iter().copied());
                let request = Prefetch::new(tenant, (device, bytes), spec, (self.shell.now, deadline));
                let standing = |tenant| self.tenants.standing(tenant);
                self.moves.prefetches.insert((id, number), request, standing);
                chosen.into_iter().for_each(|part| self.reconsider_in_place(part));
                self.follow_ups.push(Fact::PrefetchQueued);
            }
            Err(refusal) => self.tell_prefetch((id, number), PrefetchState::Refused(refusal)),
        }
        Ok(())
    }

    /// Ends a request for its client. It may have ended already.
    pub(crate) fn on_prefetch_cancelled(&mut self, id: SessionId, number: u64) -> Result<(), String> {
        let words = self.sessions.get(id).and_then(|session| session.words.as_ref());
        if words.and_then(|words| words.last_prefetch).is_none_or(|last| number > last) {
            return Err(format!("prefetch {number} is cancelled and never began"));
        }
        self.end_prefetch((id, number), PrefetchState::Cancelled { by_operator: false });
        Ok(())
    }

    /// Ends a request for an operator.
    pub(crate) fn cancel_prefetch(&mut self, session: SessionId, number: u64) -> Start {
        if self.sessions.get(session).is_none() {
            return Err(Refusal::SessionNotFound { session });
        }
        if self.moves.prefetches.get((session, number)).is_none() {
            return Err(Refusal::PrefetchNotFound { session, number });
        }
        self.end_prefetch((session, number), PrefetchState::Cancelled { by_operator: true });
        Ok(Started::Done(Outcome::PrefetchCancelled))
    }

    fn check_prefetch(
        &self,
        id: SessionId,
        spec: &PrefetchSpec,
    ) -> Result<(TenantId, DeviceIndex, Bytes), Refusal> {
        let invalid = |field, problem| Err(Refusal::RequestInvalid { field, problem });
        let session = self.sessions.get(id).filter(|session| !session.ending);
        let session = session.ok_or(Refusal::SessionLost { session: id })?;
        let tenant = session.tenant;
        let Some(first) = spec.parts.first() else { return invalid("parts", "there are none") };
        let distinct: BTreeSet<PartRef> = spec.parts.iter().copied().collect();
        if distinct.len() < spec.parts.len() {
            return invalid("parts", "a part is named twice");
        }
        if spec.within.is_some_and(|within| within.is_zero()) {
            return invalid("within_ms", "the deadline is over already");
        }
        if let Some(part) = spec.parts.iter().find(|part| !self.can_prefetch(id, **part)) {
            return Err(Refusal::AllocationNotFound { allocation: part.allocation.to_string() });
        }
        let mut bytes = Bytes::ZERO;
        let device = self.footprint_of(*first).map(|footprint| footprint.device);
        for part in &spec.parts {
            if self.allocations.get(part.allocation).is_some_and(|it| it.kind == Kind::Fixed) {
                return Err(Refusal::KindUnsupported { kind: "prefetched fixed" });
            }
            let footprint = self.footprint_of(*part);
            if footprint.map(|footprint| footprint.device) != device {
                return invalid("parts", "they lie on several devices; make one request for each");
            }
            bytes = bytes.saturating_add(footprint.map_or(Bytes::ZERO, |footprint| footprint.size));
        }
        let not_found = Refusal::AllocationNotFound { allocation: first.allocation.to_string() };
        let device = device.ok_or(not_found)?;
        if spec.whole {
            self.check_feasible(tenant, spec.parts.iter().copied())?;
        }
        let (of_session, of_tenant) = self.moves.prefetches.counts(id, tenant);
        let of_session_max = self.config.limits.prefetches_per_session_max;
        for (count, limit) in [(of_session, of_session_max), (of_tenant, PREFETCHES_PER_TENANT_MAX)] {
            planted!(self, PrefetchesUnbounded => continue);
            if count >= limit {
                return Err(Refusal::QueueFull { limit });
            }
        }
        Ok((tenant, device, bytes))
    }

    /// Whether the session has the part, so that it may pin it.
    pub(crate) fn can_prefetch(&self, id: SessionId, part: PartRef) -> bool {
        self.is_stable(part.allocation)
            && self.map_state(id, part).is_some_and(|state: MapState| !state.is_leaving())
    }

    /// Ends a request: tells its client, and stops moves that nothing else wants.
    pub(crate) fn end_prefetch(&mut self, id: PrefetchId, state: PrefetchState) {
        self.end_prefetch_for(id, state, None);
    }

    /// The same for a dropped one, with the tenant that a part left for.
    pub(crate) fn end_prefetch_for(
        &mut self,
        id: PrefetchId,
        state: PrefetchState,
        left_for: Option<TenantId>,
    ) {
        planted!(self, CancelledPrefetchKept => if matches!(state, PrefetchState::Cancelled { .. }) { return });
        let end = match &state {
            PrefetchState::Cancelled { .. } => Some(PrefetchEnd::Cancelled),
            PrefetchState::Dropped { .. } => Some(PrefetchEnd::Dropped),
            PrefetchState::Refused(_) => Some(PrefetchEnd::Failed),
            PrefetchState::Deferred(_) | PrefetchState::Accepted { .. } | PrefetchState::Ready { .. } => None,
        };
        let loss = match &state {
            PrefetchState::Dropped { cause, .. } => {
                let tenant = left_for.map(|tenant| self.tenants.shared(tenant));
                Some(PrefetchLoss { cause: *cause, tenant })
            }
            _ => None,
        };
        if self.drop_prefetch(id, end, loss) {
            self.tell_prefetch(id, state);
        }
    }

    /// Ends a request without a word. Returns whether it was there.
    fn drop_prefetch(
        &mut self,
        id: PrefetchId,
        end: Option<PrefetchEnd>,
        loss: Option<PrefetchLoss>,
    ) -> bool {
        let Some(request) = self.moves.prefetches.remove(id) else { return false };
        // A request that was queued gave up no room: only a new first in the queue can begin.
        self.follow_ups.push(if request.is_queued() { Fact::PrefetchQueued } else { Fact::PrefetchEnded });
        if let Some(end) = end {
            let notice = self.prefetch_ended(id, &request, end, loss);
            self.push_notice(notice);
        }
        if !request.is_queued() {
            // One that lay in place when this request began may be on its way for another one that has ended.
            for part in request.parts {
                self.stop_unwanted_prefetch(part);
            }
        }
        true
    }

    /// Stops the move that brings a part, unless a client, another request or an operator wants it.
    fn stop_unwanted_prefetch(&mut self, part: PartRef) {
        let is_ours = self
            .moves
            .migrations
            .get(part)
            .is_some_and(|it| it.cause == Cause::Prefetch && it.ops.is_empty());
        planted!(self, CancelledMoveGoesOn => return);
        // A move that a pin once hastened is no longer awaited when that pin has ended.
        if is_ours && !self.is_wanted(part) && !self.moves.prefetches.is_kept(part) {
            self.stop_migration(part, Stop::Wanted);
        }
    }

    pub(crate) fn prefetch_ended(
        &self,
        id: PrefetchId,
        request: &Prefetch,
        end: PrefetchEnd,
        loss: Option<PrefetchLoss>,
    ) -> Notice {
        let tenant = self.tenants.shared(request.tenant);
        let (bytes, since, device) = (request.bytes, request.since, request.device);
        let (session, number) = id;
        Notice::PrefetchEnded { session, number, tenant, device, bytes, since, end, loss }
    }

    /// Ends a request of the daemon's own.
    pub(crate) fn withdraw_request(&mut self, id: PrefetchId, end: PrefetchEnd) {
        self.drop_prefetch(id, Some(end), None);
    }

    /// Ends a request of the daemon's own, since its program has begun a later step.
    pub(crate) fn pass_request(&mut self, id: PrefetchId) {
        planted!(self, SequencePassedKept => return);
        let Some(request) = self.moves.prefetches.get(id) else { return };
        let end = match &request.phase {
            _ if request.in_use => PrefetchEnd::Late,
            Phase::Fetching { unused, .. } | Phase::Arrived { unused, .. } if !unused.is_empty() => {
                PrefetchEnd::Wasted
            }
            Phase::Queued(_) | Phase::Fetching { .. } | Phase::Arrived { .. } => PrefetchEnd::Cancelled,
        };
        self.withdraw_request(id, end);
    }

    /// Tells a client how far its request is, unless the daemon made it.
    pub(crate) fn tell_prefetch(&mut self, (id, number): PrefetchId, state: PrefetchState) {
        if number >= OWN_REQUESTS {
            return;
        }
        let Some(session) = self.sessions.get(id).filter(|session| session.channel_open) else { return };
        let channel = session.channel;
        self.push_command(Command::Send { channel, frame: DaemonFrame::Prefetch { number, state } });
    }

    /// Ends all requests of a session that hears nothing further.
    pub(crate) fn end_prefetches_of(&mut self, id: SessionId) {
        if self.moves.prefetches.is_empty() {
            return;
        }
        planted!(self, PrefetchesOutliveSession => return);
        for request in self.moves.prefetches.of_session(id) {
            self.drop_prefetch(request, Some(PrefetchEnd::Cancelled), None);
        }
    }

    /// Ends requests for a part that their session no longer has.
    pub(crate) fn check_prefetches_of(&mut self, part: PartRef) {
        for id in self.moves.prefetches.naming(part) {
            if !self.can_prefetch(id.0, part) {
                let refusal = Refusal::AllocationNotFound { allocation: part.allocation.to_string() };
                self.end_prefetch(id, PrefetchState::Refused(refusal));
            }
        }
    }
}
