//! Running sums equal what a full recount finds.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{AllocationId, Bytes, DeviceIndex, SessionId};

use super::{RUNNING_SUMS, Violation, expect_equal, scope::Scope};
use crate::{
    broker::Broker,
    event::{PartRef, Tier},
    line::Waiter,
    moves::{Backing, BackingAccount, BackingSum},
    residency::{Allocation, MapState, mappers_of},
    tenancy::{Session, TenantId},
};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    for (id, session) in scope.sessions(broker) {
        let mapped = sum_over(broker, session, |allocation| mapped_of(allocation, id));
        expect_equal(found, RUNNING_SUMS, || format!("bytes mapped by {id}"), &session.mapped, &mapped);
        let queued: usize = maps_of(broker, session).map(|allocation| queued_of(allocation, id)).sum();
        expect_equal(found, RUNNING_SUMS, || format!("parts queued for {id}"), &session.queue.len(), &queued);
    }
    if matches!(scope, Scope::All) {
        let mut remembered = BTreeMap::new();
        for (_, session) in broker.sessions.iter().filter(|(_, session)| session.requests.bytes() > 0) {
            *remembered.entry(session.uid).or_default() += session.requests.bytes();
        }
        let is = broker.sessions.remembered();
        expect_equal(found, RUNNING_SUMS, || "bytes of remembered requests".to_owned(), is, &remembered);
        let parts = broker.allocations.iter_after(None).flat_map(|(_, allocation)| &*allocation.parts);
        let evicting =
            parts.flat_map(|part| &part.mappings).filter(|mapping| mapping.state == MapState::Evicting);
        expect_equal(
            found,
            RUNNING_SUMS,
            || "mappings being evicted".to_owned(),
            &broker.mapping.evicting,
            &evicting.count(),
        );
        let below =
            broker.moves.backings.sums().filter(|(_, below)| *below != BackingSum::default()).collect();
        expect_equal(found, RUNNING_SUMS, || "backing sums".to_owned(), &below, &below_of(broker));
        let counted = broker.tenants.iter().flat_map(|(_, of)| {
            broker.allocations.rounding_of(of).map(move |(device, bytes)| ((of, device), bytes))
        });
        let what = || "rounding".to_owned();
        expect_equal(found, RUNNING_SUMS, what, &counted.collect(), &rounding_of(broker));
        let (idle_on_host, in_place) = in_host_of(broker);
        let what = || "parts in host memory".to_owned();
        expect_equal(found, RUNNING_SUMS, what, &broker.usage.idle_on_host.iter().collect(), &idle_on_host);
        let what = || "bytes in host memory that are accessed in place".to_owned();
        expect_equal(found, RUNNING_SUMS, what, &broker.allocations.in_place().collect(), &in_place);
        let (is, should) =
            (broker.allocations.managed.running_sums(), broker.allocations.managed.recomputed());
        expect_equal(found, RUNNING_SUMS, || "managed memory".to_owned(), is, &should);
        let batches = broker.line.iter().filter(|(_, it)| matches!(it.waiter, Waiter::Batch(_))).count();
        let waiting = (broker.line.iter().count().saturating_sub(batches), batches);
        expect_equal(found, RUNNING_SUMS, || "waiters".to_owned(), &broker.line.counts(), &waiting);
    }
}

fn rounding_of(broker: &Broker) -> BTreeMap<(TenantId, DeviceIndex), Bytes> {
    let mut sums: BTreeMap<_, Bytes> = BTreeMap::new();
    for (_, allocation) in broker.allocations.iter_after(None).filter(|(_, it)| it.span > it.size) {
        let sum = sums.entry((allocation.tenant, allocation.device)).or_default();
        *sum = sum.saturating_add(allocation.span.saturating_sub(allocation.size));
    }
    sums
}

/// Parts in host memory, and the bytes of those that are accessed there.
fn in_host_of(broker: &Broker) -> (BTreeSet<PartRef>, BTreeMap<(TenantId, DeviceIndex), Bytes>) {
    let (mut idle_on_host, mut sums) = (BTreeSet::new(), BTreeMap::new());
    for (id, allocation) in broker.allocations.iter_after(None) {
        let parts = allocation.indices().map(|part| PartRef { allocation: id, part });
        for part in parts.filter(|part| broker.is_resident_on_host(*part)) {
            idle_on_host.insert(part);
            if allocation.in_place {
                let sum: &mut Bytes = sums.entry((allocation.tenant, allocation.device)).or_default();
                *sum = sum.saturating_add(allocation.size_of(part.part));
            }
        }
    }
    (idle_on_host, sums)
}

fn below_of(broker: &Broker) -> BTreeMap<(BackingAccount, Tier), BackingSum> {
    let mut sums: BTreeMap<_, BackingSum> = BTreeMap::new();
    for (part, backing) in broker.moves.backings.iter() {
        let (tier, kept) = match backing {
            Backing::Extent { tier, .. } => (*tier, true),
            Backing::File { .. } => (Tier::Disk, false),
            Backing::Reserved(_) | Backing::Needless => continue,
        };
        if let Some(piece) = broker.footprint_of(part) {
            let sum = sums.entry(((piece.tenant, piece.device), tier)).or_default();
            if kept {
                sum.total = sum.total.saturating_add(piece.size);
            }
            if backing.is_clean() {
                sum.clean = sum.clean.saturating_add(piece.size);
            }
        }
    }
    sums
}

fn maps_of<'a>(broker: &'a Broker, session: &'a Session) -> impl Iterator<Item = &'a Allocation> {
    session.maps.keys().filter_map(|id: &AllocationId| broker.allocations.get(*id))
}

fn sum_over(broker: &Broker, session: &Session, of: impl Fn(&Allocation) -> Bytes) -> Bytes {
    maps_of(broker, session).fold(Bytes::ZERO, |sum, allocation| sum.saturating_add(of(allocation)))
}

fn mapped_of(allocation: &Allocation, session: SessionId) -> Bytes {
    let maps =
        |index: &_| allocation.part(*index).is_some_and(|part| mappers_of(part).any(|of| of == session));
    let sizes = allocation.indices().filter(maps).map(|index| allocation.size_of(index));
    sizes.fold(Bytes::ZERO, Bytes::saturating_add)
}

fn queued_of(allocation: &Allocation, session: SessionId) -> usize {
    allocation.parts.iter().filter(|part| part.map_state(session) == Some(MapState::Queued)).count()
}
