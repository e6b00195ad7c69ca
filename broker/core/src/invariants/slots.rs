//! A slot serves one part.

use std::collections::BTreeSet;

use vramd_types::{AllocationId, SessionId};

use super::{SLOTS, Violation, expect, expect_equal, scope::Scope};
use crate::{broker::Broker, residency::Mapping};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    for (id, session) in scope.sessions(broker) {
        let mut seen = BTreeSet::new();
        for mapping in session.maps.keys().flat_map(|allocation| mappings(broker, *allocation, id)) {
            let fits = match (&session.words, mapping.slot()) {
                (Some(words), Some(slot)) => words.slots.is_taken(slot) && seen.insert(slot),
                (None, None) => true,
                _ => false,
            };
            expect(found, SLOTS, fits, || format!("{id} has {:?} for a part", mapping.slot()));
        }
        let Some(words) = &session.words else { continue };
        expect_equal(found, SLOTS, || format!("slots taken of {id}"), &words.slots.taken(), &seen.len());
        let owned = session.owned.iter().filter_map(|owned| broker.allocations.get(*owned));
        let promised = owned.filter(|it| it.state.promises_slots()).map(|it| it.parts.len()).sum();
        expect_equal(found, SLOTS, || format!("slots promised by {id}"), &words.slots.promised(), &promised);
    }
}

fn mappings(broker: &Broker, allocation: AllocationId, of: SessionId) -> impl Iterator<Item = &Mapping> {
    let parts = broker.allocations.get(allocation).map(|allocation| &*allocation.parts).unwrap_or_default();
    parts.iter().filter_map(move |part| part.mapping(of))
}
