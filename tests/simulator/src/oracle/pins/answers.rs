//! Every pin call is answered once: when all its parts are mapped, or with a refusal for a possible reason.

use std::time::Duration;

use broker_core::{
    Broker, ChannelId, PartRef, Refusal,
    invariants::{BOUNDS, FENCES, PIN_ANSWERS},
};
use vramd_types::{AllocationId, SessionId};

use crate::oracle::{
    Oracle,
    facts::{MapPhase, PinFacts, SessionFacts},
    requests::reasons::PIN_REASONS,
    turns::OWN_CALLS,
};

impl Oracle {
    /// Records a pin call. Returns whether its frame fits the protocol.
    pub(crate) fn record_pin(
        &mut self,
        id: SessionId,
        call: u64,
        parts: &[PartRef],
        wait: Option<Duration>,
    ) -> bool {
        let until = wait.map(|wait| self.facts.now.after(wait));
        let (arrived, now) = (self.facts.clock, self.facts.now);
        let Some(session) = self.facts.sessions.get_mut(&id) else { return false };
        let mut each: Vec<_> = parts.to_vec();
        each.sort_unstable();
        each.dedup();
        let fits = session.pins
            && session.last_pin.is_none_or(|last| call > last)
            && each.len() == parts.len()
            && (1..=1024).contains(&parts.len())
            && call < OWN_CALLS;
        if fits {
            session.last_pin = Some(call);
            let set = parts.to_vec();
            let facts = PinFacts {
                parts: set,
                arrived,
                place: 0,
                at: now,
                answered: false,
                stalled_since: None,
                until,
            };
            session.pin_calls.insert(call, facts);
            session.update_wait(now);
            session.pin_requested.extend(parts);
        }
        fits
    }

    /// Updates who is to be sent a part that has left its device: only sessions with a pin call on it, even
    /// if they lost it to an earlier waiter.
    pub(crate) fn update_pin_requests(&mut self, part: PartRef) {
        for session in self.facts.sessions.values_mut() {
            _ = match session.pin_calls.values().any(|call| call.parts.contains(&part)) {
                true => session.pin_requested.insert(part),
                false => session.pin_requested.remove(&part),
            };
        }
    }

    /// Checks a loss frame: a session that was to be sent the part keeps it as away and is not sent it now.
    pub(crate) fn check_loss_frame(&mut self, channel: ChannelId, part: PartRef) {
        let Some(id) = self.facts.on_channel.get(&channel).copied() else { return };
        let Some(session) = self.facts.sessions.get_mut(&id) else { return };
        let holds = session.owed.remove(&part) && self.step.damaged == Some(part);
        session.away.insert(part);
        self.expect(PIN_ANSWERS, holds, || {
            format!("{id} is sent the loss of {part:?}, which is not lost or not its own")
        });
    }

    /// Checks that no session is still to be sent a part whose content is lost.
    pub(crate) fn expect_loss_reported(&mut self, broker: &Broker) {
        let Some(part) = self.step.damaged.filter(|part| Self::is_to_be_mapped(*part, broker)) else {
            return;
        };
        let mut sessions = self.facts.sessions.iter();
        let left =
            sessions.find(|(_, it)| self.is_reachable(it) && it.owed.contains(&part)).map(|(id, _)| *id);
        self.expect(PIN_ANSWERS, left.is_none(), || {
            format!("{left:?} still waits for {part:?}, whose content is lost")
        });
    }

    /// Records that a session failed to map a part. A session with pins may ask for it again; its calls on
    /// the part are over.
    pub(crate) fn record_map_failure(&mut self, id: SessionId, part: PartRef) {
        if let Some(session) = self.facts.sessions.get_mut(&id).filter(|session| session.pins) {
            session.away.insert(part);
            self.step.unmappable.insert((id, part));
        }
    }

