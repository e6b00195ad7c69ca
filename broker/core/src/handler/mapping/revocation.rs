//! Revocation: every session unmaps a part, so that it can move or be taken away.
//! [`crate::residency::Revocation`] has the stages.
//!
//! - By eviction: the daemon sets REVOKE in the pin words of all mappers, which succeeds only if no session
//!   pins the part. Then it tells the mappers to unmap. Every move begins so (`moves/migrate.rs`).
//! - By fence: no new pin is granted, and each mapper is told to unmap when its pins end. Operators order it
//!   with `wait` (`requests/part_orders.rs`).
//!
//! A part that a session maps without pins, or that a silent session maps, is not revoked: it stays. When the
//! last mapper has unmapped, the revocation leaves a report, from which `after_revocation.rs` resumes the
//! migration that waited for it.

use vramd_types::SessionId;

use crate::{
    broker::Broker,
    command::{Command, Notice, PartRevocation},
    event::{PartRef, WordsOutcome},
    follow_up::Fact,
    invariants,
    residency::{MapEvent, MapState, Mapping, Revocation, RevocationReport, Stage},
    shell::Timer,
    tenancy::{Arrival, OpId},
    time::Time,
};

impl Broker {
    /// Starts to revoke a part, or joins a revocation. `None`: the operation is told when it is over.
    pub(crate) fn revoke_part(
        &mut self,
        op: Option<OpId>,
        part: PartRef,
        wait: bool,
        arrived: Arrival,
    ) -> Option<PartRevocation> {
        let until = self.shell.now.after(self.config.limits.revoke_answer_timeout);
        let under_way = self.mapping.revocations.contains_key(&part);
        let mapping = if under_way { self.mappers(part, |_| true) } else { Vec::new() };
        if let Some(under_way) = self.mapping.revocations.get_mut(&part) {
            let lasts = match &mut under_way.stage {
                // Without mappers the fence is as good as over.
                Stage::Fence { .. } if !wait && !mapping.is_empty() => {
                    return Some(PartRevocation::Pinned { by: mapping });
                }
                Stage::Words { fence, .. } if wait => {
                    planted!(self, FenceCutShort => until = self.shell.now);
                    Some(*fence.get_or_insert(until))
                }
                Stage::Words { .. } | Stage::Evict | Stage::Fence { .. } => None,
            };
            under_way.is_ahead &= op.is_none() && !wait;
            op.into_iter().for_each(|op| under_way.ops.push(op));
            if let Some(until) = lasts {
                self.arm(until, Timer::Fence(part));
            }
            return None;
        }
        if let Some(outcome) = self.why_not_revocable(part, wait, arrived) {
            return Some(outcome);
        }
        let stage = match wait {
            true => {
                self.arm(until, Timer::Fence(part));
                self.follow_ups.push(Fact::RevocationEased(part));
                Stage::Fence { until }
            }
            false => self.revoke_words(part),
        };
        let ops = op.into_iter().collect();
        let (began, last_progress) = (self.pins.next_arrival(), self.shell.now);
        self.mapping.revocations.insert(
            part,
            Revocation { began, stage, ops, attach_waiters: Vec::new(), last_progress, is_ahead: false },
        );
        None
    }

    /// Has the sessions that map the part unmap it before any waiter needs that. A session that does is trusted
    /// from then on. A session that does not is silent by the time that its turn would come.
    pub(crate) fn ask_ahead(&mut self, part: PartRef) {
        if self.mapping.revocations.contains_key(&part) {
            return;
        }
        self.revoke_part(None, part, false, self.pins.after_all());
        if let Some(begun) = self.mapping.revocations.get_mut(&part) {
            begun.is_ahead = true;
        }
    }

    fn revoke_words(&mut self, part: PartRef) -> Stage {
        let (mut words, mut asked) = (Vec::new(), Vec::new());
        for mapping in self.mappings(part).iter().filter(|mapping| mapping.state == MapState::Mapped) {
            if let (Some(session), Some(slot)) = (self.sessions.get(mapping.session), mapping.slot()) {
                words.push((session.channel, mapping.session, slot));
                asked.push(mapping.session);
            }
        }
        // A later call of these sessions counts the part only if they keep it.
        for session in asked.iter().copied() {
            for (_, call) in self.pins.waiting_of(part, session).collect::<Vec<_>>() {
                self.pins.mark_unmapped(call, part);
            }
        }
        self.push_command(Command::RevokeWords { part, words });
        Stage::Words { asked, fence: None }
    }

