//! Waiters enter the line, and leave it.
//!
//! A waiter stands where its request arrived. A batch without a wait time stays only while the daemon makes room for
//! it; any other is refused when its time is over. `scan/mod.rs` has the scan of the line.

use std::collections::BTreeSet;

use crate::{
    broker::Broker,
    command::{Notice, WaitEnd, WaiterKind},
    event::PartRef,
    follow_up::Fact,
    handler::Started,
    line::{Footprint, LineEntry, Position, Waiter, WaitingBatch},
    ops::OpKind,
    shell::Timer,
    tenancy::{OpId, TenantId},
};

impl Broker {
    /// Adds the part to the line, unless it is there. Returns whether it was added.
    pub(crate) fn enter_line(&mut self, part: PartRef) -> bool {
        let waiter = Waiter::Part(part);
        if self.line.contains(waiter) {
            return false;
        }
        let Some(Footprint { tenant, device, .. }) = self.footprint_of(part) else { return false };
        let entered = self.pins.next_arrival();
        let arrived = self.pins.first_missing(part).map_or(entered, |arrived| arrived.min(entered));
        let devices = std::iter::once(device).collect();
        self.line.enter(
            Position { arrived, entered },
            LineEntry { waiter, since: self.shell.now, tenant, devices },
        );
        true
    }

    /// Adds the batch to the line, behind all that arrived before.
    pub(crate) fn enqueue_batch(&mut self, op: OpId, tenant: TenantId, batch: WaitingBatch) -> Started {
        let position = Position { arrived: batch.request.arrived, entered: self.pins.next_arrival() };
        // This includes devices below which it may begin; each scan decides that anew.
        let devices: BTreeSet<_> = batch.request.plans.iter().map(|plan| plan.device).collect();
        let devices = devices.into_iter().collect();
        self.line
            .enter(position, LineEntry { waiter: Waiter::Batch(op), since: self.shell.now, tenant, devices });
        if batch.request.until > self.shell.now {
            self.arm(batch.request.until, Timer::Wait(op));
        }
        self.follow_ups.push(Fact::BatchEntered);
        Started::Waiting(OpKind::BatchWait(Box::new(batch)))
    }

    /// Reports a waiter that enters or is about to leave the line. Within the last scan it changes what room is
    /// made for.
    pub(crate) fn note_line_changed(&mut self, waiter: Waiter) {
        if self.line.was_scanned(waiter) {
            self.follow_ups.push(Fact::ScannedWaiterChanged);
        } else if self.line.contains(waiter) {
            self.follow_ups.push(Fact::WaiterEntered);
        }
    }

    /// Removes a waiter from the line, if it is there, and notes how its wait ended.
    pub(crate) fn leave_line(&mut self, waiter: Waiter, end: WaitEnd) {
        if let (Waiter::Part(part), true) = (waiter, end != WaitEnd::Served) {
            self.usage.placements.forget_decided(part);
        }
        if let Some(entry) = self.line.remove(waiter) {
            let what = match waiter {
                Waiter::Part(_) => WaiterKind::Part,
                Waiter::Batch(_) => WaiterKind::Batch,
            };
            self.push_notice(Notice::WaitEnded { waiter: what, since: entry.since, end });
        }
    }
}
