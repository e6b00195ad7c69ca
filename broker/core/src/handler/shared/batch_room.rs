//! Room for a batch: what it needs in each place, whether it fits, and whether it ever could.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{Bytes, DeviceIndex, SessionId};

use crate::{
    broker::Broker,
    error::{FullBecause, Refusal},
    event::Tier,
    ledger::{Place, PlaceBalances},
    line::{AllocationPlan, BatchShortage, Footprint, Need, Waiter, WaitingBatch, parts_of},
    ops::{OpKind, Requester},
    pool::Age,
    tenancy::{Arrival, OpId, TenantId},
};

impl Broker {
    /// Checks that the whole batch is admitted now. Of several shortages it reports one that no wait ends, or
    /// else the first.
    pub(crate) fn check_batch_room(
        &self,
        tenant: TenantId,
        plans: &[AllocationPlan],
    ) -> Result<(), BatchShortage> {
        let (mut all_cached, mut shortages) = (BTreeSet::new(), Vec::new());
        for (place, requested, cached) in self.requested_by_place(tenant, plans) {
            let recycled = self.cached_sizes(&cached);
            all_cached.extend(cached);
            let fresh = requested.saturating_sub(recycled);
            planted!(self, ManagedUnasked => fresh = fresh.saturating_sub(crate::handler::mistakes::managed_on(plans, place)));
            if !fresh.is_zero()
                && let Err(shortage) = self.ledger.admit(tenant, place, fresh)
            {
                shortages.push(BatchShortage::Bytes { place, shortage, requested });
            }
        }
        let never = shortages.iter().position(|missing| !self.is_ever_possible(tenant, missing));
        planted!(self, FirstShortageAlone => never = None);
        if let Some(missing) = shortages.into_iter().nth(never.unwrap_or_default()) {
            return Err(missing);
        }
        let fresh = parts_of(plans).saturating_sub(all_cached.len());
        self.check_extent_count(&all_cached, fresh).map_err(BatchShortage::Extents)
    }

    /// The bytes that a batch requests in each place, and the cached extents that it reuses for them.
    pub(crate) fn requested_by_place(
        &self,
        tenant: TenantId,
        plans: &[AllocationPlan],
    ) -> Vec<(Place, Bytes, Vec<Age>)> {
        let mut requested = Vec::new();
        for device in self.device_indices() {
            let (lazy, pinned): (Vec<_>, Vec<_>) = plans
                .iter()
                .filter(|plan| plan.device == device)
                .partition(|plan| self.can_start_below(plan));
            if !pinned.is_empty() {
                let cached = self.cached_for(tenant, device, pinned.iter().copied());
                requested.push((Place::device(device), self.sum_of_plans(&pinned), cached));
            }
            let below = self.requested_below(tenant, device, &lazy).into_iter();
            requested.extend(below.map(|(place, bytes)| (place, bytes, Vec::new())));
        }
        requested
    }

    /// How many of the bytes that may begin below a device go to each tier there: each part as near as it fits.
    pub(crate) fn requested_below(
        &self,
        tenant: TenantId,
        device: DeviceIndex,
        lazy: &[&AllocationPlan],
    ) -> Vec<(Place, Bytes)> {
        let (mut left, mut requested) = (self.sum_of_plans(lazy), Vec::new());
        let mut pieces: Vec<_> = lazy.iter().flat_map(|plan| plan.part_sizes()).collect();
        let mut places = self.ledger.below(device).peekable();
        while let Some(place) = places.next().filter(|_| !left.is_zero()) {
            // Bytes that fit nowhere count as a shortage of the last tier.
            let there = match places.peek() {
                None => left,
                Some(_) => self.fitting_bytes(tenant, place, &mut pieces),
            };
            left = left.saturating_sub(there);
            if !there.is_zero() {
                requested.push((place, there));
            }
        }
        requested
    }

    /// How many bytes of the parts fit in a place, in their order. The others are left.
    pub(crate) fn fitting_bytes(
        &self,
        tenant: TenantId,
        place: Place,
        pieces: &mut [(Bytes, usize)],
    ) -> Bytes {
        let (Some(mut trial), mut taken) = (self.ledger.trial(place), Bytes::ZERO) else {
            return Bytes::ZERO;
        };
        for (size, count) in pieces {
            let of = |count: usize| {
                let count = u64::try_from(count).unwrap_or(u64::MAX);
                Bytes::new(size.get().saturating_mul(count))
            };
            let fits = |count: &usize| trial.admit(tenant, of(*count)).is_ok();
            let (mut least, mut most) = (0usize, *count);
            while least < most {
                let middle = most.saturating_sub(most.saturating_sub(least) / 2);
                match fits(&middle) {
                    true => least = middle,
                    false => most = middle.saturating_sub(1),
                }
            }
            *count = count.saturating_sub(least);
            taken = taken.saturating_add(of(least));
            trial.promise(tenant, of(least));
        }
        taken
    }

    /// The sum of the spans. No place ever has the largest number of bytes.
    pub(crate) fn sum_of_plans(&self, plans: &[&AllocationPlan]) -> Bytes {
        let sum = Bytes::checked_sum(plans.iter().map(|plan| plan.span));
        planted!(self, BatchSumOverflows => sum = self.wrapping_sum(plans));
        sum.unwrap_or(Bytes::MAX)
    }

