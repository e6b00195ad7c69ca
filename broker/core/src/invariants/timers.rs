//! A deadline that no timer knows of passes unseen.

use super::{TIMERS, Violation, expect, scope::Scope};
use crate::{broker::Broker, handler::Timer};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    for (id, session) in scope.sessions(broker) {
        for deadline in [session.map_deadline, session.revoke_deadline].into_iter().flatten() {
            let armed = broker.timers.contains(&(deadline, Timer::Session(id)));
            expect(found, TIMERS, armed, || format!("{id} has a deadline at {deadline:?} and no timer"));
        }
    }
}
