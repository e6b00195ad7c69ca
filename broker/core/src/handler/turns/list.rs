//! Working sets as seen from outside.

use crate::{
    broker::Broker,
    turns::{TurnPhase, WorkingSetView},
};

impl Broker {
    /// All working sets that have not ended, by session and number.
    pub fn working_sets(&self) -> Vec<WorkingSetView> {
        let now = self.shell.now;
        let sets = self.sessions.turns.sets().map(|((session, number), set)| {
            let turn = self.sessions.turns.get(session).filter(|turn| turn.set == number);
            let phase = turn.map(|turn| turn.phase());
            let held = turn.and_then(|turn| turn.granted()).map(|granted| now.since(granted));
            WorkingSetView {
                session,
                tenant: self.tenants.shared(set.tenant),
                device: self.uuid(set.device).to_owned(),
                number,
                name: set.name.clone(),
                allocations: set.members.len(),
                bytes: self.bytes_of_set(set),
                phase: phase.map_or(TurnPhase::Idle, |(phase, _)| phase),
                since: phase.map(|(_, since)| since),
                turns: set.granted,
                held: set.held.saturating_add(held.unwrap_or_default()),
            }
        });
        sets.collect()
    }
}
