//! Declared sequences, learnt from frames alone: which steps the daemon works ahead for, which parts leave first, and that
//! nothing of a sequence outlives it.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
};

use broker_core::{
    Broker, ChannelId, PartRef, PrefetchPhase, PrefetchView, Refusal, SequenceSpec, SequenceState,
    invariants::{SEQUENCE_HELD, SEQUENCE_ORDER, SEQUENCE_WINDOW},
};
use vramd_types::{AllocationId, SessionId};

use super::{ByOperator, PrefetchId};
use crate::oracle::{Oracle, facts::Tenant, requests::reasons::PREFETCH_REASONS};

/// A sequence, by its session and the client's number.
type SequenceId = (SessionId, u64);

#[derive(Clone, Debug)]
pub(crate) struct SequenceFacts {
    steps: Vec<Vec<PartRef>>,
    passes: u64,
    tenant: Tenant,
    device: Option<usize>,
    is_malformed: bool,
    begun: Option<u64>,
    /// Steps ahead, as the client was told last.
    window: Option<u64>,
    /// Parts that stay from pass to pass, by the bytes that the client was told last.
    kept: BTreeSet<PartRef>,
    /// It was declared, or a step of it begun, in this event.
    is_moved: bool,
    cancelled: Option<ByOperator>,
    has_ended: bool,
}

/// The order in which parts of a tenant leave: first parts that sequences need late, those that stay from pass to pass
/// behind the others, each time the last one first; then parts that no sequence names; then parts that a window needs,
/// again the last one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeavingOrder {
    group: u8,
    soon: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Sequences {
    live: BTreeMap<SequenceId, SequenceFacts>,
    last: BTreeMap<SessionId, u64>,
    /// Tenants of which a sequence has ended in this event.
    ended: BTreeSet<Tenant>,
    /// The daemon's own requests after the last event.
    own: BTreeMap<PrefetchId, PrefetchView>,
}

impl SequenceFacts {
    fn pass(&self) -> u64 {
        u64::try_from(self.steps.len()).unwrap_or(u64::MAX)
    }

    fn count(&self) -> u64 {
        if self.passes == 0 { u64::MAX } else { self.passes * self.pass() }
    }

    fn parts_at(&self, step: u64) -> &[PartRef] {
        &self.steps[usize::try_from(step % self.pass()).expect("it fits")]
    }

    fn first_ahead(&self) -> u64 {
        self.begun.map_or(0, |step| step + 1)
    }

    fn end(&self) -> u64 {
        self.first_ahead() + self.window.unwrap_or(0)
    }

    /// Chooses the parts that stay, so many bytes of these: at each part that is used first, as many bytes have been
    /// chosen as are due by then, but for less than a part.
    fn keep(&mut self, bytes: u64, size_of: impl Fn(PartRef) -> u64) {
        self.kept.clear();
        let mut seen = BTreeSet::new();
        let in_turn: Vec<_> =
            self.steps.iter().flatten().copied().filter(|part| seen.insert(*part)).collect();
        let all: u128 = in_turn.iter().map(|part| u128::from(size_of(*part))).sum();
        let (mut passed, mut chosen) = (0_u128, 0_u128);
        for part in in_turn {
            let size = u128::from(size_of(part));
            passed += size;
            if size > 0 && (chosen + size) * all <= passed * u128::from(bytes) {
                chosen += size;
                self.kept.insert(part);
            }
        }
    }

    /// After how many steps it needs the part, and whether that is in the window or before.
    fn need_of(&self, part: PartRef) -> Option<(u64, bool)> {
        let now = self.begun.unwrap_or(0);
        let next = (now..now + self.pass()).find(|step| self.parts_at(*step).contains(&part))?;
        let is_over = next >= self.count();
        Some(if is_over { (u64::MAX, false) } else { (next - now, next < self.end()) })
    }
}

impl Sequences {
    fn live_of(&self, tenant: Tenant) -> impl Iterator<Item = &SequenceFacts> {
        self.live.values().filter(move |it| it.tenant == tenant && !it.has_ended && it.window.is_some())
    }

