//! Descriptors in flight add up by session, by tenant and in total.

use std::collections::BTreeMap;

use super::{FDS, Violation, expect, expect_equal, mapper_sets::states, scope::Scope};
use crate::{broker::Broker, tenancy::TenantId};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    for (id, session) in scope.sessions(broker) {
        let of =
            |allocation| states(broker, id, allocation).iter().filter(|state| state.is_in_flight()).count();
        let fds = session.maps.keys().map(|allocation| of(*allocation)).sum();
        expect_equal(found, FDS, || format!("descriptors in flight to {id}"), &session.fds_in_flight, &fds);
        let queued = session.channel_open || session.queue.is_empty();
        expect(found, FDS, queued, || format!("{id} has parts queued on a closed channel"));
    }
    let mut by_tenant: BTreeMap<TenantId, usize> = BTreeMap::new();
    for (_, session) in broker.sessions.iter() {
        *by_tenant.entry(session.tenant).or_default() += session.fds_in_flight;
    }
    let total = by_tenant.values().sum();
    expect_equal(found, FDS, || "descriptors in flight".to_owned(), &broker.mapping.fds.total, &total);
    for (tenant, fds) in &by_tenant {
        let name = || format!("descriptors of {}", broker.tenants.name(*tenant));
        expect_equal(found, FDS, name, &broker.mapping.fds.of(*tenant), fds);
    }
}
