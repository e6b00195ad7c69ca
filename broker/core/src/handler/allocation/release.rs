//! `FreeBatch`, `Detach`, and the release of memory.
//!
//! A freed allocation accepts no attach. Each of its extents is cached or released as soon as no session maps
//! its part and the driver does not read it. A released extent stays charged until the driver reports that its
//! memory is free ([`Broker::on_released`]). If another process still has it open, it is *unreturned*.
//!
//! Returned memory is room: the follow-ups scan the line (`follow_up.rs`, `scan/mod.rs`).

use vramd_types::{AllocationId, Bytes, ExtentId, SessionId};

use crate::{
    broker::Broker,
    command::{Notice, Released, RevokeReason},
    error::Refusal,
    event::{PartRef, Target},
    follow_up::Fact,
    handler::{Start, Started},
    invariants,
    moves::Stop,
    ops::OpKind,
    pool::ExtentState,
    residency::{Allocation, AllocationEvent, AllocationState},
    tenancy::{OpId, Outcome, ReleaseItem, Releases, TenantId},
};

impl Broker {
    pub(crate) fn free_batch(
        &mut self,
        op: OpId,
        session: SessionId,
        tenant: TenantId,
        ids: &[AllocationId],
    ) -> Start {
        self.release_each(op, session, ids, RevokeReason::Freed, |broker, id| {
            broker.check_owner(session, tenant, id)?;
            broker.start_free(id);
            Ok(())
        })
    }

    pub(crate) fn detach_batch(
        &mut self,
        op: OpId,
        session: SessionId,
        tenant: TenantId,
        ids: &[AllocationId],
    ) -> Start {
        self.release_each(op, session, ids, RevokeReason::Detached, |broker, id| {
            let maps = broker.sessions.get(session).is_some_and(|session| session.maps.contains_key(&id));
            match maps {
                true => Ok(()),
                false => broker.find_visible(tenant, &Target::Id(id)).map(|_| ()),
            }
        })
    }

    /// Frees or detaches each allocation, has the session unmap it, and waits for that.
    fn release_each(
        &mut self,
        op: OpId,
        session: SessionId,
        ids: &[AllocationId],
        reason: RevokeReason,
        begin: impl Fn(&mut Self, AllocationId) -> Result<(), Refusal>,
    ) -> Start {
        if ids.is_empty() {
            return Err(Refusal::RequestInvalid { field: "allocation_ids", problem: "the batch is empty" });
        }
        let items_max = self.config.limits.batch_items_max;
        planted!(self, ReleaseTooLargeServed => items_max = usize::MAX);
        if ids.len() > items_max {
            return Err(Refusal::BatchTooLarge { items_max, items: ids.len() });
        }
        let mut items = Vec::with_capacity(ids.len());
        for id in ids.iter().copied() {
            let result = match begin(self, id) {
                Ok(()) => {
                    self.revoke_allocation(session, id, reason);
                    self.release_freed(id);
                    self.release_result(id, session).map(Ok)
                }
                Err(refusal) => Some(Err(Box::new(refusal))),
            };
            if result.is_none()
                && let Some(allocation) = self.allocations.get_mut(id)
            {
                allocation.waiting_ops.push(op);
            }
            items.push(ReleaseItem { allocation: id, result });
        }
        Ok(Started::Waiting(OpKind::Release { items: Releases::new(items), session }))
    }

    /// The rest of an allocation for the session that released it. `None` while that may still change.
    fn release_result(&self, id: AllocationId, session: SessionId) -> Option<Released> {
        let Some(allocation) = self.allocations.get(id) else {
            return Some(Released { still_charged: Bytes::ZERO, mappers: 0 });
        };
        let maps = self.maps_any(session, id, allocation);
        planted!(self, ReleasedUnanswered => maps = false);
        if maps {
            return None;
        }
        (!awaits_release(allocation)).then(|| self.what_is_left(id, allocation, allocation.mapper_count()))
    }