    /// Whether the daemon makes or has made requests of its own.
    pub(crate) fn is_any(&self) -> bool {
        !self.last.is_empty()
    }

    pub(crate) fn tenants(&self) -> BTreeSet<Tenant> {
        self.live.values().map(|it| it.tenant).collect()
    }

    fn need_of(&self, tenant: Tenant, part: PartRef) -> Option<(u64, bool)> {
        let needs = self.live_of(tenant).filter_map(|it| it.need_of(part));
        needs.reduce(|one, other| (one.0.min(other.0), one.1 || other.1))
    }

    pub(crate) fn order_of(&self, tenant: Tenant, part: PartRef) -> LeavingOrder {
        let is_needed = |it: &SequenceFacts| it.need_of(part).is_some_and(|(steps, _)| steps < u64::MAX);
        let is_kept = || self.live_of(tenant).any(|it| it.kept.contains(&part) && is_needed(it));
        match self.need_of(tenant, part) {
            Some((steps, false)) => LeavingOrder { group: u8::from(is_kept()), soon: u64::MAX - steps },
            None => LeavingOrder { group: 2, soon: 0 },
            Some((steps, true)) => LeavingOrder { group: 3, soon: u64::MAX - steps },
        }
    }

    fn parts_of(&self, place: broker_core::SequencePlace, session: SessionId) -> &[PartRef] {
        self.live.get(&(session, place.sequence)).map_or(&[], |it| it.parts_at(place.step))
    }

    /// The parts of all requests of the daemon's own.
    fn own_parts(&self) -> impl Iterator<Item = PartRef> {
        self.own
            .values()
            .flat_map(|it| it.place.map_or(&[][..], |place| self.parts_of(place, it.session)).iter().copied())
    }

    /// Whether sequences of the tenant need the part in a window; `None` if they never name it.
    pub(crate) fn is_ahead(&self, tenant: Tenant, part: PartRef) -> Option<bool> {
        self.need_of(tenant, part).map(|(_, is_ahead)| is_ahead)
    }

    /// Whether a request of the daemon's own for a step ahead had begun before the event, and stands.
    pub(crate) fn is_kept(&self, part: PartRef, broker: &Broker) -> bool {
        let stands = |it: &PrefetchView| {
            broker.prefetches().iter().any(|now| (now.session, now.number) == (it.session, it.number))
        };
        let has_begun = |it: &&PrefetchView| !matches!(it.phase, PrefetchPhase::Queued(_));
        self.own.values().filter(has_begun).any(|it| {
            it.place.is_some_and(|place| {
                let sequence = self.live.get(&(it.session, place.sequence));
                sequence.is_some_and(|of| of.begun.is_none_or(|begun| place.step > begun))
                    && self.parts_of(place, it.session).contains(&part)
            }) && stands(it)
        })
    }

    /// The memory that the daemon's own requests for this part bring as demand once a session uses it.
    pub(crate) fn hastened_by(&self, part: PartRef) -> BTreeSet<AllocationId> {
        let places =
            self.own.values().filter_map(|it| it.place.map(|place| self.parts_of(place, it.session)));
        let naming = places.filter(|parts| parts.contains(&part));
        naming.flatten().map(|part| part.allocation).collect()
    }

    pub(crate) fn is_brought(&self, part: PartRef) -> bool {
        self.own_parts().any(|other| other == part)
    }

    pub(crate) fn is_named(&self, part: PartRef) -> bool {
        self.live.values().any(|it| it.steps.iter().flatten().any(|other| *other == part))
    }

    /// Whether the daemon may make requests for sequences of the tenant on the device, or made some before the event.
    pub(crate) fn has_any(&self, tenant: Tenant, device: usize) -> bool {
        self.live.values().any(|it| (it.tenant, it.device) == (tenant, Some(device)))
    }

    /// The tenants with requests for sequences that waited on the device before the event.
    pub(crate) fn waiting_tenants(&self, device: usize) -> BTreeSet<Tenant> {
        let waiting = self.own.values().filter(|it| matches!(it.phase, PrefetchPhase::Queued(_)));
        let of = waiting.filter_map(|it| self.live.get(&(it.session, it.place?.sequence)));
        of.filter(|it| it.device == Some(device)).map(|it| it.tenant).collect()
    }

