//! The window of a sequence: the steps for which the daemon has made requests.
//!
//! A step that begins ends the requests of all steps before it, and counts as the use of its parts. The daemon then
//! chooses how far ahead it works: as many steps as hide the time of copies behind the time of steps, as measured, as
//! far as the parts of all these steps fit on the device together. The window ends no earlier than before, since its
//! last parts may be on their way. At the begin of each pass it chooses which parts stay on the device
//! (`sequence/kept.rs`).
//!
//! Requests of one tenant begin in the order in which they were made. So if a request is made again, those of later
//! steps that have not begun are made again behind it.

use std::collections::BTreeMap;

use vramd_types::Bytes;

use crate::{
    broker::Broker,
    command::PrefetchEnd,
    event::{PartRef, Tier},
    follow_up::Fact,
    ledger::Place,
    prefetch::Prefetch,
    sequence::{Sequence, SequenceId, SequencePlace, SequenceState, SequenceWindow, Step},
    tenancy::TenantId,
};

/// How a request for a step of the window stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Queued,
    /// All its parts are there or on their way.
    Begun,
    /// There is none, or some of its parts found no room.
    Wanting,
}

impl Broker {
    /// Begins a step, which ends all earlier ones.
    pub(crate) fn begin_sequence_step(&mut self, id: SequenceId, step: u64) {
        let now = self.shell.now;
        let Some(sequence) = self.moves.sequences.get_mut(id) else { return };
        let (before, end) = (sequence.begun(), sequence.window_end());
        sequence.begin_step(step, now);
        let ahead = sequence.requests.split_off(&step);
        let passed = std::mem::replace(&mut sequence.requests, ahead);
        for (_, number) in passed {
            self.pass_request((id.0, number));
        }
        self.release_passed(id, before);
        let begun = self.moves.sequences.get_mut(id).and_then(|sequence| sequence.requests.remove(&step));
        if let Some(number) = begun.filter(|number| self.use_request((id.0, *number)))
            && let Some(sequence) = self.moves.sequences.get_mut(id)
        {
            // Some of its parts are still on their way.
            sequence.requests.insert(step, number);
        }
        self.keep_window(id, end);
    }

    /// Lets parts of the step before leave, since the client says that it no longer pins them. The words are asked first.
    fn release_passed(&mut self, id: SequenceId, before: Option<u64>) {
        let Some(sequence) = self.moves.sequences.get(id) else { return };
        let Some(step) = before.and_then(|before| sequence.step(before)) else { return };
        let is_over = |part: &_| sequence.need_of(*part).is_none_or(|need| need.steps > 0);
        let over: Vec<_> = step.parts.iter().copied().filter(is_over).collect();
        for part in over {
            self.usage.residents.claim_unpinned(part, id.0);
        }
        self.follow_ups.push(Fact::VictimsChanged);
    }

    /// Chooses how far ahead the daemon works, no nearer than to the step `end`, and makes the requests that are missing.
    pub(crate) fn keep_window(&mut self, id: SequenceId, end: u64) {
        let Some(sequence) = self.moves.sequences.get(id) else { return };
        let (told, first) = (sequence.window, sequence.first_ahead());
        let window = SequenceWindow { kept: told.kept, ..self.choose_window(sequence, end) };
        let Some(sequence) = self.moves.sequences.get_mut(id) else { return };
        sequence.window = window;
        let window = self.choose_kept(id).unwrap_or(window);
        let is_news = SequenceWindow { bytes: told.bytes, ..window } != told || end == 0;
        let Some(sequence) = self.moves.sequences.get_mut(id) else { return };
        let end = sequence.window_end();
        for (_, number) in sequence.requests.split_off(&end) {
            self.withdraw_request((id.0, number), PrefetchEnd::Cancelled);
        }
        planted!(self, SequenceWindowUntold => is_news = false);
        if is_news {
            self.tell_sequence(id, SequenceState::Window(window));
        }
        planted!(self, SequenceStepSkipped => first = first.saturating_add(1));
        let mut is_renewing = false;
        for step in first..end {
            match self.request_standing(id, step) {
                Standing::Begun => {}
                Standing::Queued if !is_renewing => self.retry_request(id, step),
                Standing::Queued | Standing::Wanting => {
                    is_renewing = true;
                    self.renew_request(id, step);
                }
            }
        }
    }

