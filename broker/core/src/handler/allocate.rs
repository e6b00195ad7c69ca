//! `AllocateBatch`: check everything, reserve, have the extents made, settle; one failure undoes all.
//! What may begin with old content takes the tenant's cached extents first.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use vramd_types::{AllocationId, Bytes, DeviceIndex, ExtentId, GRANULARITY, PartIndex, SessionId, name};

use super::{
    Start, Started,
    attach::{FIXED_STAYS, NEVER_PINNED},
    batch::{Asked, Batch, Lack},
    create::Order,
    load::Piece,
};
use crate::{
    broker::Broker,
    collections::Few,
    command::Notice,
    error::Refusal,
    event::{AllocationSpec, FileSpan, Kind, Lifetime, PartRef, Tier},
    invariants,
    ledger::Place,
    limits::{PART_SIZE_MAX, PARTS_PER_ALLOCATION_MAX},
    observed::Transition,
    pool::Age,
    residency::{Allocation, AllocationEvent, AllocationState, Part, Readers},
    tenancy::{OpId, OpKind, Outcome, TenantId},
};

/// An item that was found to be good, with its sizes worked out.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(super) spec: AllocationSpec,
    pub(super) device: DeviceIndex,
    pub(super) part_size: Bytes,
    pub(super) span: Bytes,
    pub(super) part_count: usize,
    /// Whose bytes it has, if it is to be loaded.
    pub(super) file: Option<FileSpan>,
}

impl Plan {
    /// The sizes of its parts, in their order, and how many there are of each.
    fn pieces(&self) -> [(Bytes, usize); 2] {
        let rest = Bytes::new(self.span.get() % self.part_size.get());
        let whole = self.part_count.saturating_sub(usize::from(!rest.is_zero()));
        [(self.part_size, whole), (rest, self.part_count.saturating_sub(whole))]
    }

    /// Whether memory of its tenant that is cached will do.
    fn takes_cached(&self) -> bool {
        self.spec.uninitialized && self.spec.kind == Kind::Movable
    }
}

impl Broker {
    pub(crate) fn allocate(
        &mut self,
        op: OpId,
        session: SessionId,
        tenant: TenantId,
        items: Vec<AllocationSpec>,
        wait: Duration,
    ) -> Start {
        if items.is_empty() {
            return Err(Refusal::RequestInvalid { field: "items", problem: "the batch is empty" });
        }
        let items_max = self.config.limits.batch_items_max;
        if items.len() > items_max && !planted!(self, BatchTooLargeServed) {
            return Err(Refusal::BatchTooLarge { items_max, items: items.len() });
        }
        let mut plans = Vec::with_capacity(items.len());
        for spec in items {
            plans.push(self.plan(session, tenant, spec)?);
        }
        self.check_names(&plans)?;
        sum_of(plans.iter().map(|plan| plan.span), planted!(self, SumOverflows))
            .ok_or(Refusal::SizeInvalid { field: "size_bytes", size: Bytes::MAX })?;
        let lack = self.check_room(tenant, &plans).err();
        if let Some(lack) = lack.as_ref().filter(|lack| !self.could_ever(tenant, lack)) {
            return Err(self.why_lacking(tenant, lack));
        }
        self.check_plans(session, tenant, &plans)?;
        let why = match lack {
            None => self.why_behind(tenant, &plans),
            Some(lack) => Some(self.why_lacking(tenant, &lack)),
        };
        let asked = Asked { plans, came: self.pins.now(), until: self.now.after(wait), tries: 0 };
        Ok(match why {
            None => {
                self.unsettle_overtaken();
                Started::Waiting(self.make_all(op, session, tenant, asked)?)
            }
            Some(why) => self.line_up(op, tenant, Batch::new(asked, why)),
        })
    }

