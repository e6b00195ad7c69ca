//! A turn is granted once all parts of its set are mapped, or refused for a reason that can apply to it. A working set is
//! taken or refused at once.

use std::{collections::BTreeSet, time::Duration};

use broker_core::{
    ChannelId, Kind, PartRef, Refusal, TurnState, WorkingSetSpec,
    invariants::{TURN_GRANTED, TURN_HELD},
};
use vramd_types::{AllocationId, SessionId};

use super::{OWN_CALLS, SetFacts, Stage, TurnFacts};
use crate::oracle::{Oracle, facts::MapPhase, requests::reasons::PIN_REASONS};

/// The most working sets of a session.
const SETS_MAX: usize = 64;

/// The most allocations that a frame names.
const ALLOCATIONS_MAX: usize = 4096;

impl Oracle {
    /// Records a working set. Returns whether its frame fits the protocol.
    pub(crate) fn record_working_set(&mut self, id: SessionId, number: u64, spec: &WorkingSetSpec) -> bool {
        let pins = self.has_pins(id);
        let turns = &mut self.facts.turns;
        let is_new = turns.last_set.get(&id).is_none_or(|last| number > *last);
        let fits = pins && is_new && spec.allocations.len() <= ALLOCATIONS_MAX;
        if fits {
            turns.last_set.insert(id, number);
            turns.declared = Some((id, number, spec.clone()));
        }
        fits
    }

    pub(crate) fn record_working_set_end(&mut self, id: SessionId, number: u64) -> bool {
        if self.facts.turns.turns.get(&id).is_some_and(|turn| turn.set == number) {
            self.yield_turn(id);
        }
        self.facts.turns.sets.remove(&(id, number));
        self.facts.turns.last_set.get(&id).is_some_and(|last| number <= *last)
    }

    pub(crate) fn check_set_answer(&mut self, channel: ChannelId, number: u64, refusal: Option<&Refusal>) {
        let id = self.facts.on_channel.get(&channel).copied();
        let declared = self.facts.turns.declared.take();
        let Some((id, _, spec)) = declared.filter(|(by, of, _)| Some(*by) == id && *of == number) else {
            return self.expect(TURN_GRANTED, false, || format!("working set {number} was not declared"));
        };
        let problem = self.why_set_invalid(id, &spec);
        match (refusal, problem) {
            (None, None) => self.add_set(id, number, spec),
            (None, Some(problem)) => self.expect(TURN_GRANTED, false, || {
                format!("working set {number} of {id} is taken although {problem}: {spec:?}")
            }),
            (Some(refusal), problem) => {
                let holds = match refusal {
                    Refusal::NameInvalid { .. } => !vramd_types::name::is_valid(&spec.name),
                    Refusal::QueueFull { .. } => self.sets_of(id).count() >= SETS_MAX,
                    Refusal::SessionLost { .. } => {
                        self.facts.sessions.get(&id).is_some_and(|session| session.ending)
                    }
                    Refusal::RequestInvalid { .. } | Refusal::KindUnsupported { .. } => problem.is_some(),
                    Refusal::AllocationNotFound { .. } => problem.is_some() || self.may_lack_one(id, &spec),
                    _ => false,
                };
                self.expect(TURN_GRANTED, holds, || {
                    format!("working set {number} of {id} is refused with {refusal:?}: {spec:?}")
                });
            }
        }
    }

    fn sets_of(&self, id: SessionId) -> impl Iterator<Item = &SetFacts> {
        self.facts.turns.sets.range((id, 0)..=(id, u64::MAX)).map(|(_, set)| set)
    }

