//! Every part has an extent, and every extent has a part.

use super::{EXTENTS, Violation, expect, expect_equal, scope::Scope};
use crate::{
    broker::Broker,
    event::PartRef,
    pool::ExtentState,
    residency::{Allocation, AllocationState},
};
use vramd_types::AllocationId;

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    for (id, extent) in scope.extents(broker) {
        // A cached extent backs no part: see `cached.rs`.
        let Some(backed) = extent.part else { continue };
        let allocation = broker.allocations.get(backed.allocation);
        let part = allocation.and_then(|allocation| allocation.part(backed.part));
        let stray = broker.moves.detached.contains(backed, id);
        let backs = part.is_some_and(|part| (part.extent == id) != stray);
        expect(found, EXTENTS, backs, || format!("{id} backs nothing"));
        let Some(allocation) = allocation else { continue };
        let size = allocation.size_of(backed.part);
        expect_equal(found, EXTENTS, || format!("size of {id}"), &extent.size, &size);
    }
    for (id, allocation) in scope.allocations(broker) {
        check_counts(broker, id, allocation, found);
    }
}

fn check_counts(broker: &Broker, id: AllocationId, allocation: &Allocation, found: &mut Vec<Violation>) {
    let (mut extents, mut unreturned) = (0_u32, 0_u32);
    for (_, extent) in broker.extents_of(id, allocation) {
        extents += 1;
        unreturned += u32::from(matches!(extent.state, ExtentState::Unreturned(_)));
    }
    expect_equal(found, EXTENTS, || format!("extents of {id}"), &allocation.extents_left, &extents);
    let is = &allocation.extents_unreturned;
    expect_equal(found, EXTENTS, || format!("unreturned of {id}"), is, &unreturned);
    let may_miss = matches!(allocation.state, AllocationState::Freeing | AllocationState::Creating);
    let is_missing = |part: PartRef| {
        allocation
            .part(part.part)
            .is_none_or(|entry| broker.pool.extent_of_part(part, entry.extent).is_none())
    };
    let complete = may_miss || !allocation.indices().any(|part| is_missing(PartRef { allocation: id, part }));
    expect(found, EXTENTS, complete, || format!("{id} is missing extents"));
}
