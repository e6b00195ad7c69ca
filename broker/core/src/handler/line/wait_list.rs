//! The line as operators see it: waits in order of arrival, each of which they can cancel
//! (`scan/batches.rs`). Also the moves under way.

use vramd_types::Bytes;

use super::wait_reason::{Blockers, Queues};
use crate::{
    broker::Broker,
    event::{PartRef, Tier},
    line::{Footprint, Position, Waiter},
    moves::Cause,
    ops::{OpKind, Requester},
    tenancy::OpId,
    time::Time,
    view::{MoveView, WaitView, WaiterView},
};

impl Broker {
    /// All waits, in order of arrival.
    pub fn waits(&self) -> Vec<WaitView> {
        let (mut blocked, mut queues) = (Blockers::new(self), Queues::default());
        let line = self.line.iter();
        line.filter_map(|(position, entry)| {
            self.wait_view(position, entry.waiter, entry.since, &mut blocked, &mut queues)
        })
        .collect()
    }

    fn wait_view(
        &self,
        position: Position,
        waiter: Waiter,
        since: Time,
        blockers: &mut Blockers<'_>,
        queues: &mut Queues,
    ) -> Option<WaitView> {
        let needs: Vec<Footprint> = match waiter {
            Waiter::Batch(op) => {
                self.batch_needs(op, position.arrived).into_iter().map(|need| need.footprint).collect()
            }
            Waiter::Part(part) => self.footprint_of(part).into_iter().collect(),
        };
        // A batch shows the first device that it needs.
        let Footprint { tenant, device, .. } = *needs.first()?;
        let on_device = needs.iter().filter(|footprint| footprint.device == device);
        let bytes = on_device.map(|footprint| footprint.size).fold(Bytes::ZERO, Bytes::saturating_add);
        let (what, until) = match waiter {
            Waiter::Part(part) => (
                WaiterView::Part { part, sessions: self.sessions_waiting_for(part) },
                self.wanted_until(part),
            ),
            Waiter::Batch(op) => self.waiting_batch_view(op)?,
        };
        let reason = blockers.reason(waiter, Footprint { tenant, device, size: bytes });
        let ahead = queues.enter(position, (tenant, device), reason.cause);
        let (device, tenant) = (self.uuid(device).to_owned(), self.tenants.name(tenant).to_owned());
        Some(WaitView {
            id: position.wait(),
            device,
            tenant,
            waiter: what,
            bytes,
            since,
            deadline: until,
            request: position.arrived.get(),
            reason,
            ahead,
        })
    }

    /// When the last wait for the part ends by its deadline, if it does.
    fn wanted_until(&self, part: PartRef) -> Option<Time> {
        if self.moves.attach_waiters.contains(part) {
            return None;
        }
        let mut last = None;
        for (_, id) in self.pins.missing(part) {
            last = last.max(Some(self.pins.get(id)?.deadline?));
        }
        last
    }

    fn waiting_batch_view(&self, op: OpId) -> Option<(WaiterView, Option<Time>)> {
        let op = self.requests.ops.get(op)?;
        match (op.requester, &op.kind) {
            (Requester::Session { session, .. }, OpKind::BatchWait(batch)) => Some((
                WaiterView::Batch { session, items: batch.request.plans.len() },
                Some(batch.request.until),
            )),
            _ => None,
        }
    }

    /// Migrations and write-backs that are under way.
    pub fn moves(&self) -> Vec<MoveView> {
        let migrations = self.moves.migrations.iter();
        let moves = migrations
            .map(|(part, it)| (part, (it.from_tier, it.to_tier), it.cause, it.state, it.since, it.to));
        let written_back = self.moves.write_backs.iter().map(|(part, it)| {
            let tiers = (Tier::Device, it.tier);
            (part, tiers, Cause::WriteBack, it.state.as_migration_state(), it.since, it.to)
        });
        let view = |(part, (from, to), cause, state, since, extent): (PartRef, (Tier, Tier), _, _, _, _)| {
            let allocation = self.allocations.get(part.allocation)?;
            let tenant = self.tenants.name(allocation.tenant).to_owned();
            let (device, bytes) = (self.uuid(allocation.device).to_owned(), allocation.size_of(part.part));
            Some(MoveView { part, tenant, device, from, to, bytes, cause, state, since, extent })
        };
        moves.chain(written_back).filter_map(view).collect()
    }
}
