//! The eviction policy orders every part that may leave its device, each once and in the class of its tenant, and
//! remembers no part of an allocation that is gone. Forbidden advice changes nothing of its order.

use std::collections::BTreeSet;

use super::{EVICTION_ORDER, Violation, expect, expect_equal, scope::Scope};
use crate::{broker::Broker, event::PartRef, tenancy::TenantClass};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    if !matches!(scope, Scope::All) {
        return;
    }
    let residents = &broker.usage.residents;
    for device in broker.device_indices() {
        let mut ordered: Vec<_> = residents.order_of_all(device).collect();
        ordered.sort_unstable();
        let listed: Vec<_> = residents.listed(device).collect();
        expect_equal(found, EVICTION_ORDER, || format!("parts ordered on {device:?}"), &ordered, &listed);
        let by_use = TenantClass::ALL.map(|class| residents.order_by_use(device, class, None));
        let mut by_use: Vec<_> = by_use.into_iter().flatten().map(|(part, _)| part).collect();
        let misplaced = TenantClass::ALL.into_iter().find_map(|class| {
            let is_of_class = |part: &PartRef| {
                let tenant = broker.allocations.get(part.allocation).map(|allocation| allocation.tenant);
                tenant.is_none_or(|tenant| broker.tenants.standing(tenant).class == class)
            };
            let mut listed = residents.order_by_use(device, class, None).map(|(part, _)| part);
            listed.find(|part| !is_of_class(part)).map(|part| (part, class))
        });
        expect(found, EVICTION_ORDER, misplaced.is_none(), || {
            format!("{misplaced:?}: the tenant of the part is of another class")
        });
        by_use.sort_unstable();
        expect_equal(found, EVICTION_ORDER, || format!("parts by use on {device:?}"), &by_use, &listed);
    }
    for device in broker.device_indices() {
        let mut tenants: BTreeSet<_> = broker.usage.advice.tenants_with_owners_alone().collect();
        tenants.retain(|tenant| {
            broker.tenants.standing(*tenant).advice.is_forbidden() && !broker.moves.sequences.has_any(*tenant)
        });
        for tenant in tenants {
            let is_own = |part: &PartRef| {
                let allocation = broker.allocations.get(part.allocation);
                allocation.is_some_and(|allocation| allocation.tenant == tenant)
            };
            let advised: Vec<_> = broker.by_tenant(device).filter(is_own).collect();
            let by_policy: Vec<_> = residents.order(device).filter(is_own).collect();
            let order = || format!("parts on {device:?} in the order in which they leave, without advice");
            expect_equal(found, EVICTION_ORDER, order, &advised, &by_policy);
        }
    }
    let advised = broker.usage.advice.allocations().find(|id| broker.allocations.get(*id).is_none());
    expect(found, EVICTION_ORDER, advised.is_none(), || {
        format!("{advised:?} is gone, and advice for it is kept")
    });
    let gone = residents.remembered().find(|part| broker.allocations.get(part.allocation).is_none());
    expect(found, EVICTION_ORDER, gone.is_none(), || {
        format!("{gone:?} is remembered, and its allocation is gone")
    });
}