    /// The outcome of an operator's free. `None` while it may still change.
    pub(crate) fn free_result(&self, id: AllocationId, owner: Option<SessionId>) -> Option<Outcome> {
        let waits = self.allocations.get(id).is_some_and(|allocation| {
            awaits_release(allocation) || owner.is_some_and(|owner| self.maps_any(owner, id, allocation))
        });
        (!waits).then(|| self.freed_so_far(id))
    }

    fn freed_so_far(&self, id: AllocationId) -> Outcome {
        let (still_charged, mappers) = match self.allocations.get(id) {
            Some(allocation) => (self.charged(id, allocation), allocation.mappers()),
            None => (Bytes::ZERO, Vec::new()),
        };
        Outcome::AllocationFreed { allocation: id, still_charged, mappers: mappers.into_boxed_slice() }
    }

    fn what_is_left(&self, id: AllocationId, allocation: &Allocation, mappers: usize) -> Released {
        let freeing = allocation.state == AllocationState::Freeing;
        let still_charged = if freeing { self.charged(id, allocation) } else { Bytes::ZERO };
        Released { still_charged, mappers }
    }

    /// Tells operations that wait for an allocation that something changed.
    pub(crate) fn notify_watchers(&mut self, id: AllocationId) {
        let waiting_ops =
            self.allocations.get(id).map(|allocation| allocation.waiting_ops.clone()).unwrap_or_default();
        self.notify_operations(id, &waiting_ops);
    }

    fn notify_operations(&mut self, id: AllocationId, waiting_ops: &[OpId]) {
        for op in waiting_ops.iter().copied() {
            match self.requests.ops.get_mut(op).map(|op| &op.kind) {
                Some(OpKind::Release { session, .. }) => {
                    let session = *session;
                    if let Some(released) = self.release_result(id, session) {
                        self.resolve_release(op, id, released);
                    }
                }
                Some(OpKind::Free { owner, .. }) => {
                    let owner = *owner;
                    if let Some(outcome) = self.free_result(id, owner) {
                        self.forget_watcher(op, id);
                        self.finish(op, Ok(outcome));
                    }
                }
                _ => {}
            }
        }
    }

    fn forget_watcher(&mut self, op: OpId, id: AllocationId) {
        if let Some(allocation) = self.allocations.get_mut(id) {
            allocation.waiting_ops.retain(|watcher| *watcher != op);
        }
    }

    fn resolve_release(&mut self, op: OpId, id: AllocationId, released: Released) {
        self.forget_watcher(op, id);
        if let Some(OpKind::Release { items, .. }) = self.requests.ops.get_mut(op).map(|op| &mut op.kind) {
            items.resolve(id, released);
        }
        self.finish_release(op);
    }

    /// Answers releases that wait for a session which does not answer, as they stand.
    pub(crate) fn resolve_releases_of(&mut self, session: SessionId) {
        for op in self.requests.ops.of_session(session) {
            match self.requests.ops.get(op).map(|op| &op.kind) {
                Some(OpKind::Release { items, session: of }) if *of == session => {
                    let open = items.iter().filter(|item| item.result.is_none());
                    for id in open.map(|item| item.allocation).collect::<Vec<_>>() {
                        let Some(allocation) = self.allocations.get(id) else { continue };
                        let left = self.what_is_left(id, allocation, allocation.mapper_count());
                        self.resolve_release(op, id, left);
                    }
                }
                Some(OpKind::Free { allocation: id, .. }) => {
                    let id = *id;
                    if self
                        .allocations
                        .get(id)
                        .is_some_and(|allocation| self.maps_any(session, id, allocation))
                    {
                        let outcome = self.freed_so_far(id);
                        self.forget_watcher(op, id);
                        self.finish(op, Ok(outcome));
                    }
                }
                _ => {}
            }
        }
    }

