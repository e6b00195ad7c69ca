//! Sequences are taken, walked through and ended.

use std::collections::BTreeSet;

use vramd_types::{Bytes, PartIndex, SessionId};

use crate::{
    broker::Broker,
    command::{Command, DaemonFrame, PrefetchEnd},
    error::Refusal,
    event::{Kind, PartRef},
    follow_up::Fact,
    handler::{Start, Started},
    limits::{
        PIN_PARTS_MAX, SEQUENCE_PARTS_MAX, SEQUENCE_PARTS_PER_TENANT_MAX, SEQUENCE_STEPS_MAX,
        SEQUENCES_PER_SESSION_MAX,
    },
    sequence::{PartRange, Sequence, SequenceId, SequenceSpec, SequenceState, Step},
    tenancy::Outcome,
};

impl Broker {
    /// Takes a sequence, and tells its client how far ahead the daemon works.
    pub(crate) fn on_sequence(
        &mut self,
        id: SessionId,
        number: u64,
        spec: SequenceSpec,
    ) -> Result<(), String> {
        let session = self.sessions.get_mut(id);
        let Some(words) = session.and_then(|session| session.words.as_mut()) else {
            return Err("a sequence in a session without pins".to_owned());
        };
        if let Some(last) = words.last_sequence.filter(|last| number <= *last) {
            return Err(format!("sequence {number} after {last}"));
        }
        check_size(&spec)?;
        words.last_sequence = Some(number);
        match self.check_sequence(id, &spec) {
            Ok(sequence) => {
                let chosen = self.chosen_in_place_among(sequence.parts());
                self.moves.sequences.insert((id, number), sequence);
                chosen.into_iter().for_each(|part| self.reconsider_in_place(part));
                self.keep_window((id, number), 0);
            }
            Err(refusal) => self.tell_sequence((id, number), SequenceState::Refused(refusal)),
        }
        Ok(())
    }

    /// The program begins a step. The daemon may have ended the sequence meanwhile.
    pub(crate) fn on_sequence_step(&mut self, id: SessionId, number: u64, step: u64) -> Result<(), String> {
        self.check_sequence_number(id, number)?;
        planted!(self, SequenceOfOtherSession => id = self.another_with_sequence(id, number));
        let Some(sequence) = self.moves.sequences.get((id, number)) else { return Ok(()) };
        if let Some(before) = sequence.begun().filter(|before| step <= *before) {
            return Err(format!("step {step} of sequence {number} begins after step {before}"));
        }
        if step >= sequence.step_count() {
            let count = sequence.step_count();
            return Err(format!("step {step} of sequence {number} begins, and there are {count}"));
        }
        self.begin_sequence_step((id, number), step);
        Ok(())
    }

    /// Ends a sequence for its client. It may have ended already.
    pub(crate) fn on_sequence_ended(&mut self, id: SessionId, number: u64) -> Result<(), String> {
        self.check_sequence_number(id, number)?;
        self.end_sequence((id, number), SequenceState::Ended { by_operator: false });
        Ok(())
    }

    fn check_sequence_number(&self, id: SessionId, number: u64) -> Result<(), String> {
        let words = self.sessions.get(id).and_then(|session| session.words.as_ref());
        match words.and_then(|words| words.last_sequence).is_none_or(|last| number > last) {
            true => Err(format!("sequence {number} was never declared")),
            false => Ok(()),
        }
    }

    /// Ends a sequence, and tells its client.
    pub(crate) fn end_sequence(&mut self, id: SequenceId, state: SequenceState) {
        if self.drop_sequence(id) {
            self.tell_sequence(id, state);
        }
    }

    /// Ends a prefetch request for an operator, and the sequence that it was made for.
    pub(crate) fn cancel_request(&mut self, session: SessionId, number: u64) -> Start {
        let request = self.moves.prefetches.get((session, number));
        let Some(place) = request.and_then(|request| request.place) else {
            return self.cancel_prefetch(session, number);
        };
        self.end_sequence((session, place.sequence), SequenceState::Ended { by_operator: true });
        Ok(Started::Done(Outcome::PrefetchCancelled))
    }

    /// Ends all sequences of a session that hears nothing further.
    pub(crate) fn end_sequences_of(&mut self, id: SessionId) {
        if self.moves.sequences.is_empty() {
            return;
        }
        planted!(self, SequenceOutlivesSession => return);
        for sequence in self.moves.sequences.of_session(id) {
            self.drop_sequence(sequence);
        }
    }

    /// Ends sequences that name a part which their session no longer has.
    pub(crate) fn check_sequences_of(&mut self, part: PartRef) {
        let naming: Vec<_> = self.moves.sequences.naming(part).map(|(id, _)| id).collect();
        for id in naming {
            if !self.can_prefetch(id.0, part) {
                let refusal = match self.sessions.get(id.0).is_some_and(|session| session.ending) {
                    true => Refusal::SessionLost { session: id.0 },
                    false => Refusal::AllocationNotFound { allocation: part.allocation.to_string() },
                };
                self.end_sequence(id, SequenceState::Refused(refusal));
            }
        }
    }

