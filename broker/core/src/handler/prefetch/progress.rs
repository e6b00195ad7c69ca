//! Parts of requests arrive, are used, or leave again.

use vramd_types::SessionId;

use crate::{
    broker::Broker,
    command::{Notice, PrefetchEnd},
    event::{PartRef, Tier},
    follow_up::Fact,
    ledger::Place,
    moves::{Cause, MoveEnd, MoveError, MoveReport},
    pool::ExtentError,
    prefetch::{Phase, PrefetchId, PrefetchState, SpeculationEnd},
    residency::MapState,
};

impl Broker {
    /// A part has moved, or has not: requests that name it learn of it.
    pub(crate) fn record_prefetched_move(&mut self, report: &MoveReport) {
        if self.moves.prefetches.is_idle() {
            return;
        }
        let MoveReport { part, end, cause, left_for, .. } = report;
        let (part, cause) = (*part, *cause);
        if let Some(device) = self.moves.prefetches.fetches.end(part) {
            self.follow_ups.push(Fact::PrefetchEnded);
            self.copy_next_prefetches(device);
        }
        let is_there = self.tier_of(part) == Some(Tier::Device) && !self.is_off_device(part);
        for id in self.moves.prefetches.naming(part) {
            if is_there {
                if self.moves.prefetches.record_arrival(id, part) {
                    self.follow_ups.push(Fact::PrefetchAdvanced(id));
                }
            } else if self.moves.prefetches.is_unused(id, part) {
                let of = self.moves.prefetches.get(id).map(|request| request.tenant);
                let by_own_tenant = left_for.is_none() || *left_for == of;
                planted!(self, PrefetchLossUntold => continue);
                self.end_prefetch_for(id, PrefetchState::Dropped { cause, by_own_tenant }, *left_for);
            } else if self.moves.prefetches.is_missing(id, part) {
                let state = self.why_not_prefetched(part, end, cause);
                self.end_prefetch(id, state);
            }
        }
    }

    /// The state of a request of which a part did not come.
    fn why_not_prefetched(&self, part: PartRef, end: &MoveEnd, cause: Cause) -> PrefetchState {
        match end {
            MoveEnd::NotFetched(error) | MoveEnd::Lost(error) => {
                PrefetchState::Refused(self.move_refusal(part, error))
            }
            MoveEnd::OutOfMemory { .. } => {
                let error = self.footprint_of(part).map_or(MoveError::Gone, |footprint| {
                    let (place, requested) = (Place::device(footprint.device), footprint.size);
                    ExtentError::OutOfMemory { place, requested }.into()
                });
                PrefetchState::Refused(self.move_refusal(part, &error))
            }
            MoveEnd::Arrived | MoveEnd::Stayed | MoveEnd::NotLeft => {
                PrefetchState::Dropped { cause, by_own_tenant: true }
            }
        }
    }

    /// Tells the client of a request that all its parts are there, if so.
    pub(crate) fn complete_prefetch(&mut self, id: PrefetchId) {
        if !self.moves.prefetches.is_complete(id) {
            return;
        }
        let now = self.shell.now;
        let Some(is_late) = self.moves.prefetches.get(id).map(|request| request.is_late(now)) else { return };
        planted!(self, LatePrefetchInTime => is_late = false);
        let Some(left_out) = self.moves.prefetches.arrive(id, now) else { return };
        self.map_ahead(id);
        self.tell_prefetch(id, PrefetchState::Ready { left_out, is_late });
        let Some(request) = self.moves.prefetches.get(id) else { return };
        let end = if is_late { PrefetchEnd::Late } else { PrefetchEnd::Ready };
        let notice = self.prefetch_ended(id, request, end, None);
        self.push_notice(notice);
        self.remove_used_up(id);
    }

    /// A session uses the part: it is no longer kept for requests, and what else they fetch is copied as demand.
    pub(crate) fn record_prefetched_use(&mut self, part: PartRef) {
        self.judge_speculation(part, SpeculationEnd::Used);
        if !self.moves.prefetches.is_named(part) {
            return;
        }
        planted!(self, PrefetchKeptForEver => return);
        for (id, first) in self.moves.prefetches.record_use(part, self.shell.now) {
            let bytes = self.footprint_of(part).map(|footprint| footprint.size).unwrap_or_default();
            let tenant = self.tenants.shared(first.tenant);
            self.push_notice(Notice::PrefetchUsed { tenant, bytes, lead: first.lead });
            self.remove_used_up(id);
            self.follow_ups.push(Fact::PrefetchEnded);
        }
        for id in self.moves.prefetches.naming(part) {
            let of_client = self.moves.prefetches.get(id).filter(|request| request.place.is_none());
            let Some(Phase::Fetching { missing, .. }) = of_client.map(|it| &it.phase) else { continue };
            for rest in missing.iter().copied().collect::<Vec<_>>() {
                self.hasten_migration(rest);
            }
        }
    }

    /// The program has begun the step of a request of the daemon's own. Returns whether parts of it are still on their
    /// way: these are copied as demand.
    pub(crate) fn use_request(&mut self, id: PrefetchId) -> bool {
        let Some(request) = self.moves.prefetches.get(id) else { return false };
        let (is_queued, of) = (request.is_queued(), request.tenant);
        if is_queued {
            self.withdraw_request(id, PrefetchEnd::Late);
            return false;
        }
        let (used, lead) = self.moves.prefetches.use_all(id, self.shell.now);
        for part in used {
            let bytes = self.footprint_of(part).map(|footprint| footprint.size).unwrap_or_default();
            let tenant = self.tenants.shared(of);
            self.push_notice(Notice::PrefetchUsed { tenant, bytes, lead });
        }
        self.follow_ups.push(Fact::PrefetchEnded);
        self.remove_used_up(id);
        let Some(Phase::Fetching { missing, .. }) = self.moves.prefetches.get(id).map(|it| &it.phase) else {
            return false;
        };
        for rest in missing.iter().copied().collect::<Vec<_>>() {
            self.hasten_migration(rest);
        }
        true
    }

    /// Sends the parts of a request of the daemon's own to its session, so that a pin finds them mapped. Only as many as
    /// one packet takes at once: a part that waits to be sent could not leave.
    fn map_ahead(&mut self, (session, number): PrefetchId) {
        let Some(request) = self.moves.prefetches.get((session, number)) else { return };
        if request.place.is_none() {
            return;
        }
        let is_away = |part: &PartRef| {
            self.tier_of(*part) == Some(Tier::Device)
                && !self.moves.migrations.contains(*part)
                && !self.mapping.revocations.contains_key(part)
                && self.map_state(session, *part) == Some(MapState::Away)
        };
        let away = request.parts.iter().copied().filter(is_away).take(self.sendable(session));
        for part in away.collect::<Vec<_>>() {
            self.queue_remap(session, part);
        }
    }

    /// A session has answered a packet. Parts ahead of its sequences that found no place in one follow.
    pub(crate) fn map_rest_ahead(&mut self, session: SessionId) {
        for sequence in self.moves.sequences.of_session(session) {
            let requests = self.moves.sequences.get(sequence).map(|it| it.requests.values().copied());
            for number in requests.into_iter().flatten().collect::<Vec<_>>() {
                let request = self.moves.prefetches.get((session, number));
                if request.is_some_and(|request| matches!(request.phase, Phase::Arrived { .. })) {
                    self.map_ahead((session, number));
                }
            }
        }
    }

    fn remove_used_up(&mut self, id: PrefetchId) {
        if self.moves.prefetches.is_used_up(id) {
            self.moves.prefetches.remove(id);
        }
    }
}
