//! What happens because nothing did.

use vramd_types::SessionId;

use crate::{
    broker::Broker,
    error::Refusal,
    tenancy::{OpKind, Outcome, SessionEvent, SilentReason},
    time::Time,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Session(SessionId),
    Survey,
}

impl Broker {
    pub(crate) fn arm(&mut self, deadline: Time, timer: Timer) {
        self.timers.insert((deadline, timer));
    }

    /// Runs every timer that is due. One that was overtaken by an answer finds nothing to do.
    pub(crate) fn run_timers(&mut self) {
        while let Some((deadline, timer)) = self.timers.first().copied() {
            if deadline > self.now {
                return;
            }
            self.timers.pop_first();
            match timer {
                Timer::Session(id) => self.check_deadlines(id),
                Timer::Survey => {
                    self.survey_all();
                    self.arm_survey();
                }
            }
        }
    }

    fn check_deadlines(&mut self, id: SessionId) {
        let now = self.now;
        let due = |deadline: Option<Time>| deadline.is_some_and(|deadline| deadline <= now);
        let Some(session) = self.sessions.get_mut(id) else { return };
        if due(session.map_deadline) {
            // Its descriptors are in flight, and others wait for that budget: they go with the channel.
            return self.close_channel(id, SilentReason::Overdue);
        }
        if due(session.revoke_deadline) {
            session.revoke_deadline = None;
            self.session_event(id, SessionEvent::Overdue, Some(SilentReason::Overdue));
            self.resolve_overdue(id);
            self.fail_seals(id, |allocation| Refusal::StillMapped { allocation });
            self.check_ends(id);
        } else if let Some(deadline) = session.revoke_deadline.or(session.map_deadline) {
            self.arm(deadline, Timer::Session(id));
        }
    }

    /// A session that an operator ended does not unmap: it is killed, or the operator is told.
    pub(crate) fn check_ends(&mut self, id: SessionId) {
        let of_session = |kind: &OpKind| match kind {
            OpKind::EndSession { session, kill } if *session == id => Some(*kill),
            _ => None,
        };
        let ends: Vec<_> =
            self.ops.iter().filter_map(|(op, entry)| Some((op, of_session(&entry.kind)?))).collect();
        for (op, kill) in ends {
            let Some(session) = self.sessions.get(id) else { return };
            if kill {
                let channel = session.channel;
                self.command(crate::command::Command::KillProcess { channel });
            } else {
                let still_mapped = self.mapped_bytes(id, session);
                self.finish(op, Ok(Outcome::SessionEnded { gone: false, still_mapped }));
            }
        }
    }
}
