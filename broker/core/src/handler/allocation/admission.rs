//! Admission of a batch, before anything is created: whether each item is possible, and the room that all items
//! need together.
//!
//! Limits of counts are checked here; limits and guarantees in bytes are checked by the ledger, which
//! [`Broker::check_batch_room`] asks. Nothing here changes state.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{Bytes, DeviceIndex, GRANULARITY, SessionId, name};

use crate::{
    broker::Broker,
    error::Refusal,
    event::{AllocationSpec, FileSpan, Kind, Lifetime},
    handler::{
        allocation::attach::{FIXED_STAYS, NEVER_PINNED},
        line::batch::BatchShortage,
    },
    ledger::Place,
    limits::{PART_SIZE_MAX, PARTS_PER_ALLOCATION_MAX},
    pool::Age,
    residency::{AllocationState, Readers},
    tenancy::TenantId,
};

/// An item that passed its checks, with its sizes.
#[derive(Clone, Debug)]
pub(crate) struct AllocationPlan {
    pub(crate) spec: AllocationSpec,
    pub(crate) device: DeviceIndex,
    pub(crate) part_size: Bytes,
    pub(crate) span: Bytes,
    pub(crate) part_count: usize,
    /// The file to load, if any.
    pub(crate) file: Option<FileSpan>,
}

impl AllocationPlan {
    /// The sizes of its parts, in their order, and how many parts have each.
    fn part_sizes(&self) -> [(Bytes, usize); 2] {
        let rest = Bytes::new(self.span.get() % self.part_size.get());
        let whole = self.part_count.saturating_sub(usize::from(!rest.is_zero()));
        [(self.part_size, whole), (rest, self.part_count.saturating_sub(whole))]
    }

    /// Whether cached memory of its tenant will do.
    pub(crate) fn takes_cached(&self) -> bool {
        self.spec.uninitialized && self.spec.kind == Kind::Movable
    }
}

impl Broker {
    pub(crate) fn plan_item(
        &self,
        session: SessionId,
        tenant: TenantId,
        spec: AllocationSpec,
    ) -> Result<AllocationPlan, Refusal> {
        let size_invalid = Refusal::SizeInvalid { field: "size_bytes", size: spec.size };
        let span =
            spec.size.checked_round_up(GRANULARITY).filter(|span| !span.is_zero()).ok_or(size_invalid)?;
        let device = self.choose_device(session, spec.device.as_deref())?;
        let has_pins = self.sessions.get(session).is_some_and(|session| session.words.is_some());
        self.check_kind(device, has_pins, &spec)?;
        // A legacy export is one block, so fixed memory has one part.
        let usual = if spec.kind == Kind::Fixed { span } else { self.config.part_size };
        let part_size = spec.part_size.unwrap_or(usual);
        let too_large = part_size > PART_SIZE_MAX && spec.kind != Kind::Fixed;
        if part_size.is_zero() || !part_size.is_multiple_of(GRANULARITY) || too_large {
            return Err(Refusal::PartSizeInvalid { size: part_size });
        }
        let part_count = span.get().div_ceil(part_size.get());
        self.check_name(tenant, &spec)?;
        let readers_max = self.config.limits.readers_max;
        if spec.readers.len() > readers_max && !planted!(self, ReadersTooManyServed) {
            return Err(Refusal::BatchTooLarge { items_max: readers_max, items: spec.readers.len() });
        }
        if let Some(bad) =
            spec.readers.iter().find(|name| *name != Readers::EVERYBODY && !name::is_valid(name))
        {
            return Err(Refusal::NameInvalid { field: "readers", name: bad.clone() });
        }
        let part_count = usize::try_from(part_count).unwrap_or(usize::MAX);
        Ok(AllocationPlan { device, part_size, span, part_count, spec, file: None })
    }