    /// The devices and tenants of all sequences, and the parts that each names.
    pub(crate) fn named(&self) -> impl Iterator<Item = ((usize, Tenant), BTreeSet<PartRef>)> {
        self.live.values().filter_map(|it| {
            let parts = it.steps.iter().flatten().copied().collect();
            it.device.map(|device| ((device, it.tenant), parts))
        })
    }
}

impl Oracle {
    /// Records a sequence. Returns whether the frame keeps to the protocol.
    pub(crate) fn record_sequence(&mut self, id: SessionId, number: u64, spec: &SequenceSpec) -> bool {
        let Some(session) = self.facts.sessions.get(&id) else { return false };
        let last = self.facts.prefetches.sequences.last.get(&id);
        if !session.pins || last.is_some_and(|last| number <= *last) {
            return false;
        }
        let tenant = session.tenant;
        let steps: Vec<Vec<PartRef>> = spec
            .steps
            .iter()
            .map(|step| {
                step.iter().map(|range| PartRef { allocation: range.allocation, part: range.first }).collect()
            })
            .collect();
        let devices: BTreeSet<_> = steps
            .iter()
            .flatten()
            .filter_map(|part| self.facts.allocations.get(&part.allocation).map(|it| it.device))
            .collect();
        let is_twice = |step: &Vec<PartRef>| step.iter().collect::<BTreeSet<_>>().len() < step.len();
        let is_malformed = steps.is_empty()
            || devices.len() > 1
            || steps.iter().any(|step| step.is_empty() || is_twice(step));
        let device = devices.first().copied();
        let sequence = SequenceFacts {
            steps,
            passes: spec.passes,
            tenant,
            device,
            is_malformed,
            begun: None,
            window: None,
            kept: BTreeSet::new(),
            is_moved: true,
            cancelled: None,
            has_ended: false,
        };
        let facts = &mut self.facts.prefetches.sequences;
        facts.last.insert(id, number);
        facts.live.insert((id, number), sequence);
        true
    }

    /// Records a step that begins. Returns whether the frame keeps to the protocol.
    pub(crate) fn record_sequence_step(&mut self, id: SessionId, number: u64, step: u64) -> bool {
        let now = self.facts.now;
        let facts = &mut self.facts.prefetches.sequences;
        if facts.last.get(&id).is_none_or(|last| number > *last) {
            return false;
        }
        let Some(sequence) = facts.live.get_mut(&(id, number)) else { return true };
        if sequence.begun.is_some_and(|begun| step <= begun) || step >= sequence.count() {
            return false;
        }
        let before = sequence.begun.replace(step);
        sequence.is_moved = true;
        let passed = before.map_or(&[][..], |before| sequence.parts_at(before));
        self.facts.claimed_pins.extend(passed.iter().map(|part| (*part, id)));
        // Its copies are raised to demand.
        let wanted: Vec<_> = sequence.parts_at(step).iter().map(|part| (part.allocation, now)).collect();
        self.facts.prefetches.wanted.extend(wanted);
        true
    }

    /// Records that a client ends a sequence. Returns whether the frame keeps to the protocol.
    pub(crate) fn record_sequence_end(&mut self, id: SessionId, number: u64) -> bool {
        let facts = &mut self.facts.prefetches.sequences;
        if let Some(sequence) = facts.live.get_mut(&(id, number)) {
            sequence.cancelled = Some(false);
        }
        facts.last.get(&id).is_some_and(|last| number <= *last)
    }

    /// Records that an operator cancels a request of the daemon's own, or with `None` that the call is refused.
    pub(crate) fn record_sequence_cancel(&mut self, id: PrefetchId, cancelled: Option<ByOperator>) {
        let facts = &mut self.facts.prefetches.sequences;
        if let Some(place) = facts.own.get(&id).and_then(|it| it.place)
            && let Some(sequence) = facts.live.get_mut(&(id.0, place.sequence))
            && sequence.cancelled != Some(false)
        {
            sequence.cancelled = cancelled;
        }
    }

