//! Working sets, and turns of sessions on them: what the oracle has seen, and what must be true of it.

mod admitted;
mod granted;
mod held;
mod judged;
mod victims;

use std::collections::{BTreeMap, BTreeSet};

use broker_core::{PartRef, Time, TurnPhase, WorkingSetSpec};
use vramd_types::{AllocationId, SessionId};

use super::{
    Oracle,
    facts::{PinFacts, Tenant},
};

/// The daemon numbers the pin calls of turns from here on.
pub(crate) const OWN_CALLS: u64 = 1 << 63;

#[derive(Clone, Debug)]
struct SetFacts {
    name: String,
    device: usize,
    allocations: Vec<AllocationId>,
    parts: Vec<PartRef>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    HandOver { admitted: Time },
    Held { granted: Time, asked: Option<TurnAsked> },
}

/// When a client was last asked to yield, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TurnAsked {
    at: Time,
    by_operator: bool,
}

#[derive(Clone, Copy, Debug)]
struct TurnFacts {
    number: u64,
    set: u64,
    tenant: Tenant,
    device: usize,
    /// The number of the event of its request.
    arrived: u64,
    until: Option<Time>,
    stage: Stage,
}

impl TurnFacts {
    const fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting)
    }

    const fn granted(&self) -> Option<Time> {
        match self.stage {
            Stage::Held { granted, .. } => Some(granted),
            Stage::Waiting | Stage::HandOver { .. } => None,
        }
    }

    const fn asked(&self) -> Option<TurnAsked> {
        match self.stage {
            Stage::Held { asked, .. } => asked,
            Stage::Waiting | Stage::HandOver { .. } => None,
        }
    }

    const fn phase(&self) -> TurnPhase {
        match self.stage {
            Stage::Waiting => TurnPhase::Waiting,
            Stage::HandOver { .. } => TurnPhase::HandOver,
            Stage::Held { asked: None, .. } => TurnPhase::Owned,
            Stage::Held { asked: Some(_), .. } => TurnPhase::Ending,
        }
    }
}

/// All working sets and turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllTurns {
    sets: BTreeMap<(SessionId, u64), SetFacts>,
    turns: BTreeMap<SessionId, TurnFacts>,
    last_set: BTreeMap<SessionId, u64>,
    last_turn: BTreeMap<SessionId, u64>,
    /// The time that each tenant held turns which have ended, divided by its weight.
    used: BTreeMap<(usize, Tenant), u128>,
    /// The working set that the event declares, until it is answered.
    declared: Option<(SessionId, u64, WorkingSetSpec)>,
    /// The turn that the event requests, until it is refused or waits.
    requested: Option<(SessionId, TurnFacts)>,
    /// Sessions whose turns the event admits, in their order.
    admitted: Vec<SessionId>,
    /// Sessions that the event asks to yield for others.
    asked: Vec<SessionId>,
    /// The sets whose turns the event ended.
    ended: Vec<(SessionId, u64)>,
    /// The devices on which sessions took turns before the event.
    taken_on: BTreeSet<usize>,
    /// Parts of sets that could certainly leave their devices before the event.
    leavable: Vec<(PartRef, Tenant, usize)>,
    /// When the turns of allocations came before the event, by device.
    next_before: BTreeMap<(AllocationId, usize), victims::NextTurn>,
}

impl Oracle {
    /// Ends the turn of a session, as far as the session goes on.
    fn end_turn(&mut self, id: SessionId) {
        let Some(turn) = self.facts.turns.turns.remove(&id) else { return };
        self.facts.turns.ended.push((id, turn.set));
        let now = self.facts.now;
        if let Some(session) = self.facts.sessions.get_mut(&id) {
            session.pin_calls.remove(&(OWN_CALLS + turn.number));
            session.update_wait(now);
        }
        if let Some(granted) = turn.granted() {
            let held = self.divided(turn.tenant, now.since(granted));
            *self.facts.turns.used.entry((turn.device, turn.tenant)).or_default() += held;
        }
    }

    /// Ends the turn of a session at the word of its client, which says that it uses the set no longer.
    fn yield_turn(&mut self, id: SessionId) {
        let held = self.facts.turns.turns.get(&id).filter(|turn| turn.granted().is_some());
        let set = held.and_then(|turn| self.facts.turns.sets.get(&(id, turn.set)));
        let parts = set.map(|set| set.parts.clone()).unwrap_or_default();
        self.facts.yielded_pins.extend(parts.into_iter().map(|part| (part, id)));
        self.end_turn(id);
    }

    /// Ends the turns and the sets of sessions that have ended, or whose channel has.
    fn end_turns_of_ended(&mut self) {
        let has_ended = |id: &SessionId| {
            let session = self.facts.sessions.get(id);
            session.is_none_or(|it| it.gone || !self.facts.open_channels.contains(&it.channel))
        };
        let ended: BTreeSet<SessionId> =
            self.facts.turns.sets.keys().map(|(id, _)| *id).filter(has_ended).collect();
        for id in &ended {
            self.end_turn(*id);
        }
        self.facts.turns.sets.retain(|(id, _), _| !ended.contains(id));
    }

    /// Takes the turn that the event requests as one that waits.
    fn queue_requested_turn(&mut self) {
        self.end_turns_of_ended();
        let Some((id, turn)) = self.facts.turns.requested.take() else { return };
        if !self.facts.turns.sets.contains_key(&(id, turn.set)) {
            return;
        }
        self.begin_asking(&turn);
        self.facts.turns.turns.insert(id, turn);
    }

    /// Adds the pin call that an admitted turn makes.
    fn add_own_call(&mut self, id: SessionId, number: u64, parts: Vec<PartRef>) {
        let (arrived, now) = (self.facts.clock, self.facts.now);
        parts.iter().for_each(|part| self.record_prefetched_use(*part, false));
        let Some(session) = self.facts.sessions.get_mut(&id) else { return };
        session.pin_requested.extend(parts.iter().copied());
        let place = self.facts.turns.admitted.len();
        let call =
            PinFacts { parts, arrived, place, at: now, answered: false, stalled_since: None, until: None };
        session.pin_calls.insert(OWN_CALLS + number, call);
        session.update_wait(now);
    }

    /// Checks all turns after the event.
    pub(crate) fn check_working_sets(&mut self, broker: &broker_core::Broker) {
        self.expect_set_answered();
        self.queue_requested_turn();
        self.check_admitted();
        self.check_all_asked();
        self.check_held(broker);
        let wanted: BTreeSet<usize> = self.facts.turns.turns.values().map(|turn| turn.device).collect();
        self.facts.turns.used.retain(|(device, _), _| wanted.contains(device));
    }
}