    /// Ends a release if all its items are known.
    pub(crate) fn finish_release(&mut self, op: OpId) {
        let kind = self.requests.ops.get_mut(op).map(|op| &mut op.kind);
        let Some(OpKind::Release { items, .. }) = kind else { return };
        if !items.is_complete() {
            return;
        }
        let items = std::mem::take(items);
        self.finish(op, Ok(Outcome::Released(items.into_results())));
    }

    /// Frees an allocation: it has no name and accepts no attach, and its memory is released as soon as no
    /// session maps it.
    pub(crate) fn start_free(&mut self, id: AllocationId) {
        let Some(allocation) = self.allocations.get(id) else { return };
        let (state, owner) = (allocation.state, allocation.owner);
        if state == AllocationState::Freeing {
            return;
        }
        self.allocations.release_name(id);
        planted!(self, NameNotFreed => self.allocations.restore_name(id));
        self.advance_allocation(id, AllocationEvent::Freed);
        // A working set may be smaller now.
        if !self.sessions.turns.is_empty() {
            self.follow_ups.push(Fact::TurnsDue);
        }
        // An allocation that was never complete is reported as a refused request.
        if state != AllocationState::Creating {
            self.note_allocation(id, |allocation, tenant| Notice::AllocationFreed { allocation, tenant });
        }
        let is_sealing = matches!(state, AllocationState::Unmapping | AllocationState::Digesting);
        let op = self.allocations.get_mut(id).and_then(|allocation| match is_sealing {
            true => allocation.op.take(),
            false => None,
        });
        if let Some(op) = op {
            self.finish(op, Err(Refusal::Raced { allocation: id }));
        }
        if let Some(session) = owner.and_then(|owner| self.sessions.get_mut(owner)) {
            session.owned.remove(&id);
        }
        self.forget_unmapped(id);
        self.forget_attach_waiters(id);
        let mut named = self.moves.prefetches.named_parts_of(id);
        named.extend(self.moves.sequences.first_parts_of(id));
        for part in named {
            self.follow_ups.push(Fact::PrefetchedPartFreed(part));
        }
        self.moves.forget(id);
        // Memory that is being written stays until that has ended.
        for part in self.moves.write_backs.of(id).collect::<Vec<_>>() {
            self.stop_write_back(part, Stop::Freed);
            if !self.moves.write_backs.contains(part) {
                self.release_freed(id);
            }
        }
        if self.has_tiers() {
            self.drop_backings_of(id);
        }
        for part in self.moves.migrations.of(id).collect::<Vec<_>>() {
            self.stop_migration(part, Stop::Freed);
            self.after_moves();
        }
        self.release_freed(id);
    }

    /// Caches or releases every extent of a freed allocation that is not in use, and forgets the allocation if
    /// none is left.
    pub(crate) fn release_freed(&mut self, id: AllocationId) {
        let Some(allocation) = self.allocations.get(id) else { return };
        if allocation.state != AllocationState::Freeing {
            return;
        }
        for part in allocation.indices() {
            self.release_freed_part(PartRef { allocation: id, part });
        }
        self.remove_if_gone(id);
    }

    /// Caches or releases the extent of one part of a freed allocation, if no session maps it and the driver
    /// does not read it.
    pub(crate) fn release_freed_part(&mut self, part: PartRef) {
        let Some(allocation) = self.allocations.get(part.allocation) else { return };
        let Some(entry) = allocation.part(part.part) else { return };
        let id = entry.extent;
        let hashed = allocation.digesting;
        planted!(self, ReleasedWhileHashed => hashed = false);
        let mapped = !entry.mappings.is_empty();
        planted!(self, ReleasedWhileMapped => mapped = false);
        // Neither end of a copy is released before the copy has ended.
        let copied = self.moves.migrations.contains(part) || self.moves.write_backs.contains(part);
        planted!(self, ReleasedWhileCopied => copied = false);
        if hashed
            || mapped
            || copied
            || self.pool.extent_of_part(part, id).is_none()
            || self.try_cache(part, id)
        {
            return;
        }
        self.release_extent(id);
    }

