//! A deadline that no timer knows of passes unseen. A session has one timer, which may come too early, never too late.

use super::{TIMERS, Violation, expect, scope::Scope};
use crate::{broker::Broker, handler::Timer};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    for (id, session) in scope.sessions(broker) {
        let armed = session.alarm.filter(|alarm| broker.timers.contains(&(*alarm, Timer::Session(id))));
        for deadline in [session.map_deadline, session.revoke_deadline].into_iter().flatten() {
            let watched = armed.is_some_and(|alarm| alarm <= deadline);
            expect(found, TIMERS, watched, || format!("{id} has a deadline at {deadline:?} and no timer"));
        }
    }
}
