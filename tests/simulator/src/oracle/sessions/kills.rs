//! The daemon kills no process unless an operator asked for that, or the process was silent for longer than
//! the configuration allows.

use broker_core::{ChannelId, Time, invariants::KILLS};

use crate::oracle::Oracle;

impl Oracle {
    pub(crate) fn check_kill(&mut self, channel: ChannelId) {
        let id = self.facts.on_channel.get(&channel).copied();
        let session = id.and_then(|id| self.facts.sessions.get(&id));
        let (now, after) = (self.facts.now, self.limits.end_silent_after);
        let is_late = |since: Time| !after.is_zero() && since.after(after) <= now;
        let asked =
            session.is_some_and(|session| session.kill_asked || session.silent_since.is_some_and(is_late));
        let asked = asked || id.is_some_and(|id| self.is_killed_for_turn(id));
        self.expect(KILLS, asked, || format!("the process behind {channel:?} is killed unasked"));
    }
}
