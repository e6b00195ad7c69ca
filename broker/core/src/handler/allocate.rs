//! `AllocateBatch`: check everything, reserve, have the extents made, settle; one failure undoes all.
//! What may begin with old content takes the tenant's cached extents first.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use vramd_types::{AllocationId, Bytes, DeviceIndex, ExtentId, GRANULARITY, PartIndex, SessionId, name};

use super::{Start, Started, room::Choice};
use crate::{
    broker::Broker,
    collections::Few,
    command::Notice,
    error::Refusal,
    event::{AllocationSpec, Kind, Lifetime, PartRef},
    invariants,
    ledger::Place,
    limits::{PART_SIZE_MAX, PARTS_PER_ALLOCATION_MAX},
    observed::Transition,
    residency::{Allocation, AllocationEvent, AllocationState, Part, Readers},
    tenancy::{OpId, OpKind, Outcome, TenantId},
};

/// An item that was found to be good, with its sizes worked out.
struct Plan {
    spec: AllocationSpec,
    device: DeviceIndex,
    part_size: Bytes,
    span: Bytes,
    part_count: usize,
}

impl Plan {
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
        _wait: Duration,
    ) -> Start {
        if self.draining && !planted!(self, DrainIgnored) {
            return Err(Refusal::Draining);
        }
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
        let choice = self.check_room(tenant, &plans)?;
        self.check_counts(tenant, &plans, &choice)?;
        self.check_slots(
            session,
            plans.iter().fold(0usize, |sum, plan| sum.saturating_add(plan.part_count)),
        )?;
        if !choice.is_nothing() {
            self.make_room(op, choice);
            let items = plans.into_iter().map(|plan| plan.spec).collect();
            return Ok(Started::Waiting(OpKind::Room { items }));
        }

        let mut allocations = Vec::with_capacity(plans.len());
        let mut extents_left = 0usize;
        for plan in plans {
            let (allocation, ordered) = self.make(op, session, tenant, plan)?;
            extents_left = extents_left.saturating_add(ordered);
            allocations.push(allocation);
        }
        Ok(Started::Waiting(OpKind::Allocate { allocations, extents_left, failure: None }))
    }

    fn plan(&self, session: SessionId, tenant: TenantId, spec: AllocationSpec) -> Result<Plan, Refusal> {
        let size_invalid = Refusal::SizeInvalid { field: "size_bytes", size: spec.size };
        let span =
            spec.size.checked_round_up(GRANULARITY).filter(|span| !span.is_zero()).ok_or(size_invalid)?;
        let device = self.placed_on(session, spec.device.as_deref())?;
        self.check_kind(device, &spec)?;
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
        Ok(Plan { device, part_size, span, part_count, spec })
    }

    /// Whether the device's driver can make it, and the rest of the wish goes with it.
    fn check_kind(&self, device: DeviceIndex, spec: &AllocationSpec) -> Result<(), Refusal> {
        let makes_fixed =
            self.config.devices.get(usize::from(device.0)).is_some_and(|device| device.makes_fixed);
        let problem = |field, problem| Err(Refusal::RequestInvalid { field, problem });
        match spec.kind {
            Kind::Movable => Ok(()),
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

    fn check_counts(&self, tenant: TenantId, plans: &[Plan], choice: &Choice) -> Result<(), Refusal> {
        if planted!(self, CountsIgnored) {
            return Ok(());
        }
        let limits = &self.config.limits;
        let (allocations, parts) = self.allocations.count_of(tenant);
        let new_parts = plans.iter().fold(0usize, |sum, plan| sum.saturating_add(plan.part_count));
        let too_many =
            |limit| Refusal::AllocationsTooMany { tenant: self.tenants.name(tenant).to_owned(), limit };
        if plans.iter().any(|plan| plan.part_count > PARTS_PER_ALLOCATION_MAX) {
            return Err(too_many(PARTS_PER_ALLOCATION_MAX));
        }
        if allocations.saturating_add(plans.len()) > limits.allocations_per_tenant_max {
            return Err(too_many(limits.allocations_per_tenant_max));
        }
        let extents = self.pool.len().saturating_add(new_parts);
        if extents.saturating_sub(choice.kept.len()).saturating_sub(choice.count()) > limits.extents_max {
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

    /// Whether the batch as a whole would be admitted, device by device; and of what is cached, what it will have and
    /// what must be given up for it.
    fn check_room(&self, tenant: TenantId, plans: &[Plan]) -> Result<Choice, Refusal> {
        let mut choice = Choice::default();
        for device in self.device_indices() {
            let on_device = || plans.iter().filter(|plan| plan.device == device);
            let asked = sum_of(on_device().map(|plan| plan.span), planted!(self, SumOverflows))
                .ok_or(Refusal::SizeInvalid { field: "size_bytes", size: Bytes::MAX })?;
            let recycled = self.keep_for(tenant, device, on_device(), &mut choice);
            let fresh = asked.saturating_sub(recycled);
            if !fresh.is_zero() {
                self.choose_for_bytes(&mut choice, tenant, device, fresh)
                    .map_err(|shortage| self.shortage(tenant, Place::device(device), shortage, asked))?;
            }
        }
        let parts = plans.iter().fold(0usize, |sum, plan| sum.saturating_add(plan.part_count));
        let fresh = parts.saturating_sub(choice.kept.len());
        self.choose_for_count(&mut choice, fresh);
        Ok(choice)
    }

    /// Keeps those cached extents that the plans will have, and says how much that is.
    fn keep_for<'a>(
        &self,
        tenant: TenantId,
        device: DeviceIndex,
        plans: impl Iterator<Item = &'a Plan>,
        choice: &mut Choice,
    ) -> Bytes {
        let mut wanted: BTreeMap<Bytes, usize> = BTreeMap::new();
        for plan in plans.filter(|plan| plan.takes_cached()) {
            let rest = Bytes::new(plan.span.get() % plan.part_size.get());
            let whole = plan.part_count.saturating_sub(usize::from(!rest.is_zero()));
            for (size, count) in [(plan.part_size, whole), (rest, plan.part_count.saturating_sub(whole))] {
                let wanted = wanted.entry(size).or_default();
                *wanted = wanted.saturating_add(count);
            }
        }
        let mut bytes = Bytes::ZERO;
        for (size, count) in wanted {
            for age in self.pool.cache().oldest(tenant, device, size).take(count) {
                choice.kept.insert(age);
                bytes = bytes.saturating_add(size);
            }
        }
        bytes
    }

    /// Reserves the bytes of one allocation and orders its extents, but for those that are cached. Says how many were
    /// ordered.
    fn make(
        &mut self,
        op: OpId,
        session: SessionId,
        tenant: TenantId,
        plan: Plan,
    ) -> Result<(AllocationId, usize), Refusal> {
        let exhausted = Refusal::InvariantBroken { invariant: invariants::IDS };
        let id = self.ids.allocations.next_raw().map(AllocationId::from_raw).ok_or(exhausted)?;
        let takes_cached = plan.takes_cached() || planted!(self, OldContentAsZeros);
        let Plan { spec, device, part_size, span, part_count } = plan;
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
            extents_left: 0,
            hold_count: 0,
            extents_unreturned: 0,
            op: Some(op),
            watchers: Few::default(),
        };
        let mut ordered = 0;
        let parts = (0..).map(PartIndex).take(part_count).map(|index| {
            let part = PartRef { allocation: id, part: index };
            let size = allocation.size_of(index);
            let extent = match takes_cached.then(|| self.reuse(tenant, device, size, part)).flatten() {
                Some(extent) => extent,
                None => {
                    ordered += 1;
                    self.order(tenant, Place::device(device), size, part, allocation.kind, true)?
                }
            };
            Ok(Part { extent, holds: Few::default() })
        });
        allocation.parts = parts.collect::<Result<_, Refusal>>()?;
        allocation.extents_left = part_count;
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
    fn reuse(
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
        let Some(OpKind::Allocate { allocations, failure, .. }) = self.ops.get_mut(op).map(|op| &mut op.kind)
        else {
            return;
        };
        let (ids, failure) = (std::mem::take(allocations), failure.take());
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
        if let Some(refusal) = failure.or(raced) {
            let undone = if planted!(self, HalfABatchKept) { 1 } else { ids.len() };
            for id in ids.into_iter().take(undone) {
                self.start_free(id);
                self.remove_if_gone(id);
            }
            return self.finish(op, Err(refusal));
        }
        // All were made by the same session, which lives: else they would be lost.
        let owner = ids.first().and_then(|id| self.allocations.get(*id)?.owner);
        for id in &ids {
            self.advance(*id, AllocationEvent::Created);
            self.note_made(*id);
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

/// The sum, unless it does not fit.
fn sum_of(spans: impl Iterator<Item = Bytes>, wraps: bool) -> Option<Bytes> {
    match wraps {
        true => Some(spans.fold(Bytes::ZERO, |sum, span| Bytes::new(sum.get().wrapping_add(span.get())))),
        false => Bytes::checked_sum(spans),
    }
}
