//! Parts that a session will probably pin soon are brought unasked (`prefetch/learnt.rs`), and so are those of the set
//! whose turn is next (`turns/ahead.rs`).
//!
//! That is the lowest class: it takes only free room, and begins nothing while a client waits for room on the device,
//! while a request is queued or under way there, or while the device would not stay at its normal level with it. A part that
//! does not begin at once may begin with the next call.

use vramd_types::{AllocationId, Bytes, SessionId};

use crate::{
    broker::Broker,
    command::Notice,
    event::{PartRef, Tier},
    follow_up::Fact,
    ledger::Place,
    line::{Footprint, Waiter},
    moves::{Cause, MoveEnd, MoveReport},
    prefetch::{Forecast, SpeculationEnd},
    pressure::Pressure,
    sequence,
};

impl Broker {
    /// Learns from the parts of a pin call, in order. Only parts in a row show an order.
    pub(crate) fn learn_from_call(&mut self, session: SessionId, sorted: &[PartRef]) {
        for parts in sorted.chunk_by(|one, other| one.allocation == other.allocation) {
            let (Some(first), Some(last)) = (parts.first(), parts.last()) else { continue };
            let count = last.part.0.saturating_sub(first.part.0).saturating_add(1);
            if usize::try_from(count).is_ok_and(|count| count == parts.len()) {
                self.learn_from_parts(session, *first, count);
            }
        }
    }

    fn learn_from_parts(&mut self, session: SessionId, first: PartRef, count: u32) {
        if self.config.limits.speculation_bytes_max.is_zero() || self.moves.sequences.is_named(first) {
            return;
        }
        let id = first.allocation;
        let Some(allocation) = self.allocations.get(id) else { return };
        let Some(tenant) = self.sessions.get(session).map(|session| session.tenant) else { return };
        let part_count = u32::try_from(allocation.parts.len()).unwrap_or(u32::MAX);
        let pattern = self.advice_for(first).pattern;
        let calls = (first.part.0, count);
        planted!(self, SpeculationNeverOff => self.moves.prefetches.learnt.begin_anew(id));
        let shown = self.moves.prefetches.learnt.record_call(
            (id, session),
            calls,
            (part_count, pattern),
            self.shell.now,
        );
        if shown.is_broken {
            for part in self.moves.prefetches.learnt.brought_for(id, session) {
                self.judge_speculation(part, SpeculationEnd::Wasted);
            }
        }
        planted!(self, NearestStepSkipped => shown = shown.without_nearest());
        planted!(self, LearntElsewhere => id = self.another_mapped_by(session, id));
        // Parts that were just judged as wasted may have been too many.
        let learnt = &mut self.moves.prefetches.learnt;
        if let Some(forecast) = shown.forecast.filter(|_| !learnt.is_off(id, tenant)) {
            learnt.forecasts.insert((session, id), forecast);
            self.follow_ups.push(Fact::ForecastMade);
        }
    }

    /// Brings what sessions will probably pin next.
    pub(crate) fn speculate(&mut self) {
        while let Some(((session, id), forecast)) = self.moves.prefetches.learnt.forecasts.pop_first() {
            self.bring_ahead(session, id, &forecast);
        }
    }

    fn bring_ahead(&mut self, session: SessionId, id: AllocationId, forecast: &Forecast) {
        let Some((first, count)) = forecast.steps.first().copied() else { return };
        let part_of = |index| PartRef { allocation: id, part: vramd_types::PartIndex(index) };
        let Some(Footprint { device, size, .. }) = self.footprint_of(part_of(first)) else { return };
        let step_bytes = Bytes::new(size.get().saturating_mul(count.into()));
        let copy_time = self.moves.links.time_for(device, step_bytes);
        let wanted = sequence::steps_to_hide(copy_time, forecast.step_time).unwrap_or(1).max(1);
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        for (first, count) in forecast.steps.iter().take(wanted) {
            for index in *first..first.saturating_add(*count) {
                if !self.bring(session, part_of(index), Pressure::Normal) {
                    return;
                }
            }
        }
    }

    /// Begins to bring a part for a session, unless it is there or comes anyway, or the device would be above that level
    /// with it. Returns whether further parts may follow.
    pub(crate) fn bring(&mut self, session: SessionId, part: PartRef, level_max: Pressure) -> bool {
        if !self.can_prefetch(session, part) {
            return false;
        }
        let is_coming = self.moves.migrations.contains(part) || self.line.contains(Waiter::Part(part));
        if is_coming || !self.is_off_device(part) || self.stays_in_place(part) {
            return true;
        }
        let Some(footprint) = self.footprint_of(part).filter(|it| self.may_bring(*it, level_max)) else {
            return false;
        };
        let Some(tenant) = self.sessions.get(session).map(|session| session.tenant) else { return false };
        if !self.decide_ahead(part) {
            return false;
        }
        self.moves.prefetches.learnt.bring(part, (session, tenant), footprint.size);
        let begun = self.start_move(part, (Tier::Device, Cause::Speculation), None, self.pins.after_all());
        if begun.is_err() {
            self.moves.prefetches.learnt.give_up(part);
            self.usage.placements.forget_decided(part);
        }
        begun.is_ok()
    }

    /// Whether the device has free room, and no client or request asks for it.
    fn may_bring(&self, Footprint { tenant, device, size }: Footprint, level_max: Pressure) -> bool {
        let place = Place::device(device);
        let has_room = || self.ledger.trial(place).is_some_and(|trial| trial.admittable(tenant) >= size);
        // Nothing leaves a device for this cause.
        let coming = || self.moving_bytes(device, |it| it.cause == Cause::Speculation);
        planted!(self, SpeculationAboveAll => return has_room());
        !self.has_waiters_on(device)
            && self.moves.prefetches.queues.tenants(device).is_empty()
            && self.moves.prefetches.fetches.bytes(device).is_zero()
            && self.pressure_with(place, size) <= level_max
            && has_room()
            && coming().saturating_add(size) <= self.config.limits.speculation_bytes_max
    }

    /// A part has moved, or has not.
    pub(crate) fn record_speculated_move(&mut self, report: &MoveReport) {
        let part = report.part;
        if report.cause == Cause::Speculation && self.sessions.turns.has_waiting() {
            self.follow_ups.push(Fact::NextTurnWaits);
        }
        if !self.moves.prefetches.learnt.is_brought(part) || self.tier_of(part) == Some(Tier::Device) {
            return;
        }
        match report.end {
            // It has left again.
            MoveEnd::Arrived => self.judge_speculation(part, SpeculationEnd::Wasted),
            _ => self.moves.prefetches.learnt.give_up(part),
        }
    }

    /// Judges a part that was brought unasked. It costs one look-up if it was not.
    pub(crate) fn judge_speculation(&mut self, part: PartRef, end: SpeculationEnd) {
        let Some((bytes, tenant)) = self.moves.prefetches.learnt.judge(part, end) else { return };
        let tenant = self.tenants.shared(tenant);
        self.push_notice(Notice::SpeculationEnded { part, tenant, bytes, end });
    }
}