    /// What may change while a batch waits.
    pub(crate) fn check_plans(
        &self,
        session: SessionId,
        tenant: TenantId,
        plans: &[Plan],
    ) -> Result<(), Refusal> {
        if self.draining && !planted!(self, DrainIgnored) {
            return Err(Refusal::Draining);
        }
        for plan in plans {
            if let Some(name) = &plan.spec.name {
                self.check_bearer(tenant, name, plan.spec.replace)?;
            }
        }
        self.check_counts(tenant, plans)?;
        self.check_slots(session, parts_of(plans))
    }

    /// Has all allocations of a batch made, whose bytes are there. What is held has its device first, since it can lie nowhere
    /// else; and what it could leave for is set aside last, since unheld parts may have to lie there.
    pub(crate) fn make_all(
        &mut self,
        op: OpId,
        session: SessionId,
        tenant: TenantId,
        asked: Asked,
    ) -> Result<OpKind, Refusal> {
        let plans = asked.plans.clone();
        let (lazy, held): (Vec<_>, Vec<_>) =
            plans.into_iter().enumerate().partition(|(_, plan)| self.is_lazy(plan));
        let mut made = Vec::with_capacity(lazy.len().saturating_add(held.len()));
        let mut extents_left = 0usize;
        for (at, plan) in held.into_iter().chain(lazy) {
            let (allocation, ordered) = self.make(op, session, tenant, plan)?;
            extents_left = extents_left.saturating_add(ordered);
            made.push((at, allocation));
        }
        for (_, allocation) in &made {
            self.set_aside_all(*allocation);
        }
        made.sort_unstable();
        let allocations = made.into_iter().map(|(_, allocation)| allocation).collect();
        let asked = Some(Box::new(asked));
        Ok(OpKind::Allocate { since: self.now, asked, allocations, extents_left, failure: None })
    }

    pub(super) fn plan(
        &self,
        session: SessionId,
        tenant: TenantId,
        spec: AllocationSpec,
    ) -> Result<Plan, Refusal> {
        let size_invalid = Refusal::SizeInvalid { field: "size_bytes", size: spec.size };
        let span =
            spec.size.checked_round_up(GRANULARITY).filter(|span| !span.is_zero()).ok_or(size_invalid)?;
        let device = self.placed_on(session, spec.device.as_deref())?;
        let has_pins = self.sessions.get(session).is_some_and(|session| session.words.is_some());
        self.check_kind(device, has_pins, &spec)?;
        // A legacy handle is one block: fixed memory has one part.
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
        Ok(Plan { device, part_size, span, part_count, spec, file: None })
    }

    /// Whether the device's driver can make it, and the rest of the wish goes with it.
    fn check_kind(&self, device: DeviceIndex, has_pins: bool, spec: &AllocationSpec) -> Result<(), Refusal> {
        let makes_fixed =
            self.config.devices.get(usize::from(device.0)).is_some_and(|device| device.makes_fixed);
        let problem = |field, problem| Err(Refusal::RequestInvalid { field, problem });
        match spec.kind {
            Kind::Movable if spec.unheld && !has_pins => problem("unheld", NEVER_PINNED),
            Kind::Movable if spec.discardable && is_to_be_sealed(spec) => {
                problem("discardable", "what can be lost is never sealed, so it is its session's alone")
            }
            Kind::Movable => Ok(()),
            Kind::Fixed if spec.discardable => problem("discardable", "fixed memory never leaves its device"),
            Kind::Fixed if spec.unheld => problem("unheld", FIXED_STAYS),
            Kind::Managed => Err(Refusal::KindUnsupported { kind: "managed" }),
            Kind::Fixed if !makes_fixed => Err(Refusal::KindUnsupported { kind: "fixed" }),
            Kind::Fixed if spec.lifetime == Lifetime::Persistent => {
                problem("lifetime", "fixed memory is never sealed, so it ends with its session")
            }
            Kind::Fixed if !spec.readers.is_empty() => {
                problem("readers", "fixed memory is its own tenant's alone")
            }
            Kind::Fixed if spec.replace => {
                problem("replace", "fixed memory is never sealed, so it takes no name over")
            }
            Kind::Fixed if spec.part_size.is_some() => {
                problem("part_size_bytes", "fixed memory has one part")
            }
            Kind::Fixed => Ok(()),
        }
    }