    /// Chooses the parts that stay from pass to pass, if a pass has begun. Returns the window with their bytes.
    fn choose_kept(&mut self, id: SequenceId) -> Option<SequenceWindow> {
        let sequence = self.moves.sequences.get(id).filter(|sequence| sequence.is_to_choose_kept())?;
        let (tenant, device) = (sequence.tenant, sequence.device);
        let sizes: BTreeMap<PartRef, Bytes> = sequence
            .parts()
            .filter_map(|part| Some((part, self.footprint_of(part)?)))
            .filter(|(_, footprint)| footprint.tenant == tenant)
            .map(|(part, footprint)| (part, footprint.size))
            .collect();
        let is_charged = |part: PartRef| {
            let comes = self.moves.migrations.get(part).is_some_and(|it| it.to_tier == Tier::Device);
            comes || self.tier_of(part) == Some(Tier::Device)
        };
        let there = sizes.iter().filter(|(part, _)| is_charged(**part)).map(|(_, size)| *size);
        let trial = self.ledger.trial(Place::device(device));
        let free = trial.map(|trial| trial.admittable(tenant)).unwrap_or_default();
        let room = there.fold(free, Bytes::saturating_add);
        let sequence = self.moves.sequences.get_mut(id)?;
        let size_of = |part| sizes.get(&part).copied().unwrap_or_default();
        sequence.window.kept = sequence.choose_kept(room, size_of);
        let window = sequence.window;
        planted!(self, SequenceKeptStreamed => self.stream_kept(id));
        Some(window)
    }

    fn choose_window(&self, sequence: &Sequence, end: u64) -> SequenceWindow {
        let (first, now) = (sequence.first_ahead(), sequence.now_at());
        let copy_time = self.moves.links.time_for(sequence.device, sequence.mean_bytes());
        let wanted = first.saturating_add(sequence.distance(copy_time));
        // Beyond one pass, every part is needed sooner.
        let last = sequence.step_count().min(now.saturating_add(sequence.pass_len()));
        let (wanted, end) = (wanted.min(last), wanted.max(end).min(last));
        let mut sums: Vec<(TenantId, Bytes)> = Vec::new();
        let mut window = SequenceWindow::default();
        for step in now..end {
            let added = self.add_step(sequence, step, &mut sums);
            let fits = self.check_feasible_on(sequence.device, sums.iter().copied());
            if step < first {
                continue;
            }
            if fits.is_err() {
                window.shortened = step < wanted;
                break;
            }
            window.steps = window.steps.saturating_add(1);
            window.bytes = window.bytes.saturating_add(added);
        }
        window
    }

    /// Adds parts that no step before needs to the bytes of each tenant. Returns their sum.
    fn add_step(&self, sequence: &Sequence, step: u64, sums: &mut Vec<(TenantId, Bytes)>) -> Bytes {
        let mut added = Bytes::ZERO;
        let parts = sequence.step(step).into_iter().flat_map(|step| step.parts.iter().copied());
        for part in parts.filter(|part| sequence.next_use(*part) == Some(step)) {
            let Some(footprint) = self.footprint_of(part).filter(|_| !self.stays_in_place(part)) else {
                continue;
            };
            added = added.saturating_add(footprint.size);
            match sums.iter_mut().find(|(tenant, _)| *tenant == footprint.tenant) {
                Some((_, sum)) => *sum = sum.saturating_add(footprint.size),
                None => sums.push((footprint.tenant, footprint.size)),
            }
        }
        added
    }

    fn request_standing(&self, id: SequenceId, step: u64) -> Standing {
        let number = self.moves.sequences.get(id).and_then(|sequence| sequence.requests.get(&step));
        match number.and_then(|number| self.moves.prefetches.get((id.0, *number))) {
            Some(request) if request.is_queued() => Standing::Queued,
            Some(request) if !request.has_left_out() => Standing::Begun,
            Some(_) | None => Standing::Wanting,
        }
    }

    /// Has a queued request tried again, since parts may leave for it now.
    fn retry_request(&mut self, id: SequenceId, step: u64) {
        let number = self.moves.sequences.get(id).and_then(|sequence| sequence.requests.get(&step));
        if let Some(number) = number.copied() {
            self.moves.prefetches.retry((id.0, number));
            self.follow_ups.push(Fact::PrefetchQueued);
        }
    }

    /// Makes the request for a step, in place of the one that it had.
    fn renew_request(&mut self, id: SequenceId, step: u64) {
        let place = SequencePlace { sequence: id.1, step };
        let number = self.moves.sequences.next_request();
        let Some(sequence) = self.moves.sequences.get_mut(id) else { return };
        let before = sequence.requests.insert(step, number);
        planted!(self, SequenceWrongStep => step = step.saturating_add(1));
        let Some(Step { parts, bytes }) = sequence.step(step) else { return };
        let of = (sequence.tenant, sequence.device, *bytes);
        let request = Prefetch::of_sequence(place, of, parts.clone(), self.shell.now);
        if let Some(before) = before {
            self.moves.prefetches.remove((id.0, before));
        }
        let standing = |tenant| self.tenants.standing(tenant);
        self.moves.prefetches.insert((id.0, number), request, standing);
        self.follow_ups.push(Fact::PrefetchQueued);
    }
}
