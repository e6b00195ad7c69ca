//! Batches of allocations that find no room at once. They wait in the line (see `scan/mod.rs` for its scan).
//!
//! A batch without a wait time stays in the line only while the daemon makes room for it. Any other is refused
//! when its time is over.

use std::collections::BTreeSet;

use crate::{
    broker::Broker,
    follow_up::Fact,
    handler::Started,
    line::{LineEntry, Position, Waiter, WaitingBatch},
    shell::Timer,
    tenancy::{OpId, OpKind, TenantId},
};

impl Broker {
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
}
