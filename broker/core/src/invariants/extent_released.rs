//! No session maps a released extent, and the driver does not read it.

use super::{EXTENT_RELEASED, Violation, expect, scope::Scope};
use crate::{broker::Broker, event::PartRef, pool::ExtentState};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    for (id, allocation) in scope.allocations(broker) {
        for part in allocation.indices().map(|part| PartRef { allocation: id, part }) {
            check_part(broker, part, found);
        }
    }
    for part in scope.extents(broker).filter_map(|(_, extent)| extent.part) {
        check_part(broker, part, found);
    }
}

fn check_part(broker: &Broker, of: PartRef, found: &mut Vec<Violation>) {
    let Some(allocation) = broker.allocations.get(of.allocation) else { return };
    let Some(part) = allocation.part(of.part) else { return };
    let state = broker.pool.extent_of_part(of, part.extent).map(|extent| &extent.state);
    if matches!(state, Some(ExtentState::Releasing(_) | ExtentState::Unreturned(_))) {
        let unused = part.mappings.is_empty() && !allocation.digesting;
        expect(found, EXTENT_RELEASED, unused, || format!("{} is released and in use", part.extent));
    }
}