    pub(crate) fn on_words_revoked(&mut self, part: PartRef, outcome: WordsOutcome) {
        let stage = self.mapping.revocations.get(&part).map(|under_way| under_way.stage.clone());
        let Some(Stage::Words { asked, fence }) = stage else {
            return self
                .report_violation(invariants::MAPPERS, format!("words of {part:?} were revoked unasked"));
        };
        self.follow_ups.push(Fact::RevocationEased(part));
        planted!(self, FenceLost => fence = None);
        let next = match outcome {
            // REVOKE stands in the words: every mapper is told, whether or not it answers.
            WordsOutcome::Revoked => {
                let mut mappers = 0usize;
                for session in asked {
                    let open = self.sessions.get(session).is_some_and(|session| session.channel_open);
                    if open && self.map_state(session, part) == Some(MapState::Mapped) {
                        self.evict_mapping(session, part, true);
                        mappers = mappers.saturating_add(1);
                    }
                }
                self.push_notice(Notice::Evicted { part, mappers });
                Stage::Evict
            }
            WordsOutcome::Pinned { by } => match fence {
                // Earlier calls that had counted the part as lost still have it.
                Some(until) if until > self.shell.now => {
                    self.follow_ups.push(Fact::PartAvailable(part));
                    Stage::Fence { until }
                }
                _ => return self.end_revocation(part, PartRevocation::Pinned { by }),
            },
        };
        if let Some(under_way) = self.mapping.revocations.get_mut(&part) {
            under_way.stage = next;
            planted!(self, FenceBeginsLate => under_way.began = self.pins.next_arrival());
        }
    }

    /// Tells mappers to unmap a fenced part as their calls end, and ends the revocation if it is over.
    pub(crate) fn check_revocation(&mut self, part: PartRef) {
        let Some(under_way) = self.mapping.revocations.get(&part) else { return };
        let began = under_way.began;
        planted!(self, FenceIgnoresCalls => began = Arrival::from_raw(0));
        match under_way.stage {
            Stage::Words { .. } => return,
            Stage::Fence { .. } => self.evict_fenced(part, began),
            Stage::Evict => {}
        }
        let silent = self.silent_mappers(part);
        if !silent.is_empty() {
            return self.end_revocation(part, PartRevocation::Silent { by: silent });
        }
        if !self.has_mappers(part) {
            self.end_revocation(part, PartRevocation::Revoked);
        }
    }

    /// Tells each mapper of a fenced part to unmap it, unless its own call arrived before the fence and has not
    /// ended.
    fn evict_fenced(&mut self, part: PartRef, began: Arrival) {
        let free = |mapping: &Mapping| {
            let answers = self.sessions.get(mapping.session).is_some_and(|session| session.is_answering());
            mapping.state == MapState::Mapped && answers && !self.pins.protects(part, mapping.session, began)
        };
        for session in self.mappers(part, free) {
            self.evict_mapping(session, part, false);
        }
    }

    /// Ends a fence that has lasted long enough. Mappers that were told unmap when their pins end.
    pub(crate) fn expire_fence(&mut self, part: PartRef) {
        let due = |until: Time| until <= self.shell.now;
        let stage = self.mapping.revocations.get(&part).map(|under_way| &under_way.stage);
        if matches!(stage, Some(Stage::Fence { until }) if due(*until)) {
            let by = self.mappers(part, |_| true);
            self.end_revocation(part, PartRevocation::Pinned { by });
        }
    }

    /// Ends a revocation, and leaves a report for everything that waited for it.
    fn end_revocation(&mut self, part: PartRef, outcome: PartRevocation) {
        let Some(over) = self.mapping.revocations.remove(&part) else { return };
        self.mapping.ended.push_back(RevocationReport { part, outcome, over });
        self.follow_ups.push(Fact::RevocationEnded);
    }

    fn evict_mapping(&mut self, id: SessionId, part: PartRef, unmap_soon: bool) {
        if let Err(problem) = self.advance_mapping(id, part, MapEvent::Evict) {
            return self.report_violation(invariants::TRANSITIONS, problem);
        }
        // An earlier waiter needs the room: a call that waits for other parts no longer has this one.
        for (_, call) in self.pins.waiting_of(part, id).collect::<Vec<_>>() {
            self.pins.mark_unmapped(call, part);
        }
        let told = self.revoked_part(id, part);
        self.follow_ups.push(Fact::MappingEvicted(id, told));
        if unmap_soon {
            self.expect_unmapped(id, part);
        }
    }

    /// Sets a short deadline: no session pins the part, so it can be unmapped at once.
    fn expect_unmapped(&mut self, id: SessionId, part: PartRef) {
        let deadline = self.shell.now.after(self.config.limits.unmap_answer_timeout);
        let words = self.sessions.get_mut(id).and_then(|session| session.words.as_mut());
        let Some(words) = words else { return };
        words.unmap_soon.insert(part);
        if words.unmap_deadline.is_none() {
            words.unmap_deadline = Some(deadline);
            planted!(self, RevokeTimerLost => deadline = crate::Time::NEVER);
            self.arm_session(deadline, id);
        }
    }
}