    /// Checks that the driver of the device supports the kind, and that the other fields fit the kind.
    fn check_kind(&self, device: DeviceIndex, has_pins: bool, spec: &AllocationSpec) -> Result<(), Refusal> {
        let makes_fixed =
            self.config.devices.get(usize::from(device.0)).is_some_and(|device| device.makes_fixed);
        let problem = |field, problem| Err(Refusal::RequestInvalid { field, problem });
        match spec.kind {
            Kind::Movable if spec.unpinned && !has_pins => problem("unheld", NEVER_PINNED),
            Kind::Movable if spec.discardable && is_to_be_sealed(spec) => problem(
                "discardable",
                "discardable memory is never sealed, so it cannot be persistent, take a name or have readers",
            ),
            Kind::Movable => Ok(()),
            Kind::Fixed if spec.discardable => {
                problem("discardable", "fixed memory never leaves its device, so it is never dropped")
            }
            Kind::Fixed if spec.unpinned => problem("unheld", FIXED_STAYS),
            Kind::Managed => Err(Refusal::KindUnsupported { kind: "managed" }),
            Kind::Fixed if !makes_fixed => Err(Refusal::KindUnsupported { kind: "fixed" }),
            Kind::Fixed if spec.lifetime == Lifetime::Persistent => {
                problem("lifetime", "fixed memory is never sealed, so it ends with its session")
            }
            Kind::Fixed if !spec.readers.is_empty() => {
                problem("readers", "fixed memory cannot be shared with other tenants")
            }
            Kind::Fixed if spec.replace => {
                problem("replace", "fixed memory is never sealed, so it cannot replace another allocation")
            }
            Kind::Fixed if spec.part_size.is_some() => {
                problem("part_size_bytes", "fixed memory has one part")
            }
            Kind::Fixed => Ok(()),
        }
    }

    /// The requested device, if the session sees it, or the first one that it sees.
    fn choose_device(&self, session: SessionId, requested: Option<&str>) -> Result<DeviceIndex, Refusal> {
        let visible = self.sessions.get(session).map(|session| &*session.devices).unwrap_or_default();
        let Some(text) = requested else {
            let first = visible.first().copied();
            return first.ok_or_else(|| Refusal::DeviceNotVisible { device: "0".to_owned() });
        };
        let device =
            self.find_device(text).ok_or_else(|| Refusal::DeviceUnknown { device: text.to_owned() })?;
        if !visible.contains(&device) && !planted!(self, DeviceNotVisibleServed) {
            return Err(Refusal::DeviceNotVisible { device: self.uuid(device).to_owned() });
        }
        Ok(device)
    }

    fn check_name(&self, tenant: TenantId, spec: &AllocationSpec) -> Result<(), Refusal> {
        let Some(name) = &spec.name else {
            return match (spec.lifetime, spec.replace) {
                (Lifetime::Persistent, _) => Err(Refusal::NameInvalid { field: "name", name: String::new() }),
                (_, true) => Err(Refusal::RequestInvalid {
                    field: "replace",
                    problem: "only an allocation with a name can replace another",
                }),
                _ => Ok(()),
            };
        };
        if !name::is_valid(name) {
            return Err(Refusal::NameInvalid { field: "name", name: name.clone() });
        }
        self.check_name_free(tenant, name, spec.replace)
    }

    /// Checks that the name is free, or that its bearer may be replaced.
    pub(crate) fn check_name_free(&self, tenant: TenantId, name: &str, replace: bool) -> Result<(), Refusal> {
        let find_by_name =
            self.allocations.find_by_name(tenant, name).and_then(|id| self.allocations.get(id));
        match find_by_name {
            Some(_) if planted!(self, NameTakenTwice) => Ok(()),
            Some(find_by_name) if !(replace && find_by_name.state == AllocationState::Sealed) => {
                Err(Refusal::NameTaken { name: format!("{}/{name}", self.tenants.name(tenant)) })
            }
            _ => Ok(()),
        }
    }

    /// Refuses a batch that uses a name twice.
    pub(crate) fn check_names(&self, plans: &[AllocationPlan]) -> Result<(), Refusal> {
        let mut names: Vec<_> = plans.iter().filter_map(|plan| plan.spec.name.as_deref()).collect();
        names.sort_unstable();
        match names.windows(2).find_map(|pair| (pair.first() == pair.last()).then(|| pair.first()).flatten())
        {
            Some(_) if planted!(self, NameTwiceInBatch) => Ok(()),
            Some(twice) => Err(Refusal::NameTaken { name: (*twice).to_owned() }),
            None => Ok(()),
        }
    }