    /// Why the daemon has to refuse the set, if so.
    fn why_set_invalid(&self, id: SessionId, spec: &WorkingSetSpec) -> Option<String> {
        let session = self.facts.sessions.get(&id)?;
        let distinct: BTreeSet<_> = spec.allocations.iter().collect();
        let known = |id: &AllocationId| self.facts.allocations.get(id);
        let devices: BTreeSet<_> =
            spec.allocations.iter().filter_map(known).map(|allocation| allocation.device).collect();
        let has = |allocation: &AllocationId| {
            let part = PartRef { allocation: *allocation, part: vramd_types::PartIndex(0) };
            let is_mapped = matches!(
                session.mappings.get(&part),
                Some((MapPhase::Offered | MapPhase::Mapped | MapPhase::Evicting, _))
            );
            is_mapped || session.away.contains(&part) || session.owed.contains(&part)
        };
        let is_bad = |id: &&AllocationId| {
            known(id).is_none_or(|it| it.kind != Kind::Movable || it.freed || it.leaving) || !has(id)
        };
        if !vramd_types::name::is_valid(&spec.name) {
            return Some("its name is invalid".to_owned());
        }
        if self.sets_of(id).any(|set| set.name == spec.name) {
            return Some("the session has a set of that name".to_owned());
        }
        if spec.allocations.is_empty() || distinct.len() < spec.allocations.len() || devices.len() > 1 {
            return Some("its allocations are none, named twice or on several devices".to_owned());
        }
        spec.allocations.iter().find(is_bad).map(|id| format!("the session has no movable {id}"))
    }

    /// Whether an allocation of the set may be one that the session has detached before it was mapped, or one that a call
    /// for its seal has taken from the session.
    fn may_lack_one(&self, id: SessionId, spec: &WorkingSetSpec) -> bool {
        let Some(session) = self.facts.sessions.get(&id) else { return true };
        let is_offered = |id: &AllocationId| {
            let part = PartRef { allocation: *id, part: vramd_types::PartIndex(0) };
            matches!(session.mappings.get(&part), Some((MapPhase::Offered, _)))
        };
        let is_taken = |id: &AllocationId| self.facts.allocations.get(id).is_some_and(|it| it.seal_requested);
        spec.allocations.iter().any(|id| is_offered(id) || is_taken(id))
    }

    fn add_set(&mut self, id: SessionId, number: u64, spec: WorkingSetSpec) {
        let device = spec.allocations.first().and_then(|first| self.facts.allocations.get(first));
        let device = device.map_or(0, |allocation| allocation.device);
        let parts = spec.allocations.iter().flat_map(|id| self.facts.parts_of(*id)).collect();
        let set = SetFacts { name: spec.name, device, allocations: spec.allocations, parts };
        self.facts.turns.sets.insert((id, number), set);
    }

    /// Checks that the set that the event declared was answered, unless its session has ended.
    pub(super) fn expect_set_answered(&mut self) {
        let Some((id, number, _)) = self.facts.turns.declared.take() else { return };
        let session = self.facts.sessions.get(&id);
        let hears = session.is_some_and(|it| !it.gone && self.facts.open_channels.contains(&it.channel));
        self.expect(TURN_GRANTED, !hears, || format!("working set {number} of {id} is not answered"));
    }

    /// Records a request for a turn. Returns whether its frame fits the protocol.
    pub(crate) fn record_turn_request(
        &mut self,
        id: SessionId,
        number: u64,
        set: u64,
        wait: Option<Duration>,
    ) -> bool {
        let Some(session) = self.facts.sessions.get(&id) else { return false };
        let (tenant, pins) = (session.tenant, session.pins);
        let (arrived, now) = (self.facts.clock, self.facts.now);
        let turns = &mut self.facts.turns;
        let is_declared = turns.last_set.get(&id).is_some_and(|last| set <= *last);
        let is_new = turns.last_turn.get(&id).is_none_or(|last| number > *last);
        let fits = pins && is_declared && is_new && number < OWN_CALLS;
        if fits {
            turns.last_turn.insert(id, number);
            let device = turns.sets.get(&(id, set)).map_or(0, |set| set.device);
            let until = wait.map(|wait| now.after(wait));
            let stage = Stage::Waiting;
            let turn = TurnFacts { number, set, tenant, device, arrived, until, stage };
            turns.requested = Some((id, turn));
        }
        fits
    }

    pub(crate) fn record_turn_yield(&mut self, id: SessionId, number: u64) -> bool {
        if self.facts.turns.turns.get(&id).is_some_and(|turn| turn.number == number) {
            self.yield_turn(id);
        }
        self.facts.turns.last_turn.get(&id).is_some_and(|last| number <= *last)
    }

