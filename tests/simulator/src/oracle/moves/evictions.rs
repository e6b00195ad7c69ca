//! A victim is above its tenant's guarantee. That no session pins it shows when it is copied or reported as
//! moved: no session maps it then.

use std::collections::BTreeSet;

use broker_core::{AllocationSpec, Broker, Cause, ClientRequest, PartRef, Tier, invariants::EVICTED};
use vramd_types::GRANULARITY;

use crate::oracle::{
    Oracle,
    facts::{Asked, Call, ExtentPhase, PlaceFacts, Tenant},
    sessions::silences::Doubt,
};

impl Oracle {
    /// Records that a part begins to leave its device, or is about to. Operators may move parts below a
    /// guarantee. `chosen`: the core chose it just now.
    pub(crate) fn record_departure(&mut self, part: PartRef, chosen: bool, broker: &Broker) {
        self.step.began_to_move = true;
        let lies = self.resident(part);
        let known = !self.facts.departing.insert(part) || self.is_being_revoked(part);
        if let Some(allocation) = self.facts.allocations.get(&part.allocation).filter(|_| !chosen || known) {
            self.step.chosen_before.insert((allocation.tenant, allocation.device));
        }
        if known {
            return;
        }
        if let Some((tenant, device, size)) = lies {
            let for_request = broker.moves().iter().any(|it| it.part == part && it.cause == Cause::Prefetch);
            let brought = if for_request { self.prefetched_bytes(tenant, device, broker) } else { 0 };
            let wants = self.wanted_bytes(tenant, device, broker).saturating_add(brought);
            self.step.departures.entry((tenant, device)).or_default().push((size, wants));
        }
    }

    /// Checks that chosen victims were above their tenant's guarantee. Parts above the limit, and parts that
    /// their tenant exchanges for others, leave for the tenant's own sake. With several victims of a tenant
    /// the oracle does not know which came last.
    pub(crate) fn check_guarantees(&mut self) {
        let before = std::mem::take(&mut self.step.chosen_before);
        for ((tenant, device), departures) in std::mem::take(&mut self.step.departures) {
            let [(last, wants)] = departures[..] else { continue };
            if before.contains(&(tenant, device)) {
                continue;
            }
            let (guarantee, limit) = self.quota_now(tenant, device);
            let left = self.facts.charged(tenant, device).saturating_sub(self.leaving_bytes(tenant, device));
            // Neither its own waiters nor its limit count on what a session in doubt has to unmap.
            let before = left + last + self.in_doubt_bytes(tenant, device);
            let with = if wants > 0 { before.saturating_add(wants) } else { left + last };
            let above = with > guarantee || before > limit || (wants > 0 && with > limit);
            self.expect(EVICTED, above, || {
                format!(
                    "tenant {tenant} keeps {left} bytes on device {device}, wants {wants}, and is guaranteed {guarantee}; its victim has {last}"
                )
            });
        }
    }

    /// Tenant, device and size of a part that lies on its device, where its extent is known and live.
    pub(crate) fn resident(&self, part: PartRef) -> Option<(Tenant, usize, u64)> {
        let allocation = self.facts.allocations.get(&part.allocation)?;
        let extent = self.facts.extents.get(allocation.parts.get(&part.part.0)?)?;
        let is_there = extent.place == allocation.device && !matches!(extent.phase, ExtentPhase::Releasing);
        is_there.then_some((allocation.tenant, extent.place, extent.size))
    }

    /// Bytes of a tenant that will leave a device.
    pub(crate) fn leaving_bytes(&self, tenant: Tenant, device: usize) -> u64 {
        let stays = |part: PartRef| {
            let is_freed = self.facts.allocations.get(&part.allocation).is_none_or(|it| it.leaving);
            is_freed || !(self.may_move(part) || self.is_being_evicted(part))
        };
        self.released_bytes(tenant, device) + self.departing_bytes(tenant, device, |part| !stays(part))
    }

    /// The same, with parts of which it is not known whether they still leave, such as those that wait for an extent.
    pub(crate) fn leaving_bytes_max(&self, tenant: Tenant, device: usize) -> u64 {
        self.released_bytes(tenant, device) + self.departing_bytes(tenant, device, |_| true)
    }

    /// Bytes of a tenant that leave a device once a session in doubt has unmapped them.
    fn in_doubt_bytes(&self, tenant: Tenant, device: usize) -> u64 {
        self.departing_bytes(tenant, device, |part| self.doubt_about(part) != Doubt::Nothing)
    }

    fn released_bytes(&self, tenant: Tenant, device: usize) -> u64 {
        let leaves = |phase| matches!(phase, ExtentPhase::Releasing | ExtentPhase::GivenUp);
        let extents = self.facts.extents.values();
        let released = extents.filter(|it| (it.owner, it.place) == (tenant, device) && leaves(it.phase));
        released.map(|it| it.size).sum()
    }

    fn departing_bytes(&self, tenant: Tenant, device: usize, counts: impl Fn(PartRef) -> bool) -> u64 {
        let departing = self.facts.departing.iter().copied().filter(|part| counts(*part));
        let departing = departing.filter_map(|part| self.resident(part));
        departing.filter(|(of, on, _)| (*of, *on) == (tenant, device)).map(|(.., size)| size).sum()
    }

    /// Bytes that a tenant waits for on a device, or more: such a tenant makes room for itself.
    pub(crate) fn wanted_bytes(&self, tenant: Tenant, device: usize, broker: &Broker) -> u64 {
        let wanted: BTreeSet<_> = self.wanted(broker).into_iter().collect();
        // A copy goes on after its move was stopped, and the part waits for room again.
        let moved: BTreeSet<_> = broker.moves().iter().map(|it| it.part).collect();
        let is_below = |part| self.tier_of(part).is_some_and(|tier| tier != Tier::Device);
        let is_stopped = |part| is_below(part) && !moved.contains(&part) && !self.is_in_place(part);
        let elsewhere = wanted.into_iter().filter(|part| self.may_be_off_device(*part) || is_stopped(*part));
        let sizes = elsewhere.filter_map(|part| {
            let allocation = self.facts.allocations.get(&part.allocation)?;
            let size = self.size_of(part)?;
            ((allocation.tenant, allocation.device) == (tenant, device)).then_some(size)
        });
        let batches = self.facts.calls.values().filter_map(|call| self.requested_by(tenant, call));
        sizes.chain(batches).fold(0, u64::saturating_add)
    }

    fn requested_by(&self, tenant: Tenant, call: &Call) -> Option<u64> {
        let Asked::Client { session, request: ClientRequest::AllocateBatch { items, .. }, .. } = &call.asked
        else {
            return None;
        };
        let size = |spec: &AllocationSpec| {
            spec.size.checked_round_up(GRANULARITY).map_or(u64::MAX, vramd_types::Bytes::get)
        };
        let own = self.facts.sessions.get(session).is_some_and(|session| session.tenant == tenant);
        // Memory without a handle pin begins below where there is no room, unless it is discardable.
        let device = |place: &&PlaceFacts| place.tier == Tier::Device;
        let below = |place: &PlaceFacts| {
            [Tier::Host, Tier::Disk].into_iter().any(|tier| self.facts.place_of(&place.uuid, tier).is_some())
        };
        let all_below = self.facts.places.iter().filter(device).all(below);
        let held = items.iter().filter(|spec| !(spec.unpinned && !spec.discardable && all_below));
        own.then(|| held.map(size).fold(0, u64::saturating_add))
    }
}
