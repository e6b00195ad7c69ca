//! Session memory ends with its session, and unsealed memory with the session that writes it.

use broker_core::{AllocationState, Broker, Lifetime, Target, invariants::LIFETIMES};

use crate::oracle::Oracle;

impl Oracle {
    pub(crate) fn expect_session_memory_freed(&mut self, broker: &Broker) {
        for session in std::mem::take(&mut self.step.gone) {
            let lived = self.facts.allocations.iter().filter(|(_, it)| it.owner == session && !it.freed);
            let ends: Vec<_> = lived
                .filter(|(_, it)| !(it.sealed && it.lifetime == Lifetime::Persistent))
                .map(|(id, _)| *id)
                .collect();
            let loaded = self.facts.loading.iter().filter(|(_, load)| load.by == session);
            let ends: Vec<_> = ends.into_iter().chain(loaded.map(|(id, _)| *id)).collect();
            for id in ends {
                let state = broker.show(&Target::Id(id)).map(|view| view.state);
                let over = state.is_err() || state == Ok(AllocationState::Freeing);
                self.expect(LIFETIMES, over, || format!("{id} outlives {session}: {state:?}"));
                if let Some(allocation) = self.facts.allocations.get_mut(&id) {
                    allocation.freed = true;
                }
            }
        }
    }
}