    pub(crate) fn check_turn_frame(&mut self, channel: ChannelId, number: u64, state: &TurnState) {
        let Some(id) = self.facts.on_channel.get(&channel).copied() else { return };
        if let TurnState::Refused(refusal) = state
            && self
                .facts
                .turns
                .requested
                .as_ref()
                .is_some_and(|(by, turn)| *by == id && turn.number == number)
        {
            return self.check_refused_request(id, refusal);
        }
        self.queue_requested_turn();
        let turn = self.facts.turns.turns.get(&id).filter(|turn| turn.number == number).copied();
        let Some(turn) = turn else {
            return self.expect(TURN_HELD, false, || {
                format!("{id} is told {state:?} of turn {number}, which it does not want")
            });
        };
        match state {
            TurnState::Granted => self.check_grant(id, channel, &turn),
            TurnState::Ending { within } => self.check_asked(id, &turn, *within),
            TurnState::Refused(refusal) => self.check_refused_turn(id, channel, &turn, refusal),
        }
    }

    fn check_grant(&mut self, id: SessionId, channel: ChannelId, turn: &TurnFacts) {
        let set = self.facts.turns.sets.get(&(id, turn.set));
        let parts = set.map(|set| set.parts.clone()).unwrap_or_default();
        let session = self.facts.sessions.get(&id);
        let is_mapped = |part: &&PartRef| {
            matches!(session.and_then(|it| it.mappings.get(*part)), Some((MapPhase::Mapped, _)))
        };
        let lacks = parts.iter().find(|part| !is_mapped(part)).copied();
        let is_coming = matches!(turn.stage, Stage::HandOver { .. });
        self.expect(TURN_GRANTED, lacks.is_none() && is_coming, || {
            format!("the turn {turn:?} of {id} is granted, and it lacks {lacks:?}")
        });
        if lacks.is_none() {
            self.check_pin_answer(channel, OWN_CALLS + turn.number, None);
        }
        if let Some(turn) = self.facts.turns.turns.get_mut(&id) {
            turn.stage = Stage::Held { granted: self.facts.now, asked: None };
        }
    }

    /// Checks the refusal of a request that does not wait.
    fn check_refused_request(&mut self, id: SessionId, refusal: &Refusal) {
        let Some((_, turn)) = self.facts.turns.requested.take() else { return };
        self.end_turns_of_ended();
        let has_one = self.facts.turns.turns.contains_key(&id);
        let has_set = self.facts.turns.sets.contains_key(&(id, turn.set));
        let holds = match refusal {
            Refusal::TurnHeld { .. } => has_one,
            Refusal::RequestInvalid { .. } => !has_set && !has_one,
            Refusal::SessionLost { .. } => self.facts.sessions.get(&id).is_some_and(|session| session.ending),
            refusal => has_set && !has_one && PIN_REASONS.contains(&refusal.reason()),
        };
        self.expect(TURN_GRANTED, holds, || format!("{turn:?} of {id} is refused with {refusal:?}"));
    }

    fn check_refused_turn(&mut self, id: SessionId, channel: ChannelId, turn: &TurnFacts, refusal: &Refusal) {
        let now = self.facts.now;
        let is_granted = turn.granted().is_some();
        let holds = match refusal {
            Refusal::TurnWaitOver { .. } => turn.until.is_some_and(|until| until < now),
            refusal => {
                PIN_REASONS.contains(&refusal.reason()) || matches!(refusal, Refusal::ContentLost { .. })
            }
        };
        self.expect(TURN_GRANTED, holds && !is_granted, || {
            format!("{turn:?} of {id} is refused at {now:?} with {refusal:?}")
        });
        let is_own = matches!(refusal, Refusal::TurnWaitOver { .. });
        if matches!(turn.stage, Stage::HandOver { .. }) && !is_own {
            self.check_pin_answer(channel, OWN_CALLS + turn.number, Some(refusal));
        }
        self.end_turn(id);
    }
}
