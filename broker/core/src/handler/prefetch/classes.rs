//! Classes and weights of tenants decide the order of requests, and which of them pressure pauses.

use vramd_types::{Bytes, DeviceIndex};

use crate::{
    broker::Broker,
    ledger::Place,
    prefetch::{Deferral, PrefetchId},
    pressure::Pressure,
    tenancy::{Standing, TenantClass, TenantId},
};

impl Broker {
    /// The next request of each tenant on a device, in their order.
    pub(crate) fn prefetch_heads(&self, device: DeviceIndex) -> Vec<PrefetchId> {
        let standing = |tenant| {
            let Standing { class, weight, advice } = self.tenants.standing(tenant);
            planted!(self, PrefetchClassIgnored => class = TenantClass::default());
            Standing { class, weight, advice }
        };
        self.moves.prefetches.queues.heads(device, standing)
    }

    /// Counts bytes that are fetched for a tenant against its weight.
    pub(crate) fn count_prefetched(&mut self, device: DeviceIndex, tenant: TenantId, bytes: Bytes) {
        let weight = self.tenants.standing(tenant).weight;
        planted!(self, PrefetchWeightIgnored => weight = crate::tenancy::TenantWeight::default());
        self.moves.prefetches.queues.count((device, tenant), weight, bytes);
    }

    /// Defers a request if the device is so full that the class of its tenant is paused. Returns whether it is. A request
    /// that has begun goes on.
    pub(crate) fn pause_prefetch(&mut self, id: PrefetchId) -> bool {
        let Some(request) = self.moves.prefetches.get(id) else { return false };
        let (place, class) = (Place::device(request.device), self.tenants.standing(request.tenant).class);
        let is_paused = |level: Pressure| pauses_at(class).is_some_and(|begins| level >= begins);
        planted!(self, PauseIgnored => return false);
        if !is_paused(self.pressure_now(place)) {
            return false;
        }
        self.moves.prefetches.defer(id, Deferral::Pressure);
        // If the charge falls within this event, no fall of the level is reported.
        if !is_paused(self.pressure_of(place)) {
            self.schedule_prefetch_retry();
        }
        true
    }
}

/// The level from which on prefetches of a class are paused; `None`: never.
const fn pauses_at(class: TenantClass) -> Option<Pressure> {
    match class {
        TenantClass::Background => Some(Pressure::Elevated),
        TenantClass::Utility => Some(Pressure::High),
        TenantClass::Initiated | TenantClass::Interactive => None,
    }
}
