//! Mapper sets, what sessions map, descriptors in flight, and who waits for what.

use std::collections::BTreeMap;

use vramd_types::{AllocationId, SessionId};

use super::{FDS, MAPPERS, OPS, UNSEALED, Violation, expect, expect_equal};
use crate::{
    broker::Broker,
    event::Kind,
    residency::{AllocationState, MapState},
    tenancy::{OpId, OpKind, Session, TenantId},
};

pub(super) fn check(broker: &Broker, found: &mut Vec<Violation>) {
    let mut maps: BTreeMap<SessionId, BTreeMap<AllocationId, usize>> = BTreeMap::new();
    let mut in_flight: BTreeMap<SessionId, usize> = BTreeMap::new();
    let mut revoking: BTreeMap<SessionId, usize> = BTreeMap::new();
    for (id, allocation) in broker.allocations.iter_after(None) {
        let entries = allocation.parts.iter().map(|part| part.mappers.len()).sum();
        expect_equal(found, MAPPERS, || format!("entries of {id}"), &allocation.map_entries, &entries);
        for (session, state) in allocation.parts.iter().flat_map(|part| &part.mappers) {
            *maps.entry(*session).or_default().entry(id).or_default() += 1;
            *in_flight.entry(*session).or_default() += usize::from(state.in_flight());
            *revoking.entry(*session).or_default() += usize::from(*state == MapState::Revoking);
            let sealed = matches!(allocation.state, AllocationState::Sealed) || allocation.digest.is_some();
            let own = sealed || allocation.kind == Kind::Fixed || allocation.owner == Some(*session);
            expect(found, UNSEALED, own, || format!("{id} is not sealed and mapped by {session}"));
            expect(found, MAPPERS, broker.sessions.get(*session).is_some(), || {
                format!("{session} is no session")
            });
        }
    }
    let mut by_tenant: BTreeMap<TenantId, usize> = BTreeMap::new();
    for (id, session) in broker.sessions.iter() {
        let should = maps.remove(&id).unwrap_or_default();
        expect_equal(found, MAPPERS, || format!("maps of {id}"), &session.maps, &should);
        let fds = in_flight.get(&id).copied().unwrap_or_default();
        expect_equal(found, FDS, || format!("descriptors in flight to {id}"), &session.fds_in_flight, &fds);
        let should = revoking.get(&id).copied().unwrap_or_default();
        expect_equal(found, MAPPERS, || format!("revocations of {id}"), &session.revoking, &should);
        let queued = session.channel_open || session.queue.is_empty();
        expect(found, FDS, queued, || format!("{id} has parts queued on a closed channel"));
        *by_tenant.entry(session.tenant).or_default() += fds;
    }
    let total = by_tenant.values().sum();
    expect_equal(found, FDS, || "descriptors in flight".to_owned(), &broker.fds.total, &total);
    for (tenant, fds) in &by_tenant {
        let name = || format!("descriptors of {}", broker.tenants.name(*tenant));
        expect_equal(found, FDS, name, &broker.fds.of(*tenant), fds);
    }
    check_ops(broker, found);
}

/// An operation waits for the driver, or for a session that has a deadline.
fn check_ops(broker: &Broker, found: &mut Vec<Violation>) {
    for (id, op) in broker.ops.iter() {
        let waits = match &op.kind {
            OpKind::Release { items, session } => {
                items.iter().filter(|item| item.result.is_none()).all(|item| {
                    let maps = |entry: &Session| entry.maps.contains_key(&item.allocation);
                    let mapped = broker.sessions.get(*session).is_some_and(maps);
                    is_watched(broker, item.allocation, id) && (!mapped || has_deadline(broker, *session))
                })
            }
            OpKind::Free(freed) => is_watched(broker, *freed, id),
            OpKind::Seal(sealed) => broker.allocations.get(*sealed).is_some_and(|allocation| {
                let answers = allocation.owner.is_some_and(|owner| has_deadline(broker, owner));
                allocation.op == Some(id) && (allocation.digesting || answers)
            }),
            OpKind::EndSession { session, kill } => {
                broker.sessions.get(*session).is_some() && (*kill || has_deadline(broker, *session))
            }
            OpKind::Allocate { extents_left, .. } => *extents_left > 0,
            OpKind::Quota(_) => true,
        };
        expect(found, OPS, waits, || format!("{id:?} waits for nothing: {op:?}"));
    }
}

fn is_watched(broker: &Broker, allocation: AllocationId, op: OpId) -> bool {
    broker.allocations.get(allocation).is_some_and(|allocation| allocation.watchers.contains(&op))
}

fn has_deadline(broker: &Broker, session: SessionId) -> bool {
    let due = |session: &Session| session.map_deadline.or(session.revoke_deadline).is_some();
    broker.sessions.get(session).is_some_and(due)
}
