//! Deadlines: what the daemon does when something has not happened in time.
//!
//! Timers are ordered by time and then by kind. A timer that an answer has overtaken finds nothing to do.

use vramd_types::SessionId;

use crate::{
    broker::Broker,
    command::{Command, Notice},
    error::Refusal,
    ops::OpKind,
    tenancy::{OpId, Outcome, SessionEvent, SessionState, SilentReason},
    time::Time,
};

impl Broker {
    pub(crate) fn check_deadlines(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.alarm = None;
        self.apply_due_deadlines(id);
        if let Some(next) = self.sessions.get(id).and_then(|session| session.deadlines().min()) {
            self.arm_session(next, id);
        }
    }

    fn apply_due_deadlines(&mut self, id: SessionId) {
        let now = self.shell.now;
        let due = |deadline: Option<Time>| deadline.is_some_and(|deadline| deadline <= now);
        let Some(session) = self.sessions.get(id) else { return };
        if due(session.map_deadline) {
            // Its descriptors are in flight, and others wait for that budget: they go with the channel.
            return self.close_channel(id, SilentReason::Overdue);
        }
        if due(session.words.as_ref().and_then(|words| words.map_deadline)) {
            let within = self.config.limits.map_answer_timeout.as_millis();
            return self.quarantine(id, format!("the word table was not mapped within {within} ms"));
        }
        if due(session.kill_at) {
            self.kill_process(id);
        }
        if due(self.sessions.get(id).and_then(|session| session.end_deadline)) {
            self.answer_end_requests(id);
        }
        let Some(session) = self.sessions.get_mut(id) else { return };
        let all_are_due = due(session.revoke_deadline);
        if all_are_due || due(session.unmap_deadline()) {
            session.revoke_deadline = session.revoke_deadline.filter(|deadline| *deadline > now);
            if let Some(words) = &mut session.words {
                words.unmap_deadline = words.unmap_deadline.filter(|deadline| *deadline > now);
            }
            let (tenant, parts) = (session.tenant, session.parts_owed());
            let tenant = self.tenants.shared(tenant);
            self.push_notice(Notice::RevokeOverdue { session: id, tenant, parts });
            self.advance_session(id, SessionEvent::Overdue, Some(SilentReason::Overdue));
            self.note_revocations_of(id);
        }
        // Parts that no session pins are due sooner.
        if all_are_due {
            self.resolve_releases_of(id);
            self.fail_seals(id, |allocation| Refusal::StillMapped { allocation });
            self.resolve_end_requests(id);
        }
    }

    fn kill_process(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.kill_at = None;
        let (channel, tenant) = (session.channel, self.tenants.shared(session.tenant));
        let reason = session.silent_reason.as_ref().map(ToString::to_string).unwrap_or_default();
        self.push_notice(Notice::SessionKilled { session: id, tenant, reason });
        self.push_command(Command::KillProcess { channel });
    }

    /// Schedules the end of a process whose session stays silent, if so configured.
    pub(crate) fn schedule_kill_if_silent(&mut self, id: SessionId, was: SessionState) {
        let (now, after) = (self.shell.now, self.config.limits.end_silent_after);
        let Some(session) = self.sessions.get_mut(id) else { return };
        match session.state {
            SessionState::Silent if was != SessionState::Silent && !after.is_zero() => {
                let deadline = now.after(after);
                session.kill_at = Some(deadline);
                self.arm_session(deadline, id);
            }
            SessionState::Silent => {}
            SessionState::Live | SessionState::Gone => session.kill_at = None,
        }
    }

    /// Handles operators' requests to end a session that does not unmap: its process is killed, or the operator is
    /// told.
    pub(crate) fn resolve_end_requests(&mut self, id: SessionId) {
        for (op, kill) in self.end_requests(id) {
            if kill {
                self.kill_for_operator(id);
            } else {
                self.answer_end_request(op, id);
            }
        }
    }

    /// Kills the session's process. If the session has not ended by the deadline of a revoke, its operators are told.
    pub(crate) fn kill_for_operator(&mut self, id: SessionId) {
        let deadline = self.shell.now.after(self.config.limits.revoke_answer_timeout);
        let Some(session) = self.sessions.get_mut(id) else { return };
        let channel = session.channel;
        session.end_deadline = Some(deadline);
        self.arm_session(deadline, id);
        self.push_command(Command::KillProcess { channel });
    }

    /// Tells every operator who waits for the session's end that it stays.
    pub(crate) fn answer_end_requests(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.end_deadline = None;
        }
        for (op, _) in self.end_requests(id) {
            self.answer_end_request(op, id);
        }
    }

    fn answer_end_request(&mut self, op: OpId, id: SessionId) {
        let Some(session) = self.sessions.get(id) else { return };
        let still_mapped = session.mapped;
        self.finish(op, Ok(Outcome::SessionEnded { gone: false, still_mapped }));
    }

    /// Lists operators' requests to end the session, and whether each wants its process killed.
    fn end_requests(&self, id: SessionId) -> Vec<(OpId, bool)> {
        let of_session = |kind: &OpKind| match kind {
            OpKind::EndSession { session, kill } if *session == id => Some(*kill),
            _ => None,
        };
        let ops = self.requests.ops.of_session(id);
        ops.into_iter().filter_map(|op| Some((op, of_session(&self.requests.ops.get(op)?.kind)?))).collect()
    }
}
