//! No session maps a part while it is copied to move it, and neither end of the copy is released.

use super::{MIGRATIONS, Violation, expect, scope::Scope};
use crate::{
    broker::Broker,
    event::Tier,
    pool::Extent,
    residency::{AllocationState, MapState},
};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    for (part, migration) in
        broker.moves.migrations.iter().filter(|(part, _)| scope.has_allocation(part.allocation))
    {
        let from = broker.allocations.get(part.allocation).and_then(|allocation| allocation.part(part.part));
        let is_live = |id| {
            let extent = broker.pool.extent_of_part(part, id);
            extent.is_some_and(Extent::can_hold_part)
        };
        let source = from.is_some_and(|from| is_live(from.extent) && from.extent != migration.to);
        expect(found, MIGRATIONS, source, || format!("{part:?} has no source extent"));
        expect(found, MIGRATIONS, migration.is_made == is_live(migration.to), || {
            format!("{part:?} moves to {}, whose state does not match", migration.to)
        });
        let unmapped = broker.mappings(part).iter().all(|mapping| mapping.state == MapState::Away);
        expect(found, MIGRATIONS, !migration.state.is_copying() || unmapped, || {
            format!("{part:?} is copied while it is mapped")
        });
        let waits = migration.is_unmapped || broker.mapping.revocations.contains_key(&part);
        expect(found, MIGRATIONS, waits, || {
            format!("{part:?} waits for an unmap that no revocation requests")
        });
    }
    for (id, allocation) in scope.allocations(broker) {
        for index in allocation.indices() {
            let part = crate::event::PartRef { allocation: id, part: index };
            let can_be =
                broker.tier_of(part).is_none_or(|tier| tier != Tier::Disk) && !broker.is_dropped(part);
            let maps = broker.mappings(part).iter().any(|mapping| mapping.state != MapState::Away);
            expect(found, MIGRATIONS, can_be || !maps, || {
                format!("{part:?} is mapped where it cannot be mapped")
            });
            let lies_below = broker.tier_of(part) == Some(Tier::Host);
            // All sessions are unmapping a freed part.
            let is_freed = allocation.state == AllocationState::Freeing;
            let may = is_freed
                || allocation.in_place
                || broker.mapping.chosen_in_place.contains(&part)
                || broker.mapping.in_place_to_unmap.contains(&part);
            expect(found, MIGRATIONS, may || !(maps && lies_below), || {
                format!("{part:?} is mapped in host memory, and no unmap is under way")
            });
        }
    }
}