    /// Whether its parts may begin below its device.
    pub(crate) fn can_start_below(&self, plan: &AllocationPlan) -> bool {
        plan.spec.unpinned && !plan.spec.discardable && self.ledger.below(plan.device).next().is_some()
    }

    pub(crate) fn cached_sizes(&self, ages: &[Age]) -> Bytes {
        let sizes = ages.iter().filter_map(|age| self.pool.cache().get(*age)).map(|entry| entry.size);
        sizes.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// The cached extents that the plans reuse.
    pub(crate) fn cached_for<'a>(
        &self,
        tenant: TenantId,
        device: DeviceIndex,
        plans: impl Iterator<Item = &'a AllocationPlan>,
    ) -> Vec<Age> {
        let mut wanted: BTreeMap<Bytes, usize> = BTreeMap::new();
        for plan in plans.filter(|plan| plan.takes_cached() && !self.can_start_below(plan)) {
            for (size, count) in plan.part_sizes() {
                let wanted = wanted.entry(size).or_default();
                *wanted = wanted.saturating_add(count);
            }
        }
        let of = |(size, count)| self.pool.cache().oldest(tenant, device, size).take(count);
        wanted.into_iter().flat_map(of).collect()
    }

    /// The room that a batch of the line needs on each device.
    pub(crate) fn batch_needs(&self, op: OpId, arrived: Arrival) -> Vec<Need> {
        let Some((tenant, batch)) = self.waiting_batch(op) else { return Vec::new() };
        let requested = self.requested_by_place(tenant, &batch.request.plans).into_iter();
        let on_device = requested.filter(|(place, ..)| place.tier == Tier::Device);
        let lets_pass = self.lets_pass(Waiter::Batch(op));
        let need = |(place, requested, cached): (Place, Bytes, Vec<Age>)| {
            let size = requested.saturating_sub(self.cached_sizes(&cached));
            Need {
                footprint: Footprint { tenant, device: place.device, size },
                arrived,
                own_cached: cached,
                lets_pass,
            }
        };
        on_device.map(need).collect()
    }

    /// A batch of the line, with its tenant.
    pub(crate) fn waiting_batch(&self, op: OpId) -> Option<(TenantId, &WaitingBatch)> {
        let waiting = self.requests.ops.get(op)?;
        match (waiting.requester, &waiting.kind) {
            (Requester::Session { tenant, .. }, OpKind::BatchWait(batch)) => Some((tenant, batch)),
            _ => None,
        }
    }

    pub(crate) fn waiting_batch_mut(&mut self, op: OpId) -> Option<(SessionId, TenantId, &mut WaitingBatch)> {
        let waiting = self.requests.ops.get_mut(op)?;
        match (waiting.requester, &mut waiting.kind) {
            (Requester::Session { session, tenant }, OpKind::BatchWait(batch)) => {
                Some((session, tenant, batch))
            }
            _ => None,
        }
    }

    /// Whether the places of the batch could ever have as much.
    pub(crate) fn is_ever_possible(&self, tenant: TenantId, missing: &BatchShortage) -> bool {
        let BatchShortage::Bytes { place, requested, .. } = missing else { return true };
        let limit = self.ledger.account(tenant, *place).is_some_and(|account| *requested <= account.limit);
        let of_tenant = || std::iter::once((tenant, *requested));
        let fits = |balances: &PlaceBalances| *requested <= balances.max_available_to(of_tenant());
        planted!(self, GuaranteeAwaited => return limit && place.tier == Tier::Device);
        // The daemon makes no room below devices.
        limit && self.ledger.balances(*place).is_some_and(fits) && place.tier == Tier::Device
    }

    pub(crate) fn batch_refusal(&self, tenant: TenantId, missing: &BatchShortage) -> Refusal {
        match missing {
            BatchShortage::Bytes { place, shortage, requested, .. } => {
                self.shortage_refusal(tenant, *place, *shortage, *requested)
            }
            BatchShortage::Extents(_) => {
                let tenant = self.tenants.name(tenant).to_owned();
                Refusal::AllocationsTooMany { tenant, limit: self.config.limits.extents_max }
            }
        }
    }

    /// Why the batch does not start at once though it fits: others wait for the room that it would take.
    pub(crate) fn refusal_behind_others(
        &self,
        tenant: TenantId,
        plans: &[AllocationPlan],
    ) -> Option<Refusal> {
        planted!(self, BatchOvertakes => return None);
        if self.line.is_empty() {
            return None;
        }
        let overtaken = |(place, requested, _): (Place, Bytes, Vec<Age>)| {
            let is_below = place.tier != Tier::Device;
            if is_below || self.is_within_guarantee(tenant, place.device, requested) {
                return None;
            }
            Some((place, requested, self.holder_of(place.device)?))
        };
        let requested = self.requested_by_place(tenant, plans);
        planted!(self, SecondDeviceOvertaken => requested = requested.into_iter().take(1).collect());
        let (place, requested, (position, of)) = requested.into_iter().find_map(overtaken)?;
        let capacity = self.ledger.balances(place).map_or(Bytes::ZERO, PlaceBalances::surveyed_capacity);
        Some(Refusal::DeviceFull {
            device: self.uuid(place.device).to_owned(),
            tier: place.tier,
            free: self.ledger.trial(place).map_or(Bytes::ZERO, |trial| trial.admittable(tenant)),
            requested,
            why: FullBecause::Behind { capacity, wait: position.wait(), is_own: of == tenant },
        })
    }
}