    pub(crate) fn on_released(&mut self, id: ExtentId, returned: bool) {
        let Some(mut extent) = self.pool.take(id) else {
            return self.report_violation(invariants::EXTENTS, format!("{id} was released and is not known"));
        };
        let Some(charge) = extent.take_released() else {
            self.pool.insert(id, extent);
            return self.report_violation(invariants::EXTENTS, format!("{id} was released unasked"));
        };
        let (part, bytes, place) = (extent.part, extent.size, extent.place);
        self.untrack_release(charge.tenant(), place, bytes);
        if returned {
            self.note_memory_returned(place);
            self.ledger.discharge(charge);
            self.forget_extent(id, part, false);
        } else {
            extent.state = ExtentState::Unreturned(self.ledger.owe(charge, &extent.sent_to));
            self.pool.put_unreturned(id, extent);
            if let Some(allocation) = part.and_then(|part| self.allocations.get_mut(part.allocation)) {
                allocation.extents_unreturned += 1;
            }
            self.push_notice(Notice::Unreturned { extent: id, bytes });
        }
        if let Some(part) = part
            && !self.remove_if_gone(part.allocation)
        {
            self.notify_watchers(part.allocation);
        }
        self.on_leaving_resolved(id);
        planted!(self, WaiterForgotten => return);
        match returned {
            true => self.follow_ups.push(Fact::RoomFreed),
            false => self.follow_ups.push(Fact::ExtentUnreturned),
        }
    }

    pub(crate) fn on_returned(&mut self, id: ExtentId) {
        let Some(extent) = self.pool.take(id) else {
            return self.report_violation(invariants::EXTENTS, format!("{id} returned and is not known"));
        };
        let ExtentState::Unreturned(debts) = extent.state else {
            self.pool.insert(id, extent);
            return self.report_violation(invariants::EXTENTS, format!("{id} returned and was not awaited"));
        };
        for debt in debts {
            self.ledger.repay(debt);
        }
        self.follow_ups.push(Fact::ExtentReturned);
        self.note_memory_returned(extent.place);
        self.push_notice(Notice::Returned { extent: id, bytes: extent.size });
        self.forget_extent(id, extent.part, true);
        if let Some(part) = extent.part {
            self.remove_if_gone(part.allocation);
        }
    }

    /// Forgets a freed allocation whose last extent is gone, and tells the operations that waited for that.
    pub(crate) fn remove_if_gone(&mut self, id: AllocationId) -> bool {
        let gone = |allocation: &Allocation| {
            allocation.state == AllocationState::Freeing
                && allocation.extents_left == 0
                && !allocation.digesting
        };
        if !self.allocations.get(id).is_some_and(gone) {
            return false;
        }
        self.note_allocation(id, |allocation, tenant| Notice::AllocationGone { allocation, tenant });
        self.discharge_managed(id);
        let removed = self.allocations.remove(id);
        self.forget_uses(id);
        self.notify_operations(id, &removed.map(|allocation| allocation.waiting_ops).unwrap_or_default());
        true
    }
}

impl Broker {
    /// Ends the charge of managed memory: the client has freed it, or has ended.
    fn discharge_managed(&mut self, id: AllocationId) {
        planted!(self, ManagedChargeKept => return);
        planted!(self, ManagedOrderOfFreed => self.send_order_of_freed(id));
        if let Some(charge) = self.allocations.managed.take(id) {
            self.ledger.discharge(charge);
            self.follow_ups.push(Fact::RoomFreed);
        }
    }
}

/// Whether no session maps a freed allocation or is about to, and the driver is about to return it.
fn awaits_release(allocation: &Allocation) -> bool {
    let settled = allocation.extents_left == allocation.extents_unreturned;
    allocation.state == AllocationState::Freeing && allocation.mapping_count == 0 && !settled
}