    /// Ends a sequence without a word. Returns whether it was there.
    fn drop_sequence(&mut self, id: SequenceId) -> bool {
        let Some(sequence) = self.moves.sequences.remove(id) else { return false };
        planted!(self, SequenceNotEnded => return true);
        for (_, number) in sequence.requests {
            self.withdraw_request((id.0, number), PrefetchEnd::Cancelled);
        }
        // Its parts may leave as others do.
        self.follow_ups.push(Fact::VictimsChanged);
        true
    }

    fn check_sequence(&self, id: SessionId, spec: &SequenceSpec) -> Result<Sequence, Refusal> {
        let invalid = |field, problem| Err(Refusal::RequestInvalid { field, problem });
        let session = self.sessions.get(id).filter(|session| !session.ending);
        let session = session.ok_or(Refusal::SessionLost { session: id })?;
        let tenant = session.tenant;
        let mut device = None;
        let mut steps = Vec::with_capacity(spec.steps.len());
        for step in &spec.steps {
            let parts: Vec<PartRef> = step.iter().copied().flat_map(parts_of).collect();
            if parts.is_empty() || step.iter().any(|range| range.count == 0) {
                return invalid("steps", "a step or a range has no parts");
            }
            if parts.len() > PIN_PARTS_MAX {
                return invalid("steps", "a step has more than 1024 parts");
            }
            let distinct: BTreeSet<PartRef> = parts.iter().copied().collect();
            if distinct.len() < parts.len() {
                return invalid("steps", "a step names a part twice");
            }
            let mut bytes = Bytes::ZERO;
            for part in parts.iter().copied() {
                let footprint = self.footprint_of(part).filter(|_| self.can_prefetch(id, part));
                let not_found = || Refusal::AllocationNotFound { allocation: part.allocation.to_string() };
                let footprint = footprint.ok_or_else(not_found)?;
                if self.allocations.get(part.allocation).is_some_and(|it| it.kind == Kind::Fixed) {
                    return Err(Refusal::KindUnsupported { kind: "prefetched fixed" });
                }
                if *device.get_or_insert(footprint.device) != footprint.device {
                    return invalid("steps", "they lie on several devices; declare one sequence for each");
                }
                bytes = bytes.saturating_add(footprint.size);
            }
            self.check_feasible(tenant, parts.iter().copied())?;
            steps.push(Step { parts, bytes });
        }
        let Some(device) = device else { return invalid("steps", "there are none") };
        let use_count = steps.iter().map(|step| step.parts.len()).fold(0, usize::saturating_add);
        let of_tenant = self.moves.sequences.use_count_of(tenant).saturating_add(use_count);
        let of_session = self.moves.sequences.count_of(id).saturating_add(1);
        for (count, limit) in
            [(of_session, SEQUENCES_PER_SESSION_MAX), (of_tenant, SEQUENCE_PARTS_PER_TENANT_MAX)]
        {
            if count > limit {
                return Err(Refusal::QueueFull { limit });
            }
        }
        Ok(Sequence::new(tenant, device, steps, spec.passes))
    }

    /// Tells a client how its sequence stands.
    pub(crate) fn tell_sequence(&mut self, (id, number): SequenceId, state: SequenceState) {
        let Some(session) = self.sessions.get(id).filter(|session| session.channel_open) else { return };
        let channel = session.channel;
        self.push_command(Command::Send { channel, frame: DaemonFrame::Sequence { number, state } });
    }
}

/// Whether a sequence is of a size that an honest client sends.
fn check_size(spec: &SequenceSpec) -> Result<(), String> {
    let ranges = || spec.steps.iter().flatten();
    let parts = ranges().map(|range| u64::from(range.count)).fold(0, u64::saturating_add);
    let parts = usize::try_from(parts).unwrap_or(usize::MAX);
    for (count, max, of) in [
        (spec.steps.len(), SEQUENCE_STEPS_MAX, "steps"),
        (ranges().count(), SEQUENCE_STEPS_MAX, "ranges"),
        (parts, SEQUENCE_PARTS_MAX, "parts"),
    ] {
        if count > max {
            return Err(format!("a sequence of {count} {of}: at most {max} are allowed"));
        }
    }
    Ok(())
}

fn parts_of(range: PartRange) -> impl Iterator<Item = PartRef> {
    let PartRange { allocation, first, count } = range;
    let indices = first.0..first.0.saturating_add(count);
    indices.map(move |index| PartRef { allocation, part: PartIndex(index) })
}
