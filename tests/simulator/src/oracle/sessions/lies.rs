//! A session that breaks the protocol is quarantined at once.

use broker_core::invariants::SESSION_ANSWERS;

use crate::oracle::Oracle;

impl Oracle {
    pub(crate) fn expect_quarantine(&mut self) {
        let Some(id) = self.step.offender.take() else { return };
        let channel = self.facts.sessions.get(&id).map(|session| session.channel);
        let closed = channel.is_none_or(|channel| !self.facts.open_channels.contains(&channel));
        self.expect(SESSION_ANSWERS, closed, || {
            format!("{id} broke the protocol and its channel stays open")
        });
    }
}