    /// Checks that every call on a part that could not be mapped has been answered.
    pub(crate) fn expect_map_failures_reported(&mut self) {
        for (id, part) in std::mem::take(&mut self.step.unmappable) {
            let Some(session) = self.facts.sessions.get(&id).filter(|it| self.facts.is_heard(it)) else {
                continue;
            };
            let mut calls = session.pin_calls.iter().filter(|(_, call)| !call.answered);
            let left = calls.find(|(_, call)| call.parts.contains(&part)).map(|(call, _)| *call);
            self.expect(PIN_ANSWERS, left.is_none(), || {
                format!("{id} could not map {part:?}, and its call {left:?} still waits")
            });
        }
    }

    /// Whether a pin would fetch the part: it exists and is the session's, as far as is known.
    fn can_be_pinned(&self, id: SessionId, session: &SessionFacts, part: PartRef) -> bool {
        let allocation = self.facts.allocations.get(&part.allocation);
        let there = allocation.is_some_and(|it| !it.freed && !it.leaving);
        let maps = matches!(session.mappings.get(&part), Some((MapPhase::Offered | MapPhase::Mapped, _)));
        // This holds whatever state its word is in.
        let unmappable = self.step.unmappable.contains(&(id, part));
        there && (maps || unmappable || session.away.contains(&part))
    }

    pub(crate) fn record_pin_end(&mut self, id: SessionId, call: u64) -> bool {
        let now = self.facts.now;
        let Some(session) = self.facts.sessions.get_mut(&id) else { return false };
        // A deadline that is reached in this very moment comes first, and its refusal ends the call.
        let is_over = |call: &PinFacts| !call.answered && call.until.is_some_and(|until| until <= now);
        if !session.pin_calls.get(&call).is_some_and(is_over) {
            session.pin_calls.remove(&call);
        }
        session.update_wait(now);
        session.pins && session.last_pin.is_some_and(|last| call <= last)
    }

    pub(crate) fn check_pin_answer(&mut self, channel: ChannelId, call: u64, refusal: Option<&Refusal>) {
        let Some(id) = self.facts.on_channel.get(&channel).copied() else { return };
        let (max, max_parts) = (self.limits.pins_waiting_max, self.limits.pin_parts_waiting_max);
        let Some(session) = self.facts.sessions.get_mut(&id) else { return };
        let own_tenant = self.facts.tenants[session.tenant].clone();
        let calls = session.pin_calls.len();
        // Calls of the daemon's own for turns have bounds of their own.
        let of_client = session.pin_calls.range(..OWN_CALLS).map(|(_, call)| call.parts.len());
        let all_parts: usize = of_client.sum();
        let Some(facts) = session.pin_calls.get_mut(&call).filter(|facts| !facts.answered) else {
            return self
                .expect(PIN_ANSWERS, false, || format!("call {call} of {id} is answered and does not wait"));
        };
        let PinFacts { parts, arrived, until, .. } = facts.clone();
        let now = self.facts.now;
        if matches!(refusal, Some(Refusal::PinStalled { .. })) {
            let facts = facts.clone();
            self.check_abort(id, call, &facts);
        }
        self.record_pin_answer(id, call, refusal);
        if let Some(refusal) = refusal {
            self.doubt_speculated_calls(id);
            let Some(session) = self.facts.sessions.get(&id) else { return };
            let of = |allocation: AllocationId| parts.iter().filter(move |it| it.allocation == allocation);
            let could_not_map =
                |allocation| of(allocation).any(|part| self.step.unmappable.contains(&(id, *part)));
            let lost = |allocation: &str| {
                let of_it = |part: &&PartRef| part.allocation.to_string() == allocation;
                parts.iter().filter(of_it).any(|part| !self.can_be_pinned(id, session, *part))
            };
            let holds = match refusal {
                Refusal::QueueFull { .. } => calls > max || all_parts > max_parts,
                Refusal::SessionLost { .. } => session.ending,
                Refusal::DeviceFull { free, requested: asked, .. } => asked > free,
                Refusal::QuotaLimit { tenant, limit, requested: asked, .. } => {
                    asked > limit && *tenant == own_tenant
                }
                Refusal::DriverFailed { .. } => self.step.failure_reported,
                Refusal::ContentLost { allocation, part, .. } => {
                    self.step.damaged == Some(PartRef { allocation: *allocation, part: *part })
                }
                Refusal::WaitCancelled { .. } => self.is_cancelling(),
                Refusal::WaitOver { .. } => until.is_some_and(|until| now >= until),
                Refusal::MapFailed { allocation, .. } => could_not_map(*allocation),
                Refusal::AllocationNotFound { allocation } => lost(allocation),
                refusal => PIN_REASONS.contains(&refusal.reason()),
            };
            return self.expect(PIN_ANSWERS, holds, || {
                format!("call {call} of {id} is refused for a reason that does not hold: {refusal:?}")
            });
        }
        self.expect(PIN_ANSWERS, until.is_none_or(|until| now <= until), || {
            format!("call {call} of {id} is granted at {now:?}, after its deadline {until:?}")
        });
        let Some(session) = self.facts.sessions.get(&id) else { return };
        let lacks =
            parts.iter().find(|part| !matches!(session.mappings.get(part), Some((MapPhase::Mapped, _))));
        let lacks = lacks.copied();
        self.expect(PIN_ANSWERS, lacks.is_none(), || {
            format!("call {call} of {id} is granted without {lacks:?}, which is not mapped")
        });
        self.expect(BOUNDS, all_parts <= max_parts, || {
            format!("calls of {id} have {all_parts} parts, at most {max_parts}")
        });
        for part in parts {
            let fenced =
                self.facts.fences.get(&part).is_some_and(|it| it.arrived < arrived && now < it.until);
            self.expect(FENCES, !fenced, || format!("call {call} of {id} came after the fence of {part:?}"));
        }
    }

