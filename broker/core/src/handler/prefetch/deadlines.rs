//! Requests that cannot be ready by their deadlines let those pass that can, before they begin and while their copies
//! wait for the link.

use vramd_types::{Bytes, DeviceIndex};

use crate::{
    broker::Broker,
    event::{PartRef, Tier},
    prefetch::{CopyOrder, Prefetch, PrefetchId},
};

impl Broker {
    /// Takes away the deadlines of first requests that miss them, so that each tenant's first request can meet its
    /// deadline or has none.
    pub(crate) fn drop_missed_deadlines(&mut self, device: DeviceIndex) {
        planted!(self, MissedDeadlinesKept => return);
        for tenant in self.moves.prefetches.queues.tenants(device) {
            while let Some(first) = self.moves.prefetches.queues.first(device, tenant)
                && self.misses_deadline(first)
            {
                self.moves.prefetches.drop_deadline(first);
            }
        }
    }

    /// Whether a queued request has a deadline and cannot be ready by then: the link carries what goes before it
    /// first, at the measured speed.
    fn misses_deadline(&self, id: PrefetchId) -> bool {
        let request = self.moves.prefetches.get(id).filter(|request| !request.misses_deadline);
        let Some((request, deadline)) = request.and_then(|it| Some((it, it.deadline?))) else { return false };
        let since = self.moves.prefetches.fetches.copied_since(request.device);
        let ahead = self.bytes_ahead_of_prefetch(id);
        let ends_late = |bytes: Bytes| {
            self.moves.links.end_of(request.device, (since, ahead), bytes, self.shell.now) > deadline
        };
        // Mostly all its parts are to be fetched: they are counted only where that matters.
        ends_late(request.bytes) && ends_late(self.bytes_to_fetch(request))
    }

    /// The bytes that the link carries before a request that would begin now.
    pub(crate) fn bytes_ahead_of_prefetch(&self, id: PrefetchId) -> Bytes {
        let (request, order) = (self.moves.prefetches.get(id), self.copy_order_of(id));
        request.zip(order).map_or(Bytes::ZERO, |(request, order)| {
            self.moves.prefetches.fetches.bytes_ahead(request.device, order)
        })
    }

    /// The order of the copies of a request that begins now.
    pub(crate) fn copy_order_of(&self, id: PrefetchId) -> Option<CopyOrder> {
        let request = self.moves.prefetches.get(id)?;
        let class = self.tenants.standing(request.tenant).class;
        let deadline = request.deadline.filter(|_| !request.misses_deadline);
        planted!(self, CopiesByBegin => deadline = Some(crate::time::Time::from_micros(u64::MAX)));
        Some(self.moves.prefetches.fetches.order(class, deadline))
    }

    /// Copies the parts whose turn it is on the link of a device.
    pub(crate) fn copy_next_prefetches(&mut self, device: DeviceIndex) {
        loop {
            let max = self.config.limits.prefetch_bytes_copied_max;
            let now = (self.shell.now, &self.moves.links);
            let next = self.moves.prefetches.take_next(device, max, now);
            let Some(part) = next else { return };
            self.copy_if_ready(part);
        }
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
