//! A session that does not answer a map in time loses its channel.

use broker_core::invariants::SESSION_TIME;

use super::Oracle;

impl Oracle {
    pub(super) fn answers_are_in_time(&mut self) {
        let (now, grace) = (self.facts.now, self.facts.answer_timeout);
        let late = self.facts.sessions.iter().find(|(_, session)| {
            let due = session.owes_since.is_some_and(|since| since.after(grace) < now);
            due && self.facts.open_channels.contains(&session.channel)
        });
        if let Some((id, session)) = late {
            let detail = format!("{id} owes an answer since {:?}", session.owes_since);
            self.expect(SESSION_TIME, false, || detail);
        }
    }
}
