//! A part that is written back lies on its device, and is copied to its own backing.

use super::{Violation, WRITTEN_BACK, expect, scope::Scope};
use crate::{broker::Broker, event::Tier, pool::Extent};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    for (part, under_way) in
        broker.moves.write_backs.iter().filter(|(part, _)| scope.has_allocation(part.allocation))
    {
        let on_device = broker.tier_of(part) == Some(Tier::Device);
        expect(found, WRITTEN_BACK, on_device, || format!("{part:?} is written back and not on its device"));
        if !under_way.state.is_copying() {
            let below = broker.is_backing_of(part, under_way.to);
            expect(found, WRITTEN_BACK, below, || {
                format!("{part:?} is to be written back to a backing that is not its own")
            });
            continue;
        }
        let entry = broker.allocations.get(part.allocation).and_then(|allocation| allocation.part(part.part));
        let ends = [entry.map(|entry| entry.extent), Some(under_way.to)];
        let is_there = |id| broker.pool.extent_of_part(part, id).is_some_and(Extent::can_hold_part);
        let there = ends.into_iter().all(|id| id.is_some_and(is_there));
        expect(found, WRITTEN_BACK, there, || {
            format!("{part:?} is written back, and an end of the copy does not exist")
        });
    }
}
