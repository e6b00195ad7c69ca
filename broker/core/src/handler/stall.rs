//! Pin calls in each other's way. A set that is pinned from nothing waits for nobody who waits; but who holds pins and
//! asks for more may wait for somebody who waits for it.
//!
//! A call that for some time waits only for sessions that wait themselves is aborted, the youngest first: its client
//! unpins what it holds, and others get on. These have their time anew.

use std::collections::BTreeSet;

use vramd_types::SessionId;

use super::Timer;
use crate::{
    broker::Broker,
    command::Notice,
    error::Refusal,
    residency::{MapState, Stage},
    tenancy::{PinCall, PinId},
};

impl Broker {
    /// Whether a call was aborted, so that others may get on.
    pub(crate) fn abort_stalled(&mut self) -> bool {
        // Where nothing is fenced, and nothing that was is pinned still, nobody is in anybody's way.
        if self.evicting == 0 && self.revocations.is_empty() {
            return false;
        }
        let calls = self.pins.waiting().map(|(id, call)| (id, self.in_the_way_of(id, call)));
        let calls: Vec<(PinId, BTreeSet<SessionId>)> = calls.collect();
        let (now, wait) = (self.now, self.config.limits.pin_stall);
        let mut due = None;
        for (id, in_the_way) in &calls {
            let stalls = !in_the_way.is_empty() && in_the_way.iter().all(|of| self.pins.is_waiting(*of));
            let Some(call) = self.pins.get_mut(*id) else { continue };
            let since = stalls.then(|| call.stalled.unwrap_or(now));
            if let Some(since) = since.filter(|_| since != call.stalled) {
                self.timers.insert((since.after(wait), Timer::Stall));
            }
            call.stalled = since;
            if since.is_some_and(|since| since.after(wait) <= now) {
                due = Some(*id);
            }
        }
        let Some(youngest) = due.filter(|_| !planted!(self, StallIgnored)) else { return false };
        self.refuse_pin(youngest, Refusal::PinStalled { session: youngest.0 });
        self.notice(Notice::PinStalled { session: youngest.0, call: youngest.1 });
        for (id, _) in calls.iter().filter(|(_, in_the_way)| in_the_way.contains(&youngest.0)) {
            if let Some(call) = self.pins.get_mut(*id) {
                call.stalled = None;
            }
        }
        true
    }

    /// Sessions that a call waits for: those that map a part which was fenced before it came, and its own where that was
    /// told to unmap while it pinned.
    fn in_the_way_of(&self, id: PinId, call: &PinCall) -> BTreeSet<SessionId> {
        let mut sessions = BTreeSet::new();
        let words = self.sessions.get(id.0).and_then(|session| session.words.as_ref());
        for part in &call.left {
            let fenced = self.revocations.get(part).is_some_and(|under_way| {
                matches!(under_way.stage, Stage::Fence { .. }) && under_way.began < call.arrival
            });
            if fenced {
                let holds = self.holds(*part).iter().filter(|hold| hold.state.maps());
                sessions.extend(holds.map(|hold| hold.session));
            }
            let pinned = words.is_some_and(|words| !words.prompt.contains(part));
            if pinned && self.map_state(id.0, *part) == Some(MapState::Evicting) {
                sessions.insert(id.0);
            }
        }
        sessions
    }
}