    /// Records an answer. The others of a session of which a call is aborted have their time anew.
    fn record_pin_answer(&mut self, id: SessionId, call: u64, refusal: Option<&Refusal>) {
        let now = self.facts.now;
        let Some(session) = self.facts.sessions.get_mut(&id) else { return };
        match refusal {
            Some(_) => _ = session.pin_calls.remove(&call),
            None => session.pin_calls.get_mut(&call).into_iter().for_each(|call| call.answered = true),
        }
        session.update_wait(now);
        if matches!(refusal, Some(Refusal::PinStalled { .. })) {
            session.waits_since = session.waits_since.map(|_| now);
        }
    }

    /// Checks that, once nothing is under way, a call waits only where there is no room for its parts, or
    /// where silent sessions hold the descriptor budget or the part itself.
    pub fn check_pins_answered(&mut self) {
        let heard = self.facts.sessions.iter().filter(|(_, it)| !it.gone && self.facts.is_heard(it));
        let heard = heard.filter(|(_, it)| self.has_budget(it.tenant));
        let is_over = |call: &PinFacts| call.until.is_some_and(|until| until < self.facts.now);
        let wants =
            |call: &PinFacts| call.parts.iter().any(|part| self.facts.part_waiters.contains_key(part));
        // A client that does not unmap may have written over the word of the part, which says what it still needs.
        let keeps = |session: &SessionFacts, call: &PinFacts| {
            let is_mapped = |part| matches!(session.mappings.get(part), Some((MapPhase::Mapped, _)));
            let mut missing = call.parts.iter().filter(|part| !is_mapped(part));
            session.silent && missing.all(|part| session.unmaps.is_evicted(*part))
        };
        let is_left = |session: &SessionFacts, call: &PinFacts| {
            !call.answered && (is_over(call) || !wants(call) && !keeps(session, call))
        };
        let left: Vec<_> = heard
            .flat_map(|(id, it)| {
                let left = it.pin_calls.iter().filter(move |(_, call)| is_left(it, call));
                left.map(move |(call, _)| (*id, *call))
            })
            .take(3)
            .collect();
        self.expect(PIN_ANSWERS, left.is_empty(), || format!("pin calls that were never answered: {left:?}"));
    }
}
