//! Every deadline has a timer. A session has one timer, which may fire too early, never too late.

use super::{TIMERS, Violation, expect, scope::Scope};
use crate::{broker::Broker, residency::Stage, shell::Timer};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    for (id, session) in scope.sessions(broker) {
        let armed = session.alarm.filter(|alarm| broker.shell.timers.contains(&(*alarm, Timer::Session(id))));
        for deadline in session.deadlines() {
            let watched = armed.is_some_and(|alarm| alarm <= deadline);
            expect(found, TIMERS, watched, || format!("{id} has a deadline at {deadline:?} and no timer"));
        }
    }
    for (part, under_way) in &broker.mapping.revocations {
        let until = match under_way.stage {
            Stage::Fence { until } | Stage::Words { fence: Some(until), .. } => until,
            Stage::Words { .. } | Stage::Evict => continue,
        };
        let is_over = until <= broker.shell.now && matches!(under_way.stage, Stage::Words { .. });
        let watched = is_over || broker.shell.timers.contains(&(until, Timer::Fence(*part)));
        expect(found, TIMERS, watched, || format!("{part:?} is fenced until {until:?}, and no timer is set"));
    }
    for (id, op) in scope.ops(broker) {
        let is_its = |(_, timer): &(_, Timer)| *timer == Timer::Parts(id);
        let watched = !op.kind.has_more_parts() || broker.shell.timers.iter().any(is_its);
        expect(found, TIMERS, watched, || {
            format!("{id:?} has more parts to begin with, and no timer is set")
        });
    }
    for (id, call) in broker.pins.iter().filter(|(_, call)| call.is_waiting()) {
        let watched = broker.shell.timers.contains(&(call.stall_check, Timer::Stall(id.0, id.1)));
        expect(found, TIMERS, watched, || {
            format!("{id:?} may stall until {:?}, and no timer is set", call.stall_check)
        });
        let ends = |until| broker.shell.timers.contains(&(until, Timer::Pin(id.0, id.1)));
        expect(found, TIMERS, call.deadline.is_none_or(ends), || {
            format!("{id:?} waits until {:?}, and no timer ends it", call.deadline)
        });
    }
}
