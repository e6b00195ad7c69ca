//! Pin calls wait for something that will happen, and keep the parts that they have.

use super::{PINS, Violation, expect, expect_equal, scope::Scope};
use crate::{
    broker::Broker,
    event::PartRef,
    residency::MapState,
    tenancy::{OWN_CALLS, PinCall, PinId},
};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    let (mut parts, mut all_missing, mut waiting) = (0, 0, 0);
    for (id, call) in broker.pins.iter() {
        let missing = call.parts.iter().filter(|part| broker.pins.is_missing(id, **part)).count();
        expect_equal(found, PINS, || format!("{id:?} waits"), &call.is_waiting(), &(missing > 0));
        (parts, all_missing) = (parts + call.parts.len(), all_missing + missing);
        waiting += usize::from(call.is_waiting());
        let in_scope = |part: &PartRef| scope.has_session(id.0) || scope.has_allocation(part.allocation);
        for part in call.parts.iter().filter(|part| in_scope(part)) {
            check_part(broker, id, call, *part, found);
        }
    }
    expect_equal(
        found,
        PINS,
        || "calls in the indices".to_owned(),
        &broker.pins.index_counts(),
        &(parts, all_missing, waiting),
    );
    for (id, session) in scope.sessions(broker) {
        let calls = broker.pins.of_session(id).filter(|((_, call), _)| *call < OWN_CALLS);
        let calls = calls.fold((0, 0), |(calls, parts), (_, call)| (calls + 1, parts + call.parts.len()));
        let counted = session.words.as_ref().map_or((0, 0), |words| (words.calls, words.call_parts));
        expect_equal(found, PINS, || format!("pin calls of {id}"), &counted, &calls);
        let unmap_soon = session.words.iter().flat_map(|words| &words.unmap_soon);
        let lasting = unmap_soon.clone().all(|part| broker.map_state(id, *part) == Some(MapState::Evicting));
        expect(found, PINS, lasting, || {
            format!("{id} has an unmap deadline for a part that it was not told to unmap")
        });
    }
}

fn check_part(broker: &Broker, id: PinId, call: &PinCall, part: PartRef, found: &mut Vec<Violation>) {
    let state = broker.map_state(id.0, part);
    let held_up = broker.is_blocked_by_revocation(part, call.arrival);
    let fits = match (broker.pins.is_missing(id, part), state) {
        (true, Some(MapState::Queued | MapState::Offered | MapState::Evicting)) => true,
        (true, Some(MapState::Away)) => {
            held_up
                || broker.moves.migrations.contains(part)
                || broker.line.contains(crate::line::Waiter::Part(part))
        }
        (true, Some(MapState::Mapped)) => held_up,
        (true, _) => false,
        // A part of an answered call may be freed, or unmapped by its client.
        (false, state) => state != Some(MapState::Evicting),
    };
    expect(found, PINS, fits, || format!("{id:?} and {part:?}: {state:?}, of {:?}", call.parts));
}
