//! Requests that cannot be ready by their deadlines let those pass that can.

use vramd_types::{Bytes, DeviceIndex};

use crate::{
    broker::Broker,
    event::{PartRef, Tier},
    prefetch::{Prefetch, PrefetchId},
};

impl Broker {
    /// Takes away the deadlines of first requests that miss them, so that each tenant's first request can meet its
    /// deadline or has none.
    pub(crate) fn drop_missed_deadlines(&mut self, device: DeviceIndex) {
        planted!(self, MissedDeadlinesKept => return);
        let ahead = self.moves.prefetches.bytes_under_way(device);
        for tenant in self.moves.prefetches.queues.tenants(device) {
            while let Some(first) = self.moves.prefetches.queues.first(device, tenant)
                && self.misses_deadline(first, ahead)
            {
                self.moves.prefetches.drop_deadline(first);
            }
        }
    }

    /// Whether a queued request has a deadline and cannot be ready by then: the link carries the bytes `ahead` of it
    /// first, at the measured speed.
    fn misses_deadline(&self, id: PrefetchId, ahead: Bytes) -> bool {
        let request = self.moves.prefetches.get(id).filter(|request| !request.misses_deadline);
        let Some((request, deadline)) = request.and_then(|it| Some((it, it.deadline?))) else { return false };
        let ends_late = |bytes: Bytes| {
            let takes = self.moves.prefetches.speed.time_for(request.device, ahead.saturating_add(bytes));
            self.shell.now.after(takes.unwrap_or_default()) > deadline
        };
        // Mostly all its parts are to be fetched: they are counted only where that matters.
        ends_late(request.bytes) && ends_late(self.bytes_to_fetch(request))
    }

    /// The bytes of a request that are neither on their device nor on their way there.
    fn bytes_to_fetch(&self, request: &Prefetch) -> Bytes {
        let is_fetched = |part: &&PartRef| {
            let is_coming =
                self.moves.migrations.get(**part).is_some_and(|migration| migration.to_tier == Tier::Device);
            !is_coming && self.is_off_device(**part) && !self.stays_in_place(**part)
        };
        let sizes = request.parts.iter().filter(is_fetched).filter_map(|part| self.footprint_of(*part));
        sizes.fold(Bytes::ZERO, |sum, footprint| sum.saturating_add(footprint.size))
    }
}
