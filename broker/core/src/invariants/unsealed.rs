//! Memory that may still be written is mapped by one session only.

use super::{UNSEALED, Violation, expect, scope::Scope};
use crate::{broker::Broker, event::Kind, residency::AllocationState};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    for (id, allocation) in scope.allocations(broker) {
        let sealed = matches!(allocation.state, AllocationState::Sealed) || allocation.digest.is_some();
        if sealed || allocation.kind == Kind::Fixed {
            continue;
        }
        for session in allocation.parts.iter().flat_map(|part| &part.mappings).map(|mapping| mapping.session)
        {
            let own = allocation.owner == Some(session);
            expect(found, UNSEALED, own, || format!("{id} is not sealed and mapped by {session}"));
        }
    }
}