    /// Checks what a client is told of a sequence.
    pub(crate) fn check_sequence_frame(&mut self, channel: ChannelId, number: u64, state: &SequenceState) {
        let Some(id) = self.facts.on_channel.get(&channel).map(|session| (*session, number)) else { return };
        let found = self.facts.prefetches.sequences.live.get(&id).filter(|it| !it.has_ended).cloned();
        let Some(sequence) = found else {
            return self.expect(SEQUENCE_HELD, false, || format!("{id:?} has ended, and is now {state:?}"));
        };
        let holds = match state {
            SequenceState::Window(window) => {
                let steps = u64::from(window.steps);
                let is_within = sequence.first_ahead().saturating_add(steps) <= sequence.count();
                !sequence.is_malformed && is_within && steps <= sequence.pass()
            }
            SequenceState::Refused(refusal) => {
                let is_possible = PREFETCH_REASONS.contains(&refusal.cause().reason());
                let is_invalid = matches!(refusal.cause(), Refusal::RequestInvalid { .. });
                is_possible && (!is_invalid || (sequence.is_malformed && sequence.window.is_none()))
            }
            SequenceState::Ended { by_operator } => sequence.cancelled == Some(*by_operator),
        };
        self.expect(SEQUENCE_HELD, holds, || format!("{id:?} is {state:?}: {sequence:?}"));
        let is_own = |part: &PartRef| {
            let allocation = self.facts.allocations.get(&part.allocation);
            allocation.is_some_and(|it| it.tenant == sequence.tenant)
        };
        let own = sequence.steps.iter().flatten().copied().filter(is_own);
        let sizes: BTreeMap<_, _> = own.filter_map(|part| Some((part, self.size_of(part)?))).collect();
        let facts = &mut self.facts.prefetches.sequences;
        if let Some(sequence) = facts.live.get_mut(&id) {
            match state {
                SequenceState::Window(window) => {
                    sequence.window = Some(window.steps.into());
                    sequence.keep(window.kept.get(), |part| sizes.get(&part).copied().unwrap_or_default());
                }
                SequenceState::Refused(_) | SequenceState::Ended { .. } => {
                    sequence.has_ended = true;
                    facts.ended.insert(sequence.tenant);
                }
            }
        }
    }

    /// Learns the daemon's own requests, and checks them and all sequences after the event.
    pub(crate) fn check_sequences(&mut self, broker: &Broker) {
        if !self.facts.prefetches.sequences.is_any() {
            return;
        }
        self.count_fetched_for_sequences();
        let views = broker.prefetches();
        let own = views.into_iter().filter(|it| it.place.is_some());
        let own: BTreeMap<PrefetchId, PrefetchView> = own.map(|it| ((it.session, it.number), it)).collect();
        let ids: Vec<_> = self.facts.prefetches.sequences.live.keys().copied().collect();
        let silent: Vec<_> = ids.into_iter().filter(|id| !self.is_prefetch_heard(id.0)).collect();
        let facts = &mut self.facts.prefetches.sequences;
        for id in silent {
            let Some(sequence) = facts.live.get_mut(&id) else { continue };
            sequence.has_ended = true;
            facts.ended.insert(sequence.tenant);
        }
        let live = std::mem::take(&mut facts.live);
        let shown = broker.sequences();
        for (id, sequence) in &live {
            let view = shown.iter().find(|it| (it.session, it.number) == *id);
            let goes_on = !sequence.has_ended;
            self.expect(SEQUENCE_HELD, goes_on == view.is_some(), || {
                format!("{id:?} is {view:?}: {sequence:?}")
            });
            self.expect(SEQUENCE_HELD, !goes_on || sequence.cancelled.is_none(), || {
                format!("{id:?} was ended, and goes on: {sequence:?}")
            });
            let Some(view) = view.filter(|_| goes_on) else { continue };
            let is_as_told =
                view.begun == sequence.begun && Some(u64::from(view.window.steps)) == sequence.window;
            self.expect(SEQUENCE_WINDOW, is_as_told, || format!("{id:?} is {view:?}: {sequence:?}"));
        }
        let unknown = shown.iter().find(|it| !live.contains_key(&(it.session, it.number)));
        self.expect(SEQUENCE_HELD, unknown.is_none(), || format!("{unknown:?} was never declared"));
        for view in own.values() {
            self.check_own_request(view, &live);
        }
        for (id, sequence) in live.iter().filter(|(_, it)| it.is_moved && !it.has_ended) {
            self.check_all_requested(*id, sequence, &own);
        }
        let facts = &mut self.facts.prefetches.sequences;
        facts.live = live.into_iter().filter(|(_, it)| !it.has_ended).collect();
        facts.live.values_mut().for_each(|it| it.is_moved = false);
        facts.ended.clear();
        facts.own = own;
    }

