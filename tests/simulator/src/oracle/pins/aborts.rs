//! No call is aborted as stalled that is not: one that has not waited long enough, that nothing blocks, that waits
//! for a session which does not wait itself, or beside a younger one that has stalled as well.

use broker_core::{PartRef, Time, invariants::STALLS};
use vramd_types::SessionId;

use crate::oracle::{
    Oracle,
    facts::{ExtentFacts, ExtentPhase, MapPhase, PinFacts, SessionFacts},
};

impl Oracle {
    /// Checks a call that is aborted as stalled, before that is recorded.
    pub(crate) fn check_abort(&mut self, id: SessionId, number: u64, call: &PinFacts) {
        let stall = self.limits.pin_stall;
        let has_waited = |since: Time| since.after(stall) <= self.facts.now;
        let problem = match self.passed_younger(call) {
            _ if !has_waited(call.at) => Some("it has not waited long enough".to_owned()),
            Some(younger) => Some(format!("call {younger:?} is younger and has stalled")),
            None => self.why_not_stalled(id, call),
        };
        self.expect(STALLS, problem.is_none(), || {
            format!("call {number} of {id} is aborted as stalled: {}", problem.unwrap_or_default())
        });
    }

    /// Why the call has certainly not stalled, if so.
    fn why_not_stalled(&self, id: SessionId, call: &PinFacts) -> Option<String> {
        let session = self.facts.sessions.get(&id)?;
        for part in &call.parts {
            let fence = self.facts.fences.get(part);
            if fence.is_some_and(|fence| fence.arrived < call.arrived && fence.progress.is_some()) {
                let running = self.mappers_of(*part).find(|of| !self.has_waited_long(*of));
                if let Some(running) = running {
                    return Some(format!("it waits for {part:?}, which {running} maps without waiting"));
                }
            }
        }
        let is_evicted = |part: &PartRef| matches!(session.mappings.get(part), Some((MapPhase::Evicting, _)));
        let may_be_revoked =
            |part: &PartRef| self.is_being_revoked(*part) || self.facts.fences.contains_key(part);
        if call.parts.iter().any(|part| is_evicted(part) || may_be_revoked(part)) {
            return None;
        }
        let lies_off = |part: &&PartRef| !matches!(session.mappings.get(part), Some((MapPhase::Mapped, _)));
        let devices: Vec<_> =
            call.parts.iter().filter(lies_off).map(|part| self.device_of_part(*part)).collect();
        match devices[..] {
            [] => Some("it has all its parts".to_owned()),
            [Some(device), ..] if devices.iter().all(|of| *of == Some(device)) => {
                self.why_not_stalled_for_room(id, device)
            }
            _ => None,
        }
    }

    pub(crate) fn device_of_part(&self, part: PartRef) -> Option<usize> {
        self.facts.allocations.get(&part.allocation).map(|it| it.device)
    }

    /// Why a call that lacks only room on this device has certainly not stalled, if so.
    fn why_not_stalled_for_room(&self, id: SessionId, device: usize) -> Option<String> {
        let leaves = |it: &&ExtentFacts| {
            it.place == device && matches!(it.phase, ExtentPhase::Releasing | ExtentPhase::GivenUp)
        };
        if self.facts.extents.values().any(|it| leaves(&it)) {
            return Some(format!("memory is leaving device {device}"));
        }
        // A part whose fence has expired counts as pinned by each session that has not unmapped it yet.
        let outlasts_fence = self.facts.sessions.get(&id).is_some_and(|session| {
            session.mappings.iter().any(|(part, (phase, _))| {
                matches!(phase, MapPhase::Evicting)
                    && !session.unmaps.is_evicted(*part)
                    && !self.facts.fences.contains_key(part)
            })
        });
        let pins = outlasts_fence || self.facts.pinned.iter().any(|(_, by)| *by == id);
        if !pins && !self.has_turn(id) {
            return Some("its session pins nothing, so that others would go on without it".to_owned());
        }
        // A session that is told to unmap the part pins it no longer, as far as the core knows.
        let is_mapped = |part: &PartRef, by: &SessionId| {
            let mapping = self.facts.sessions.get(by).and_then(|it| it.mappings.get(part));
            matches!(mapping, Some((MapPhase::Mapped, _)))
        };
        let on_device = |(part, by): &&(PartRef, SessionId)| {
            let is_open =
                self.facts.allocations.get(&part.allocation).is_some_and(|it| !(it.leaving || it.freed));
            is_open && is_mapped(part, by) && self.resident(*part).is_some_and(|(_, on, _)| on == device)
        };
        let mut pinning = self.facts.evictable_pins.iter().filter(on_device);
        let running = pinning.find(|(_, by)| !self.has_waited_long(*by));
        running.map(|(part, by)| format!("{by} pins {part:?} on device {device} without waiting"))
    }

    /// Whether the session may have waited for as long as a stall takes.
    fn has_waited_long(&self, id: SessionId) -> bool {
        let Some(session) = self.facts.sessions.get(&id) else { return true };
        let is_over = session.gone || !self.facts.open_channels.contains(&session.channel);
        !is_over
            && session.waits_since.is_some_and(|since| since.after(self.limits.pin_stall) <= self.facts.now)
    }

    /// A younger call that has stalled and is checked for the first time in this event: it goes first.
    fn passed_younger(&self, aborted: &PinFacts) -> Option<(SessionId, u64)> {
        let heard = self.facts.sessions.iter().filter(|(_, it)| !it.gone && self.facts.is_heard(it));
        let mut calls =
            heard.flat_map(|(id, it)| it.pin_calls.iter().map(move |(number, call)| (*id, *number, call)));
        let younger = calls.find(|(id, _, call)| {
            !call.answered && call.arrived > aborted.arrived && self.is_newly_stalled(*id, call)
        });
        younger.map(|(id, number, _)| (id, number))
    }

    fn is_newly_stalled(&self, id: SessionId, call: &PinFacts) -> bool {
        let checked = call.at.after(self.limits.pin_stall);
        if checked <= self.facts.before || checked > self.facts.now {
            return false;
        }
        let is_recent = |progress: Time| progress.after(self.limits.pin_stall) > self.facts.now;
        let has_progressed =
            |part: &PartRef| self.facts.fences.get(part).is_some_and(|it| it.progress.is_none_or(is_recent));
        let is_clear =
            |part: &PartRef| !has_progressed(part) && self.may_lie_on_device(*part) && !self.may_move(*part);
        let blockers = self.blockers_of(id, call).filter(|_| call.parts.iter().all(is_clear));
        blockers.is_some_and(|by| !by.is_empty() && by.iter().all(|of| self.has_waited_long(*of)))
    }
}

impl SessionFacts {
    /// Updates since when the session waits for any of its calls.
    pub(crate) fn update_wait(&mut self, now: Time) {
        let waits = self.pin_calls.values().any(|call| !call.answered);
        self.waits_since = waits.then(|| self.waits_since.unwrap_or(now));
    }
}
