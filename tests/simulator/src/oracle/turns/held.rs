//! A turn lasts until its client yields, or its set or its session ends. Its client is asked to yield for a reason, and
//! in time.

use std::time::Duration;

use broker_core::{Broker, OperatorRequest, TurnPhase, invariants::TURN_HELD};
use vramd_types::SessionId;

use super::{Stage, TurnAsked, TurnFacts};
use crate::oracle::{Oracle, facts::Asked};

/// A turn that has to be granted by a time is refused with the first event that comes so much later.
const MOMENT: Duration = Duration::from_micros(1);

impl Oracle {
    /// Checks that a client is asked to yield for a reason.
    pub(super) fn check_asked(&mut self, id: SessionId, turn: &TurnFacts, within: Duration) {
        let is_operators = self.step.call.as_ref().is_some_and(|(_, call)| {
            matches!(&call.asked, Asked::Operator { request: OperatorRequest::YieldTurn { session, .. }, .. } if *session == id)
        });
        // The daemon may ask at once for a reason of its own.
        let by_operator = is_operators && !turn.asked().is_some_and(|asked| asked.by_operator);
        let (limits, now) = (&self.limits.turns, self.facts.now);
        // With a turn that was admitted in this event, the client was asked no more, and may be asked for another.
        let turns = &self.facts.turns;
        let mut admitted = turns.admitted.iter().filter_map(|it| turns.turns.get(it));
        let is_for_another = admitted.any(|it| it.device == turn.device) && !turns.asked.contains(&id);
        // An operator's request turns into one of the daemon's own.
        let is_new = turn.asked().is_none_or(|asked| match asked.by_operator {
            true => !by_operator,
            false => is_for_another,
        });
        let holds = turn.granted().is_some() && is_new && within == limits.overdue_after;
        self.expect(TURN_HELD, holds, || format!("{id} is asked at {now:?} to yield {turn:?}"));
        if let Some(turn) = self.facts.turns.turns.get_mut(&id)
            && let Stage::Held { asked, .. } = &mut turn.stage
        {
            *asked = Some(TurnAsked { at: now, by_operator });
        }
        if !by_operator {
            self.facts.turns.asked.push(id);
        }
    }

    /// Whether the process of a session may be killed, since it does not yield.
    pub(crate) fn is_killed_for_turn(&self, id: SessionId) -> bool {
        let (after, now) = (self.limits.turns.end_after, self.facts.now);
        let asked = self.facts.turns.turns.get(&id).and_then(TurnFacts::asked);
        let for_others = asked.filter(|asked| !asked.by_operator);
        !after.is_zero() && for_others.is_some_and(|asked| asked.at.after(after) <= now)
    }

    /// Checks that the core shows the sets and the turns that there are, and that nothing is late.
    pub(super) fn check_held(&mut self, broker: &Broker) {
        let (now, limits) = (self.facts.now, self.limits.turns.clone());
        self.learn_withdrawn(broker);
        let phase = |id: SessionId, set: u64| {
            let turn = self.facts.turns.turns.get(&id).filter(|turn| turn.set == set);
            let is_overdue = |asked: TurnAsked| asked.at.after(limits.overdue_after) <= now;
            match turn {
                Some(turn) if turn.asked().is_some_and(is_overdue) => TurnPhase::Overdue,
                Some(turn) => turn.phase(),
                None => TurnPhase::Idle,
            }
        };
        let sets = self.facts.turns.sets.iter();
        let there = sets.map(|((id, set), facts)| {
            (*id, *set, facts.name.clone(), facts.allocations.len(), phase(*id, *set))
        });
        let there: Vec<_> = there.collect();
        let shown: Vec<_> = broker
            .working_sets()
            .into_iter()
            .map(|it| (it.session, it.number, it.name.to_string(), it.allocations, it.phase))
            .collect();
        self.expect(TURN_HELD, there == shown, || format!("working sets {shown:?}, should be {there:?}"));
        let turns = &self.facts.turns.turns;
        let is_late = |turn: &TurnFacts| {
            turn.granted().is_none() && turn.until.is_some_and(|until| until.after(MOMENT) < now)
        };
        let late = turns.iter().find(|(_, turn)| is_late(turn)).map(|(id, turn)| (*id, *turn));
        let kept = turns.values().find(|turn| turn.is_waiting() && self.is_kept_waiting(turn)).copied();
        self.expect(TURN_HELD, late.is_none(), || format!("at {now:?} this turn still waits: {late:?}"));
        self.expect(TURN_HELD, kept.is_none(), || {
            format!(
                "at {now:?} no client is asked to yield, although their quanta are over and {kept:?} waits"
            )
        });
    }

    /// Learns which owners are no longer asked. One of them is asked while a turn is kept waiting.
    fn learn_withdrawn(&mut self, broker: &Broker) {
        let owned = broker.working_sets().into_iter().filter(|set| set.phase == TurnPhase::Owned);
        for id in owned.map(|set| set.session) {
            if let Some(turn) = self.facts.turns.turns.get_mut(&id)
                && let Stage::Held { asked, .. } = &mut turn.stage
                && asked.is_some_and(|asked| !asked.by_operator)
            {
                *asked = None;
            }
        }
    }

    /// Whether all owners of the device may be asked for a turn, and none is.
    fn is_kept_waiting(&self, waiting: &TurnFacts) -> bool {
        let there = || self.facts.turns.turns.values().filter(|turn| turn.device == waiting.device);
        // An owner that went on is judged again a quantum later. Its tenant may have as much more time by then.
        let went_on = |turn: &TurnFacts| {
            let own = there().filter(|it| it.granted().is_some() && it.tenant == turn.tenant).count();
            let others = u32::try_from(own.saturating_sub(1)).unwrap_or(u32::MAX);
            let more = self.divided(turn.tenant, self.limits.turns.quantum.saturating_mul(others));
            let most = self.used_by(waiting.tenant, waiting.device) + more;
            turn.tenant != waiting.tenant && self.used_by(turn.tenant, turn.device) <= most
        };
        let may = |turn: &TurnFacts| {
            let is_higher = self.class_of(waiting.tenant) > self.class_of(turn.tenant);
            turn.is_waiting()
                || self.may_be_asked(turn, waiting.tenant, true) && (is_higher || !went_on(turn))
        };
        let is_asked = |turn: &TurnFacts| turn.asked().is_some_and(|asked| !asked.by_operator);
        !there().any(is_asked) && there().all(may) && !self.is_held_back(waiting)
    }
}
