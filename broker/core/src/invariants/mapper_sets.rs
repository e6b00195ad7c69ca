//! Allocations and sessions agree on the mappers of each part.

use vramd_types::{AllocationId, SessionId};

use super::{MAPPERS, Violation, expect, expect_equal, scope::Scope};
use crate::{broker::Broker, residency::MapState, tenancy::Session};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    for (id, allocation) in scope.allocations(broker) {
        let entries: usize = allocation.parts.iter().map(|part| part.mappings.len()).sum();
        let counted = usize::try_from(allocation.mapping_count).unwrap_or(usize::MAX);
        expect_equal(found, MAPPERS, || format!("entries of {id}"), &counted, &entries);
        for session in allocation.parts.iter().flat_map(|part| &part.mappings).map(|mapping| mapping.session)
        {
            let known = broker.sessions.get(session).is_some_and(|session| session.maps.contains_key(&id));
            expect(found, MAPPERS, known, || format!("{session} does not know that it maps {id}"));
        }
    }
    for (id, session) in scope.sessions(broker) {
        check_session(broker, id, session, found);
    }
}

fn check_session(broker: &Broker, id: SessionId, session: &Session, found: &mut Vec<Violation>) {
    let mut revoking = 0;
    for (allocation, count) in &session.maps {
        let states = states(broker, id, *allocation);
        revoking += states.iter().filter(|state| **state == MapState::Revoking).count();
        expect_equal(found, MAPPERS, || format!("parts of {allocation} of {id}"), count, &states.len());
        expect(found, MAPPERS, *count > 0, || format!("{id} lists {allocation} without a mapping"));
    }
    expect_equal(found, MAPPERS, || format!("revocations of {id}"), &session.revoking, &revoking);
}

/// The states of a session's mappings of an allocation, by part.
pub(super) fn states(broker: &Broker, session: SessionId, allocation: AllocationId) -> Vec<MapState> {
    let parts = broker.allocations.get(allocation).map(|allocation| &*allocation.parts).unwrap_or_default();
    parts.iter().filter_map(|part| part.map_state(session)).collect()
}
