//! A session that does not answer a map frame, or does not map its word table, in time loses its channel.

use broker_core::invariants::SESSION_TIME;

use crate::oracle::Oracle;

impl Oracle {
    pub(crate) fn check_answer_deadlines(&mut self) {
        let now = self.facts.now;
        let late = self.facts.sessions.iter().find(|(_, session)| {
            let due = self.facts.due_of(session).is_some_and(|due| due < now);
            due && self.facts.open_channels.contains(&session.channel)
        });
        if let Some((id, session)) = late {
            let detail =
                format!("{id} had to answer by {:?} and still has its channel", self.facts.due_of(session));
            self.expect(SESSION_TIME, false, || detail);
        }
    }
}