    /// Checks that a request of the daemon's own is for the parts of a step of the window.
    fn check_own_request(&mut self, view: &PrefetchView, live: &BTreeMap<SequenceId, SequenceFacts>) {
        let Some(place) = view.place else { return };
        let sequence = live.get(&(view.session, place.sequence)).filter(|it| !it.has_ended);
        let Some(sequence) = sequence else {
            return self.expect(SEQUENCE_HELD, false, || format!("it outlives its sequence: {view:?}"));
        };
        let in_use = sequence.begun == Some(place.step) && view.phase == PrefetchPhase::Fetching;
        let is_ahead = (sequence.first_ahead()..sequence.end()).contains(&place.step);
        let parts = sequence.parts_at(place.step);
        let bytes: Option<u64> = parts.iter().map(|part| self.size_of(*part)).sum();
        let is_its = usize::try_from(view.parts) == Ok(parts.len())
            && bytes.is_none_or(|bytes| bytes == view.bytes.get());
        self.expect(SEQUENCE_WINDOW, (in_use || is_ahead) && is_its, || {
            format!("{view:?} is for {parts:?} of {bytes:?} bytes: {sequence:?}")
        });
    }

    /// Checks that there is a request for each step of the window, after a step has begun. A fetch may fail at once, and a
    /// waiter may need the room of a part of a later step.
    fn check_all_requested(
        &mut self,
        id: SequenceId,
        sequence: &SequenceFacts,
        own: &BTreeMap<PrefetchId, PrefetchView>,
    ) {
        if self.facts.extents_ran_out || self.step.prefetch_stopped || self.step.failure_reported {
            return;
        }
        let requested: BTreeSet<u64> = own
            .values()
            .filter(|it| it.session == id.0)
            .filter_map(|it| it.place.filter(|place| place.sequence == id.1).map(|place| place.step))
            .collect();
        let missing = (sequence.first_ahead()..sequence.end()).find(|step| !requested.contains(step));
        let is_hindered = missing.is_some_and(|step| {
            let is_gone = |part: &PartRef| {
                self.facts.failed_parts.contains(part) || self.step.left_device.contains(part)
            };
            sequence.parts_at(step).iter().any(is_gone)
        });
        self.expect(SEQUENCE_WINDOW, missing.is_none() || is_hindered, || {
            format!("{id:?} has no request for step {missing:?}: {sequence:?}, {own:?}")
        });
    }

    /// Whether a part may leave for a request of the daemon's own, or for any of those that waited before.
    pub(crate) fn may_leave_for_sequence(
        &self,
        (part, tenant, device): (PartRef, Tenant, usize),
        is_cold: bool,
        broker: &Broker,
    ) -> bool {
        let facts = &self.facts.prefetches.sequences;
        let views = broker.prefetches();
        views.iter().chain(facts.own.values()).any(|view| {
            let Some(place) = view.place else { return false };
            let sequence = facts.live.get(&(view.session, place.sequence));
            let Some(sequence) = sequence.filter(|it| it.device == Some(device)) else { return false };
            let parts = sequence.parts_at(place.step);
            let brings_own = parts.iter().any(|part| self.is_brought(*part, tenant));
            let steps = place.step.saturating_sub(sequence.begun.unwrap_or(0));
            let is_later = match facts.need_of(tenant, part) {
                None => self.ranks_no_higher(part, parts),
                Some((needed, _)) if sequence.tenant == tenant => needed > steps,
                Some((_, is_ahead)) => !is_ahead,
            };
            !parts.contains(&part) && (is_cold || (brings_own && is_later))
        })
    }

