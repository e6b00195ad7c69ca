//! Every name leads to an allocation that has it.

use super::{NAMES, Violation, expect, scope::Scope};
use crate::{broker::Broker, residency::AllocationState};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    for (tenant, name, id) in broker.allocations.names().filter(|(.., id)| scope.has_allocation(*id)) {
        let bears = broker.allocations.get(id).is_some_and(|allocation| {
            allocation.tenant == tenant
                && allocation.name.as_deref() == Some(name)
                && allocation.state != AllocationState::Freeing
        });
        expect(found, NAMES, bears, || format!("{name} is the name of {id}, which does not have it"));
    }
}
