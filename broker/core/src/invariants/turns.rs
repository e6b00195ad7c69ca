//! Every turn is of a set that exists, and has a pin call from its admission on.

use std::collections::BTreeSet;

use super::{TIMERS, TURNS, Violation, expect, expect_equal, scope::Scope};
use crate::{
    broker::Broker,
    shell::Timer,
    tenancy::{OWN_CALLS, PinId},
};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    if !matches!(scope, Scope::All) && broker.sessions.turns.is_empty() {
        return;
    }
    let mut calls: BTreeSet<PinId> = BTreeSet::new();
    for (session, turn) in broker.sessions.turns.iter() {
        let set = broker.sessions.turns.set((session, turn.set));
        let is_its = set.is_some_and(|set| (set.tenant, set.device) == (turn.tenant, turn.device));
        let is_open = broker.sessions.get(session).is_some_and(|session| session.channel_open);
        expect(found, TURNS, is_its && is_open, || format!("{turn:?} of {session} has no set or no session"));
        let id = (session, OWN_CALLS.saturating_add(turn.number));
        if !turn.is_waiting() {
            calls.insert(id);
        }
    }
    let own = broker.pins.iter().map(|(id, _)| id).filter(|(_, call)| *call >= OWN_CALLS);
    expect_equal(found, TURNS, || "calls of turns".to_owned(), &own.collect(), &calls);
    let alarm = broker.sessions.turns.alarm;
    let is_armed = alarm.is_none_or(|alarm| broker.shell.timers.contains(&(alarm, Timer::Turns)));
    expect(found, TIMERS, is_armed, || format!("turns are due at {alarm:?}, and no timer is set"));
}
