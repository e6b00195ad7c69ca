//! Parts have extents, extents have parts, and what is released is used by nobody.

use super::{EXTENT_RELEASED, EXTENTS, NAMES, Violation, expect, expect_equal};
use crate::{broker::Broker, pool::ExtentState, residency::AllocationState};

pub(super) fn check(broker: &Broker, found: &mut Vec<Violation>) {
    for (id, extent) in broker.pool.iter() {
        let allocation = broker.allocations.get(extent.part.allocation);
        let part = allocation.and_then(|allocation| allocation.part(extent.part.part));
        expect(found, EXTENTS, part.is_some_and(|part| part.extent == id), || format!("{id} backs nothing"));
        let (Some(allocation), Some(part)) = (allocation, part) else { continue };
        expect_equal(
            found,
            EXTENTS,
            || format!("size of {id}"),
            &extent.size,
            &allocation.size_of(extent.part.part),
        );
        if matches!(extent.state, ExtentState::Releasing(_) | ExtentState::Unreturned(_)) {
            let unused = part.mappers.is_empty() && !allocation.digesting;
            expect(found, EXTENT_RELEASED, unused, || format!("{id} is released and in use"));
        }
    }
    for (id, allocation) in broker.allocations.iter_after(None) {
        let extents = || allocation.parts.iter().filter_map(|part| broker.pool.get(part.extent));
        expect_equal(
            found,
            EXTENTS,
            || format!("extents of {id}"),
            &allocation.extents_left,
            &extents().count(),
        );
        let unreturned =
            extents().filter(|extent| matches!(extent.state, ExtentState::Unreturned(_))).count();
        expect_equal(
            found,
            EXTENTS,
            || format!("unreturned of {id}"),
            &allocation.extents_unreturned,
            &unreturned,
        );
        let may_lack = matches!(allocation.state, AllocationState::Freeing | AllocationState::Creating);
        let complete = may_lack || extents().count() == allocation.parts.len();
        expect(found, EXTENTS, complete, || format!("{id} lacks extents"));
    }
    for (tenant, name, id) in broker.allocations.names() {
        let bears = broker.allocations.get(id).is_some_and(|allocation| {
            allocation.tenant == tenant
                && allocation.name.as_deref() == Some(name)
                && allocation.state != AllocationState::Freeing
        });
        expect(found, NAMES, bears, || format!("{name} is the name of {id}, which does not bear it"));
    }
}