    /// Whether a part certainly may leave for each step for which the daemon makes requests on the device, or made them
    /// before the event: the tenant needs it later or, if no sequence names it, it ranks no higher.
    pub(crate) fn is_needed_behind_requests(
        &self,
        (part, tenant, device): (PartRef, Tenant, usize),
        broker: &Broker,
    ) -> bool {
        let facts = &self.facts.prefetches.sequences;
        let need = facts.need_of(tenant, part);
        broker.prefetches().iter().chain(facts.own.values()).all(|view| {
            let place = view.place.and_then(|place| {
                let sequence = facts.live.get(&(view.session, place.sequence))?;
                (sequence.device == Some(device) && sequence.tenant == tenant)
                    .then_some((sequence, place.step))
            });
            place.is_none_or(|(sequence, step)| match need {
                Some((needed, _)) => needed > step.saturating_sub(sequence.begun.unwrap_or(0)),
                None => self.ranks_no_higher(part, sequence.parts_at(step)),
            })
        })
    }

    /// Whether the daemon makes requests on the device for sequences of other tenants, or made them before the event.
    pub(crate) fn has_sequenced_of_others(&self, tenant: Tenant, device: usize, broker: &Broker) -> bool {
        let facts = &self.facts.prefetches.sequences;
        broker.prefetches().iter().chain(facts.own.values()).any(|view| {
            let sequence = view.place.and_then(|place| facts.live.get(&(view.session, place.sequence)));
            sequence.is_some_and(|it| it.device == Some(device) && it.tenant != tenant)
        })
    }

    /// Checks that a part leaves before those of its tenant that sequences need sooner.
    pub(crate) fn check_sequence_order(
        &mut self,
        (part, tenant, device): (PartRef, Tenant, usize),
        leaving: &BTreeSet<PartRef>,
        may_leave: impl Fn(&Self, PartRef) -> bool,
    ) {
        let facts = &self.facts.prefetches.sequences;
        let is_unsure = facts.ended.contains(&tenant) || self.leaves_by_turn(part, device);
        if facts.live_of(tenant).next().is_none() || is_unsure {
            return;
        }
        let own = facts.order_of(tenant, part);
        let used = LazyCell::new(|| self.used_parts());
        let spared = self.facts.advised_leavable.iter().find(|(other, of, on)| {
            let is_of_same = (*of, *on) == (tenant, device) && !leaving.contains(other);
            let is_kept = self.facts.prefetches.is_named(*other) || facts.is_brought(*other);
            let is_before = facts.order_of(tenant, *other) < own;
            is_of_same
                && !is_kept
                && !self.leaves_by_turn(*other, device)
                && is_before
                && self.can_certainly_leave(*other, &used)
                && may_leave(self, *other)
        });
        let spared = spared.map(|(other, ..)| (*other, facts.order_of(tenant, *other)));
        drop(used);
        self.expect(SEQUENCE_ORDER, spared.is_none(), || {
            format!("{part:?} of tenant {tenant} leaves device {device} as {own:?} before {spared:?}")
        });
    }

    /// Bytes of a tenant that own requests which wait would bring to a device.
    pub(crate) fn sequenced_bytes(&self, tenant: Tenant, broker: &Broker) -> u64 {
        let facts = &self.facts.prefetches.sequences;
        let now = broker.prefetches();
        let views = now.iter().chain(facts.own.values());
        let parts: BTreeSet<PartRef> = views
            .filter_map(|it| Some((it.place?, it.session)))
            .flat_map(|(place, session)| facts.parts_of(place, session).iter().copied())
            .collect();
        let own = parts.into_iter().filter(|part| {
            self.facts.allocations.get(&part.allocation).is_some_and(|it| it.tenant == tenant)
        });
        own.filter_map(|part| self.size_of(part)).sum()
    }
}
