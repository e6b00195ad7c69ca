//! Nobody's process is ended unless an operator asked for that.

use broker_core::{ChannelId, invariants::KILLS};

use super::Oracle;

impl Oracle {
    pub(super) fn killed(&mut self, channel: ChannelId) {
        let session = self.facts.on_channel.get(&channel).and_then(|id| self.facts.sessions.get(id));
        let asked = session.is_some_and(|session| session.kill_asked);
        self.expect(KILLS, asked, || format!("the process behind {channel:?} is killed unasked"));
    }
}
