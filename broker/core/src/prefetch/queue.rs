//! The order of queued requests on each device.
//!
//! Each tenant has a queue of its own: higher priority first, then the earlier deadline that can still be met, then the
//! earlier request. Between tenants the higher class goes first. In a class the tenant goes first whose next request has
//! the earliest such deadline. Among those without one, the tenant is next for which the fewest bytes were fetched for its
//! weight. So deadlines are met as long as the link can meet them, and no tenant is starved by another one's requests,
//! unless that one is of a higher class.
//!
//! A request that misses its deadline goes on as one without a deadline. Otherwise it would be first, and make the next
//! one miss its deadline too.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use vramd_types::{Bytes, DeviceIndex};

use super::{Prefetch, PrefetchId, lower};
use crate::{
    tenancy::{Standing, TenantId, TenantWeight},
    time::Time,
};

/// The place of a request in the queue of its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    priority: Reverse<u8>,
    /// Whether it has no deadline that can be met, and the deadline.
    deadline: (bool, Option<Time>),
    since: Time,
    id: PrefetchId,
}

#[derive(Debug, Default)]
struct Queue {
    places: BTreeSet<Place>,
    /// Bytes fetched for the tenant, each divided by its weight at that time, or what it was taken to have when it last
    /// began to ask.
    fetched: u128,
}

/// The queues of all tenants and devices.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    queues: BTreeMap<(DeviceIndex, TenantId), Queue>,
    /// Queues that are not empty.
    active: BTreeSet<(DeviceIndex, TenantId)>,
    /// How many requests of each device have a deadline that can still be met.
    with_deadline: BTreeMap<DeviceIndex, usize>,
}

impl Place {
    fn of(id: PrefetchId, request: &Prefetch) -> Self {
        let deadline = request.deadline.filter(|_| !request.misses_deadline);
        let deadline = (deadline.is_none(), deadline);
        Self { priority: Reverse(request.priority), deadline, since: request.since, id }
    }
}

impl Queues {
    /// Adds a request. A tenant that had none queued starts with the share of the one of its class that had the least, so
    /// it has no claim on the time when it asked for nothing.
    pub(super) fn enter(
        &mut self,
        id: PrefetchId,
        request: &Prefetch,
        standing: impl Fn(TenantId) -> Standing,
    ) {
        let key = (request.device, request.tenant);
        if self.active.insert(key) {
            let others = self.active.range((key.0, TenantId::MIN)..=(key.0, TenantId::MAX));
            let class = standing(key.1).class;
            let others = others.filter(|other| **other != key && standing(other.1).class == class);
            let others = others.filter_map(|other| self.queues.get(other));
            let least = others.map(|queue| queue.fetched).min().unwrap_or_default();
            let queue = self.queues.entry(key).or_default();
            queue.fetched = queue.fetched.max(least);
        }
        let place = Place::of(id, request);
        if place.deadline.1.is_some() {
            *self.with_deadline.entry(key.0).or_default() += 1;
        }
        self.queues.entry(key).or_default().places.insert(place);
    }

    pub(super) fn leave(&mut self, id: PrefetchId, request: &Prefetch) {
        let key = (request.device, request.tenant);
        let Some(queue) = self.queues.get_mut(&key) else { return };
        let place = Place::of(id, request);
        if queue.places.remove(&place) && place.deadline.1.is_some() {
            lower(&mut self.with_deadline, key.0);
        }
        if queue.places.is_empty() {
            self.active.remove(&key);
        }
    }

    /// Puts a queued request among those without a deadline.
    pub(super) fn drop_deadline(&mut self, id: PrefetchId, request: &mut Prefetch) {
        let Some(queue) = self.queues.get_mut(&(request.device, request.tenant)) else { return };
        let place = Place::of(id, request);
        if queue.places.remove(&place) {
            if place.deadline.1.is_some() {
                lower(&mut self.with_deadline, request.device);
            }
            request.misses_deadline = true;
            queue.places.insert(Place::of(id, request));
        }
    }

    /// Whether a queued request of the device has a deadline that can still be met.
    pub(super) fn has_deadline(&self, device: DeviceIndex) -> bool {
        self.with_deadline.contains_key(&device)
    }

    /// Counts bytes that are fetched for a tenant.
    pub(crate) fn count(
        &mut self,
        (device, tenant): (DeviceIndex, TenantId),
        weight: TenantWeight,
        bytes: Bytes,
    ) {
        if let Some(queue) = self.queues.get_mut(&(device, tenant)) {
            queue.fetched = queue.fetched.saturating_add(weight.divide(bytes.get()));
        }
    }

    /// The devices that have queued requests.
    pub(crate) fn devices(&self) -> Vec<DeviceIndex> {
        let mut devices: Vec<_> = self.active.iter().map(|(device, _)| *device).collect();
        devices.dedup();
        devices
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// The tenants that have queued requests for a device.
    pub(crate) fn tenants(&self, device: DeviceIndex) -> Vec<TenantId> {
        let active = self.active.range((device, TenantId::MIN)..=(device, TenantId::MAX));
        active.map(|(_, tenant)| *tenant).collect()
    }

    /// The next request of a tenant.
    pub(crate) fn first(&self, device: DeviceIndex, tenant: TenantId) -> Option<PrefetchId> {
        self.queues.get(&(device, tenant))?.places.first().map(|place| place.id)
    }

    /// The next request of each tenant, in their order.
    pub(crate) fn heads(
        &self,
        device: DeviceIndex,
        standing: impl Fn(TenantId) -> Standing,
    ) -> Vec<PrefetchId> {
        let active = self.active.range((device, TenantId::MIN)..=(device, TenantId::MAX));
        let mut heads: Vec<_> = active
            .filter_map(|key| {
                let queue = self.queues.get(key)?;
                let first = queue.places.first()?;
                let class = Reverse(standing(key.1).class);
                Some(((class, first.deadline, queue.fetched, first.since, first.id), first.id))
            })
            .collect();
        heads.sort_unstable();
        heads.into_iter().map(|(_, id)| id).collect()
    }
}