    /// The device that was asked for, if the session sees it, or the first one it sees.
    fn placed_on(&self, session: SessionId, asked: Option<&str>) -> Result<DeviceIndex, Refusal> {
        let visible = self.sessions.get(session).map(|session| &*session.devices).unwrap_or_default();
        let Some(text) = asked else {
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
                (_, true) => {
                    Err(Refusal::RequestInvalid { field: "replace", problem: "there is no name to take" })
                }
                _ => Ok(()),
            };
        };
        if !name::is_valid(name) {
            return Err(Refusal::NameInvalid { field: "name", name: name.clone() });
        }
        self.check_bearer(tenant, name, spec.replace)
    }

    /// Whether the name is free, or borne by something that may be replaced.
    pub(crate) fn check_bearer(&self, tenant: TenantId, name: &str, replace: bool) -> Result<(), Refusal> {
        let bearer = self.allocations.bearer(tenant, name).and_then(|id| self.allocations.get(id));
        match bearer {
            Some(_) if planted!(self, NameTakenTwice) => Ok(()),
            Some(bearer) if !(replace && bearer.state == AllocationState::Sealed) => {
                Err(Refusal::NameTaken { name: format!("{}/{name}", self.tenants.name(tenant)) })
            }
            _ => Ok(()),
        }
    }

    /// No name may stand twice in one batch.
    fn check_names(&self, plans: &[Plan]) -> Result<(), Refusal> {
        let mut names: Vec<_> = plans.iter().filter_map(|plan| plan.spec.name.as_deref()).collect();
        names.sort_unstable();
        match names.windows(2).find_map(|pair| (pair.first() == pair.last()).then(|| pair.first()).flatten())
        {
            Some(_) if planted!(self, NameTwiceInBatch) => Ok(()),
            Some(twice) => Err(Refusal::NameTaken { name: (*twice).to_owned() }),
            None => Ok(()),
        }
    }

    fn check_counts(&self, tenant: TenantId, plans: &[Plan]) -> Result<(), Refusal> {
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
        // What is cached is given up, or had.
        let extents = self.pool.len().saturating_sub(self.pool.cache().len()).saturating_add(new_parts);
        if extents > limits.extents_max {
            return Err(too_many(limits.extents_max));
        }
        if parts.saturating_add(new_parts) > limits.parts_per_tenant_max {
            return Err(too_many(limits.parts_per_tenant_max));
        }
        Ok(())
    }

    /// Whether the session's word table has slots for so many more parts, if it has one.
    pub(crate) fn check_slots(&self, id: SessionId, parts: usize) -> Result<(), Refusal> {
        let words = self.sessions.get(id).and_then(|session| session.words.as_ref());
        match words {
            Some(words) if !words.slots.has_room_for(parts) => {
                Err(Refusal::SlotsExhausted { session: id, limit: words.slots.max() })
            }
            _ => Ok(()),
        }
    }

    /// Whether the batch as a whole is admitted now. Where it is not in several places, what can never be is told, or the first.
    pub(crate) fn check_room(&self, tenant: TenantId, plans: &[Plan]) -> Result<(), Lack> {
        let (mut all_kept, mut lacks) = (BTreeSet::new(), Vec::new());
        for (place, asked, kept) in self.asked_by_place(tenant, plans) {
            let recycled = self.sizes_of(&kept);
            all_kept.extend(kept);
            let fresh = asked.saturating_sub(recycled);
            if !fresh.is_zero()
                && let Err(shortage) = self.ledger.admit(tenant, place, fresh)
            {
                lacks.push(Lack::Bytes { place, shortage, asked });
            }
        }
        let never = lacks.iter().position(|lack| !self.could_ever(tenant, lack));
        let never = never.filter(|_| !planted!(self, FirstLackAlone));
        if let Some(lack) = lacks.into_iter().nth(never.unwrap_or_default()) {
            return Err(lack);
        }
        let fresh = parts_of(plans).saturating_sub(all_kept.len());
        self.check_count(&all_kept, fresh).map_err(Lack::Extents)
    }

    /// How much a batch asks in each place, and which cached extents it will have of that.
    pub(crate) fn asked_by_place(&self, tenant: TenantId, plans: &[Plan]) -> Vec<(Place, Bytes, Vec<Age>)> {
        let mut asked = Vec::new();
        for device in self.device_indices() {
            let (lazy, held): (Vec<_>, Vec<_>) =
                plans.iter().filter(|plan| plan.device == device).partition(|plan| self.is_lazy(plan));
            if !held.is_empty() {
                let kept = self.keep_for(tenant, device, held.iter().copied());
                asked.push((Place::device(device), self.sum_of_plans(&held), kept));
            }
            let below = self.asked_below(tenant, device, &lazy).into_iter();
            asked.extend(below.map(|(place, bytes)| (place, bytes, Vec::new())));
        }
        asked
    }

    /// How much of what may begin below a device each tier there has of it: each part as near as there is room for it.
    fn asked_below(&self, tenant: TenantId, device: DeviceIndex, lazy: &[&Plan]) -> Vec<(Place, Bytes)> {
        let (mut left, mut asked) = (self.sum_of_plans(lazy), Vec::new());
        let mut pieces: Vec<_> = lazy.iter().flat_map(|plan| plan.pieces()).collect();
        let mut places = self.ledger.below(device).peekable();
        while let Some(place) = places.next().filter(|_| !left.is_zero()) {
            // What finds no room in the last is short of it there.
            let there = match places.peek() {
                None => left,
                Some(_) => self.takes(tenant, place, &mut pieces),
            };
            left = left.saturating_sub(there);
            if !there.is_zero() {
                asked.push((place, there));
            }
        }
        asked
    }

    /// How much of the pieces there is room for in a place, in their order; the others are left.
    fn takes(&self, tenant: TenantId, place: Place, pieces: &mut [(Bytes, usize)]) -> Bytes {
        let (Some(mut draft), mut taken) = (self.ledger.draft(place), Bytes::ZERO) else {
            return Bytes::ZERO;
        };
        for (size, count) in pieces {
            let of = |count: usize| {
                let count = u64::try_from(count).unwrap_or(u64::MAX);
                Bytes::new(size.get().saturating_mul(count))
            };
            let fits = |count: &usize| draft.admit(tenant, of(*count)).is_ok();
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
            draft.promise(tenant, of(least));
        }
        taken
    }

    /// No more than the largest sum is ever there.
    fn sum_of_plans(&self, plans: &[&Plan]) -> Bytes {
        sum_of(plans.iter().map(|plan| plan.span), planted!(self, SumOverflows)).unwrap_or(Bytes::MAX)
    }

    /// Whether its parts may begin below its device.
    fn is_lazy(&self, plan: &Plan) -> bool {
        plan.spec.unheld && !plan.spec.discardable && self.ledger.below(plan.device).next().is_some()
    }

    pub(crate) fn sizes_of(&self, ages: &[Age]) -> Bytes {
        let sizes = ages.iter().filter_map(|age| self.pool.cache().get(*age)).map(|entry| entry.size);
        sizes.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// Those cached extents that the plans will have.
    fn keep_for<'a>(
        &self,
        tenant: TenantId,
        device: DeviceIndex,
        plans: impl Iterator<Item = &'a Plan>,
    ) -> Vec<Age> {
        let mut wanted: BTreeMap<Bytes, usize> = BTreeMap::new();
        for plan in plans.filter(|plan| plan.takes_cached() && !self.is_lazy(plan)) {
            for (size, count) in plan.pieces() {
                let wanted = wanted.entry(size).or_default();
                *wanted = wanted.saturating_add(count);
            }
        }
        let of = |(size, count)| self.pool.cache().oldest(tenant, device, size).take(count);
        wanted.into_iter().flat_map(of).collect()
    }

    /// Reserves the bytes of one allocation and orders its extents, but for those that are cached. Says how many were
    /// ordered.
    pub(super) fn make(
        &mut self,
        op: OpId,
        session: SessionId,
        tenant: TenantId,
        plan: Plan,
    ) -> Result<(AllocationId, usize), Refusal> {
        let exhausted = Refusal::InvariantBroken { invariant: invariants::IDS };
        let id = self.ids.allocations.next_raw().map(AllocationId::from_raw).ok_or(exhausted)?;
        let takes_cached = plan.takes_cached() || planted!(self, OldContentAsZeros);
        let lazy = self.is_lazy(&plan);
        let Plan { spec, device, part_size, span, part_count, file } = plan;
        let mut allocation = Allocation {
            tenant,
            owner: Some(session),
            device,
            kind: spec.kind,
            lifetime: spec.lifetime,
            name: spec.name.map(Arc::from),
            replace: spec.replace,
            readers: Readers::new(spec.readers),
            size: spec.size,
            span,
            part_size,
            parts: Few::default(),
            state: AllocationState::Creating,
            digest: None,
            digesting: false,
            unheld: spec.unheld,
            discardable: spec.discardable,
            in_place: false,
            in_host: Bytes::ZERO,
            file: file.as_ref().map(|file| Arc::clone(&file.path)),
            extents_left: 0,
            hold_count: 0,
            extents_unreturned: 0,
            op: Some(op),
            watchers: Few::default(),
        };
        let waited_for = lazy && self.is_waited_for(device);
        let mut ordered = 0;
        let parts = (0..).map(PartIndex).take(part_count).map(|index| {
            let part = PartRef { allocation: id, part: index };
            let size = allocation.size_of(index);
            if let Some(file) = &file {
                ordered += 1;
                let (at, bytes) = (allocation.offset_of(index), allocation.asked_of(index));
                let place = Place { device, tier: Tier::Disk };
                let extent = self.order_in_file(tenant, part, place, Piece { file, at, bytes, size })?;
                return Ok(Part { extent, holds: Few::default() });
            }
            let on_device = Place::device(device);
            let begins_below = lazy && (waited_for || self.ledger.admit(tenant, on_device, size).is_err());
            let below = || self.ledger.place_below(tenant, device, size);
            let place = begins_below.then(below).flatten().unwrap_or(on_device);
            let cached = takes_cached && place.tier == Tier::Device;
            let extent = match cached.then(|| self.reuse(tenant, device, size, part)).flatten() {
                Some(extent) => extent,
                None => {
                    ordered += 1;
                    self.order(tenant, Order { place, size, part, kind: allocation.kind, zeroed: true })?
                }
            };
            if lazy && place.tier == Tier::Device {
                self.set_aside(part, tenant, device, size);
            }
            Ok(Part { extent, holds: Few::default() })
        });
        allocation.parts = parts.collect::<Result<_, Refusal>>()?;
        allocation.extents_left = u32::try_from(part_count).unwrap_or(u32::MAX);
        self.allocations.insert(id, allocation);
        if let Some(session) = self.sessions.get_mut(session) {
            session.owned.insert(id);
            if let Some(words) = &mut session.words {
                words.slots.promise(part_count);
            }
        }
        Ok((id, ordered))
    }

    /// A cached extent of the tenant, which backs the part from now on.
    pub(crate) fn reuse(
        &mut self,
        tenant: TenantId,
        device: DeviceIndex,
        size: Bytes,
        part: PartRef,
    ) -> Option<ExtentId> {
        #[cfg(feature = "planted")]
        let tenant = match planted!(self, CachedToAnotherTenant) {
            true => self.pool.anybody_with(device, size).unwrap_or(tenant),
            false => tenant,
        };
        let extent = self.pool.reuse(tenant, device, size, part)?;
        self.notice(Notice::Reused { extent, part });
        Some(extent)
    }

    /// All extents of a batch are made, or could not be.
    pub(crate) fn allocated(&mut self, op: OpId) {
        let Some(OpKind::Allocate { asked, allocations, failure, .. }) =
            self.ops.get_mut(op).map(|op| &mut op.kind)
        else {
            return;
        };
        let (asked, ids, failure) = (asked.take(), std::mem::take(allocations), failure.take());
        for id in &ids {
            if let Some(allocation) = self.allocations.get_mut(*id) {
                allocation.op = None;
            }
        }
        // A session that has ended meanwhile has had its part of the batch freed already.
        let lost = |id: &AllocationId| {
            self.allocations.get(*id).is_none_or(|allocation| allocation.state != AllocationState::Creating)
        };
        let raced = ids.iter().find(|id| lost(id)).map(|id| Refusal::Raced { allocation: *id });
        let again = match (&failure, &raced) {
            (Some(Refusal::DeviceFull { tier: Tier::Device, .. }), None) => asked,
            _ => None,
        };
        if let Some(refusal) = failure.or(raced) {
            let undone = if planted!(self, HalfABatchKept) { 1 } else { ids.len() };
            for id in ids.into_iter().take(undone) {
                self.start_free(id);
                self.remove_if_gone(id);
            }
            return match again {
                Some(asked) => self.line_up_again(op, *asked, refusal),
                None => self.finish(op, Err(refusal)),
            };
        }
        // All were made by the same session, which lives: else they would be lost.
        let owner = ids.first().and_then(|id| self.allocations.get(*id)?.owner);
        for id in &ids {
            self.advance(*id, AllocationEvent::Created);
            self.note_made(*id);
            self.all_reside(*id);
        }
        if let [loaded] = *ids
            && self.seal_loaded(op, loaded)
        {
            return;
        }
        self.finish(op, Ok(Outcome::Allocated(ids.clone().into_boxed_slice())));
        if let Some(owner) = owner {
            self.queue_all_maps(owner, &ids);
        }
    }

    /// Moves an allocation along its table.
    pub(crate) fn advance(&mut self, id: AllocationId, event: AllocationEvent) {
        let Some(allocation) = self.allocations.get_mut(id) else { return };
        let (from, next) = (allocation.state, allocation.state.on(event));
        self.transitions.note(Transition::Allocation { from, event, legal: next.is_some() });
        match next {
            Some(next) => {
                allocation.state = next;
                self.unsettled.demands |= !self.demands.is_empty();
                let (owner, parts) = (allocation.owner, allocation.parts.len());
                self.allocations.moved(from, next);
                if from.promises_slots() != next.promises_slots()
                    && let Some(session) = owner.and_then(|owner| self.sessions.get_mut(owner))
                    && let Some(words) = &mut session.words
                {
                    match next.promises_slots() {
                        true => words.slots.promise(parts),
                        false => words.slots.keep_promise(parts),
                    }
                }
            }
            None => {
                let detail = format!("{id}: {event:?} in state {from:?}");
                self.broken(invariants::TRANSITIONS, detail);
            }
        }
    }
}

/// Whether it asks for what sealed memory alone has.
const fn is_to_be_sealed(spec: &AllocationSpec) -> bool {
    matches!(spec.lifetime, Lifetime::Persistent) || spec.replace || !spec.readers.is_empty()
}

fn parts_of(plans: &[Plan]) -> usize {
    plans.iter().fold(0, |sum: usize, plan| sum.saturating_add(plan.part_count))
}

/// The sum, unless it does not fit.
fn sum_of(spans: impl Iterator<Item = Bytes>, wraps: bool) -> Option<Bytes> {
    match wraps {
        true => Some(spans.fold(Bytes::ZERO, |sum, span| Bytes::new(sum.get().wrapping_add(span.get())))),
        false => Bytes::checked_sum(spans),
    }
}