    fn check_counts(&self, tenant: TenantId, plans: &[AllocationPlan]) -> Result<(), Refusal> {
        if planted!(self, CountsIgnored) {
            return Ok(());
        }
        let limits = &self.config.limits;
        let (allocations, parts) = self.allocations.count_of(tenant);
        let new_parts = parts_of(plans);
        let too_many =
            |limit| Refusal::AllocationsTooMany { tenant: self.tenants.name(tenant).to_owned(), limit };
        if plans.iter().any(|plan| plan.part_count > PARTS_PER_ALLOCATION_MAX) {
            return Err(too_many(PARTS_PER_ALLOCATION_MAX));
        }
        if allocations.saturating_add(plans.len()) > limits.allocations_per_tenant_max {
            return Err(too_many(limits.allocations_per_tenant_max));
        }
        // Cached extents do not count: the batch reuses them, or they are released.
        let extents = self.pool.len().saturating_sub(self.pool.cache().len()).saturating_add(new_parts);
        if extents > limits.extents_max {
            return Err(too_many(limits.extents_max));
        }
        if parts.saturating_add(new_parts) > limits.parts_per_tenant_max {
            return Err(too_many(limits.parts_per_tenant_max));
        }
        Ok(())
    }

    /// Whether the session's word table has slots for this many more parts, if it has one.
    pub(crate) fn check_slots(&self, id: SessionId, parts: usize) -> Result<(), Refusal> {
        let words = self.sessions.get(id).and_then(|session| session.words.as_ref());
        match words {
            Some(words) if !words.slots.has_room_for(parts) => {
                Err(Refusal::SlotsExhausted { session: id, limit: words.slots.max() })
            }
            _ => Ok(()),
        }
    }

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
            if !fresh.is_zero()
                && let Err(shortage) = self.ledger.admit(tenant, place, fresh)
            {
                shortages.push(BatchShortage::Bytes { place, shortage, requested });
            }
        }
        let never = shortages.iter().position(|missing| !self.is_ever_possible(tenant, missing));
        let never = never.filter(|_| !planted!(self, FirstShortageAlone));
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
    fn requested_below(
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
    fn fitting_bytes(&self, tenant: TenantId, place: Place, pieces: &mut [(Bytes, usize)]) -> Bytes {
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
    fn sum_of_plans(&self, plans: &[&AllocationPlan]) -> Bytes {
        sum_of(plans.iter().map(|plan| plan.span), planted!(self, BatchSumOverflows)).unwrap_or(Bytes::MAX)
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
    fn cached_for<'a>(
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

    /// Checks that have to be repeated when a batch has waited.
    pub(crate) fn recheck_plans(
        &self,
        session: SessionId,
        tenant: TenantId,
        plans: &[AllocationPlan],
    ) -> Result<(), Refusal> {
        if self.node.draining && !planted!(self, DrainIgnored) {
            return Err(Refusal::Draining);
        }
        for plan in plans {
            if let Some(name) = &plan.spec.name {
                self.check_name_free(tenant, name, plan.spec.replace)?;
            }
        }
        self.check_counts(tenant, plans)?;
        self.check_slots(session, parts_of(plans))
    }
}

/// Whether it requests what only sealed memory can have.
const fn is_to_be_sealed(spec: &AllocationSpec) -> bool {
    matches!(spec.lifetime, Lifetime::Persistent) || spec.replace || !spec.readers.is_empty()
}

fn parts_of(plans: &[AllocationPlan]) -> usize {
    plans.iter().fold(0, |sum: usize, plan| sum.saturating_add(plan.part_count))
}

/// The sum, unless it overflows.
pub(crate) fn sum_of(spans: impl Iterator<Item = Bytes>, wraps: bool) -> Option<Bytes> {
    match wraps {
        true => Some(spans.fold(Bytes::ZERO, |sum, span| Bytes::new(sum.get().wrapping_add(span.get())))),
        false => Bytes::checked_sum(spans),
    }
}
