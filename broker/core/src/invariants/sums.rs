//! What is counted along the way, so that nobody has to look at everything, says what looking would.

use vramd_types::{AllocationId, Bytes, SessionId};

use super::{MAPPERS, Violation, expect_equal};
use crate::{
    broker::Broker,
    residency::{Allocation, MapState, mappers_of},
    tenancy::Session,
};

pub(super) fn check(broker: &Broker, found: &mut Vec<Violation>) {
    for (id, session) in broker.sessions.iter() {
        let mapped = sum_over(broker, session, |allocation| mapped_of(allocation, id));
        expect_equal(found, MAPPERS, || format!("bytes mapped by {id}"), &session.mapped, &mapped);
        let queued: usize = maps_of(broker, session).map(|allocation| queued_of(allocation, id)).sum();
        expect_equal(found, MAPPERS, || format!("parts queued for {id}"), &session.queue.len(), &queued);
        let deadline = [session.map_deadline, session.revoke_deadline].into_iter().flatten().min();
        let watched = deadline.is_none_or(|deadline| session.alarm.is_some_and(|alarm| alarm <= deadline));
        expect_equal(found, MAPPERS, || format!("deadlines of {id} are watched"), &watched, &true);
    }
}

fn maps_of<'a>(broker: &'a Broker, session: &'a Session) -> impl Iterator<Item = &'a Allocation> {
    session.maps.keys().filter_map(|id: &AllocationId| broker.allocations.get(*id))
}

fn sum_over(broker: &Broker, session: &Session, of: impl Fn(&Allocation) -> Bytes) -> Bytes {
    maps_of(broker, session).fold(Bytes::ZERO, |sum, allocation| sum.saturating_add(of(allocation)))
}

fn mapped_of(allocation: &Allocation, session: SessionId) -> Bytes {
    let maps =
        |index: &_| allocation.part(*index).is_some_and(|part| mappers_of(part).any(|of| of == session));
    let sizes = allocation.indices().filter(maps).map(|index| allocation.size_of(index));
    sizes.fold(Bytes::ZERO, Bytes::saturating_add)
}

fn queued_of(allocation: &Allocation, session: SessionId) -> usize {
    allocation.parts.iter().filter(|part| part.map_state(session) == Some(MapState::Queued)).count()
}
