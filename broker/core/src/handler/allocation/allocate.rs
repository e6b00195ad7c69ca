//! `AllocateBatch`: check everything (`admission.rs`), reserve, have the driver create the extents, settle. One
//! failure undoes the whole batch.
//!
//! A batch that accepts old content reuses the tenant's cached extents first. A batch without room waits in the
//! line (`line/enter_leave.rs`).

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;
use vramd_types::{AllocationId, Bytes, DeviceIndex, PartIndex, SessionId};

use crate::{
    broker::Broker,
    command::Notice,
    error::Refusal,
    event::{AllocationSpec, Kind, PartRef, Tier},
    follow_up::Fact,
    handler::{Start, Started, allocation::load_file::FilePiece, extents::create_extent::ExtentOrder},
    invariants,
    ledger::Place,
    line::{AllocationPlan, BatchRequest, WaitingBatch},
    observed::Transition,
    ops::OpKind,
    pool::ExtentError,
    residency::{Allocation, AllocationEvent, AllocationState, FilePath, Part, Readers},
    tenancy::{OpId, Outcome, TenantId},
};

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
        planted!(self, BatchTooLargeServed => items_max = usize::MAX);
        if items.len() > items_max {
            return Err(Refusal::BatchTooLarge { items_max, items: items.len() });
        }
        let mut plans = Vec::with_capacity(items.len());
        for spec in items {
            plans.push(self.plan_item(session, tenant, spec)?);
        }
        self.check_names(&plans)?;
        let sum = Bytes::checked_sum(plans.iter().map(|plan| plan.span));
        planted!(self, BatchSumOverflows => sum = Some(Bytes::ZERO));
        sum.ok_or(Refusal::SizeInvalid { field: "size_bytes", size: Bytes::MAX })?;
        let missing = self.check_batch_room(tenant, &plans).err();
        if let Some(missing) = missing.as_ref().filter(|missing| !self.is_ever_possible(tenant, missing)) {
            return Err(self.batch_refusal(tenant, missing));
        }
        self.recheck_plans(session, tenant, &plans)?;
        let why = match missing {
            None => self.refusal_behind_others(tenant, &plans),
            Some(missing) => Some(self.batch_refusal(tenant, &missing)),
        };
        let request = BatchRequest {
            plans,
            arrived: self.pins.after_all(),
            until: self.shell.now.after(wait),
            tries: 0,
        };
        Ok(match why {
            None => {
                self.push_if_waiters(Fact::RoomTaken);
                Started::Waiting(self.create_batch(op, session, tenant, request)?)
            }
            Some(why) => self.enqueue_batch(op, tenant, WaitingBatch::new(request, why)),
        })
    }

    /// Creates all allocations of a batch whose bytes are available. Items that begin on their device come
    /// first, since they can lie nowhere else. Their backing is reserved last, since unpinned parts may have to
    /// begin there.
    pub(crate) fn create_batch(
        &mut self,
        op: OpId,
        session: SessionId,
        tenant: TenantId,
        request: BatchRequest,
    ) -> Result<OpKind, Refusal> {
        let plans = &request.plans;
        let starts_below = |at: &usize| plans.get(*at).is_some_and(|plan| self.can_start_below(plan));
        let (lazy, pinned): (Vec<_>, Vec<_>) = (0..plans.len()).partition(starts_below);
        let mut made = Vec::with_capacity(plans.len());
        let mut extents_left = 0usize;
        for at in pinned.into_iter().chain(lazy) {
            let Some(plan) = plans.get(at) else { continue };
            let (allocation, ordered) = self.create_allocation(op, session, tenant, plan)?;
            extents_left = extents_left.saturating_add(ordered);
            made.push((at, allocation));
        }
        for (_, allocation) in &made {
            self.reserve_backings_of(*allocation);
        }
        made.sort_unstable();
        let allocations = made.into_iter().map(|(_, allocation)| allocation).collect();
        let request = Some(Box::new(request));
        Ok(OpKind::Allocate { since: self.shell.now, request, allocations, extents_left, failure: None })
    }

    /// Reserves the bytes of one allocation and orders its extents, except for cached ones. Returns how many it
    /// ordered.
    pub(crate) fn create_allocation(
        &mut self,
        op: OpId,
        session: SessionId,
        tenant: TenantId,
        plan: &AllocationPlan,
    ) -> Result<(AllocationId, usize), Refusal> {
        let exhausted = Refusal::InvariantBroken { invariant: invariants::IDS };
        let id = self.allocations.ids.next_raw().map(AllocationId::from_raw).ok_or(exhausted)?;
        let takes_cached = plan.takes_cached();
        planted!(self, OldContentAsZeros => takes_cached = true);
        let lazy = self.can_start_below(plan);
        let AllocationPlan { ref spec, device, part_size, span, part_count, ref file } = *plan;
        let mut allocation = Allocation {
            tenant,
            owner: Some(session),
            device,
            kind: spec.kind,
            lifetime: spec.lifetime,
            name: spec.name.as_deref().map(Arc::from),
            replace: spec.replace,
            readers: Readers::new(&spec.readers),
            size: spec.size,
            span,
            part_size,
            parts: SmallVec::new(),
            state: AllocationState::Creating,
            digest: None,
            digesting: false,
            unpinned: spec.unpinned,
            discardable: spec.discardable,
            in_place: false,
            in_host: Bytes::ZERO,
            file: file.as_ref().map(|file| Box::new(FilePath(Arc::clone(&file.path)))),
            extents_left: 0,
            mapping_count: 0,
            extents_unreturned: 0,
            op: Some(op),
            waiting_ops: SmallVec::new(),
        };
        if spec.kind == Kind::Managed {
            self.charge_managed(id, (session, tenant), device, span)?;
        }
        let waited_for = lazy && self.has_waiters_on(device);
        let mut ordered = 0;
        let parts = (0..).map(PartIndex).take(part_count).map(|index| {
            let part = PartRef { allocation: id, part: index };
            let size = allocation.size_of(index);
            if let Some(file) = file {
                ordered += 1;
                let (at, bytes) = (allocation.offset_of(index), allocation.requested_of(index));
                let place = Place { device, tier: Tier::Disk };
                let extent = self.order_in_file(tenant, part, place, FilePiece { file, at, bytes, size });
                let extent = extent.map_err(|error| self.extent_refusal(tenant, &error))?;
                return Ok(Part { extent, mappings: SmallVec::new() });
            }
            let on_device = Place::device(device);
            let begins_below = lazy && (waited_for || self.ledger.admit(tenant, on_device, size).is_err());
            let below = || self.ledger.place_below(tenant, device, size);
            let place = begins_below.then(below).flatten().unwrap_or(on_device);
            let cached = takes_cached && place.tier == Tier::Device;
            let extent = match cached.then(|| self.reuse_cached(tenant, device, size, part)).flatten() {
                Some(extent) => extent,
                None => {
                    ordered += 1;
                    let zeroed = true;
                    planted!(self, UnzeroedCreated => zeroed = false);
                    planted!(self, UnzeroedBelow => zeroed = place.tier == Tier::Device);
                    let order = ExtentOrder { place, size, part, kind: allocation.kind, zeroed };
                    let extent = self.order_extent(tenant, order);
                    extent.map_err(|error| self.extent_refusal(tenant, &error))?
                }
            };
            if lazy && place.tier == Tier::Device {
                self.reserve_backing(part, tenant, device, size);
            }
            Ok(Part { extent, mappings: SmallVec::new() })
        });
        allocation.parts = parts.collect::<Result<_, Refusal>>()?;
        allocation.extents_left = u32::try_from(part_count).unwrap_or(u32::MAX);
        self.allocations.insert(id, allocation);
        planted!(self, NameLedAstray => self.allocations.restore_name(id));
        if let Some(session) = self.sessions.get_mut(session) {
            session.owned.insert(id);
            if let Some(words) = &mut session.words {
                words.slots.promise(part_count);
            }
        }
        Ok((id, ordered))
    }

    /// Charges memory that the client will allocate in its own process.
    fn charge_managed(
        &mut self,
        id: AllocationId,
        (session, tenant): (SessionId, TenantId),
        device: DeviceIndex,
        bytes: Bytes,
    ) -> Result<(), Refusal> {
        let place = Place::device(device);
        match self.ledger.charge_managed(tenant, place, bytes) {
            Ok(charge) => {
                self.allocations.managed.insert(id, session, charge);
                self.push_notice(Notice::ManagedCharged { allocation: id, session, device, bytes });
                Ok(())
            }
            Err(shortage) => Err(self.shortage_refusal(tenant, place, shortage, bytes)),
        }
    }

    /// Ends a batch if all its extents are created, or failed.
    pub(crate) fn finish_allocation(&mut self, op: OpId) {
        let Some(OpKind::Allocate { extents_left: 0, request, allocations, failure, .. }) =
            self.requests.ops.get_mut(op).map(|op| &mut op.kind)
        else {
            return;
        };
        let (request, ids, failure) = (request.take(), std::mem::take(allocations), failure.take());
        for id in &ids {
            if let Some(allocation) = self.allocations.get_mut(*id) {
                allocation.op = None;
            }
        }
        // If the session has ended meanwhile, its allocations have been freed already.
        let lost = |id: &AllocationId| {
            self.allocations.get(*id).is_none_or(|allocation| allocation.state != AllocationState::Creating)
        };
        let raced = ids.iter().find(|id| lost(id)).map(|id| Refusal::Raced { allocation: *id });
        let again = match (&failure, &raced) {
            (Some(ExtentError::OutOfMemory { place, .. }), None) if place.tier == Tier::Device => {
                request.map(|request| (request, place.device))
            }
            _ => None,
        };
        let tenant = self.requests.ops.get(op).and_then(|op| op.requester.tenant());
        let failure = failure.zip(tenant).map(|(error, tenant)| self.extent_refusal(tenant, &error));
        if let Some(refusal) = failure.or(raced) {
            planted!(self, FailedBatchHalfKept => ids = ids.into_iter().take(1).collect());
            for id in ids {
                self.start_free(id);
                self.remove_if_gone(id);
            }
            return match again {
                Some((request, device)) => self.requeue_batch(op, *request, device, refusal),
                None => self.finish(op, Err(refusal)),
            };
        }
        // All belong to one session, which lives: else they would have been freed.
        let owner = ids.first().and_then(|id| self.allocations.get(*id)?.owner);
        for id in &ids {
            self.advance_allocation(*id, AllocationEvent::Created);
            self.note_made(*id);
            self.mark_all_evictable(*id);
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
    pub(crate) fn advance_allocation(&mut self, id: AllocationId, event: AllocationEvent) {
        let Some(allocation) = self.allocations.get_mut(id) else { return };
        let (from, next) = (allocation.state, allocation.state.on(event));
        self.shell.transitions.note(Transition::Allocation { from, event, legal: next.is_some() });
        match next {
            Some(next) => {
                allocation.state = next;
                if !self.line.is_empty() {
                    self.follow_ups.push(Fact::AllocationAdvanced);
                }
                let (owner, parts) = (allocation.owner, allocation.parts.len());
                self.allocations.count_transition(from, next);
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
                self.report_violation(invariants::TRANSITIONS, detail);
            }
        }
    }
}
