//! What is released is used by nobody.

use super::{EXTENT_RELEASED, Violation, expect, scope::Scope};
use crate::{
    broker::Broker,
    pool::ExtentState,
    residency::{Allocation, Part},
};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    for (_, allocation) in scope.allocations(broker) {
        allocation.parts.iter().for_each(|part| check_part(broker, allocation, part, found));
    }
    for (_, extent) in scope.extents(broker) {
        let allocation = broker.allocations.get(extent.part.allocation);
        let part = allocation.and_then(|allocation| Some((allocation, allocation.part(extent.part.part)?)));
        if let Some((allocation, part)) = part {
            check_part(broker, allocation, part, found);
        }
    }
}

fn check_part(broker: &Broker, allocation: &Allocation, part: &Part, found: &mut Vec<Violation>) {
    let state = broker.pool.get(part.extent).map(|extent| &extent.state);
    if matches!(state, Some(ExtentState::Releasing(_) | ExtentState::Unreturned(_))) {
        let unused = part.mappers.is_empty() && !allocation.digesting;
        expect(found, EXTENT_RELEASED, unused, || format!("{} is released and in use", part.extent));
    }
}
