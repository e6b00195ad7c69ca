//! The line as operators see it: waits in order of arrival, each of which they can cancel.

use vramd_types::Bytes;

use crate::{
    broker::Broker,
    command::{Notice, WaitEnd, WaiterKind},
    error::Refusal,
    event::PartRef,
    follow_up::Fact,
    handler::{Start, Started},
    line::{Footprint, Position, Waiter},
    moves::Cause,
    tenancy::{Arrival, OpId, OpKind, Outcome, Requester},
    time::Time,
    view::{MoveView, WaitView, WaiterView},
};

impl Broker {
    /// All waits, in order of arrival.
    pub fn waits(&self) -> Vec<WaitView> {
        let line = self.line.iter();
        line.filter_map(|(position, entry)| self.wait_view(position, entry.waiter, entry.since)).collect()
    }

    fn wait_view(&self, position: Position, waiter: Waiter, since: Time) -> Option<WaitView> {
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
        let (device, tenant) = (self.uuid(device).to_owned(), self.tenants.name(tenant).to_owned());
        Some(WaitView {
            id: position.entered.get(),
            device,
            tenant,
            waiter: what,
            bytes,
            since,
            deadline: until,
        })
    }

    /// When the last wait for the part ends by its deadline, if it does.
    fn wanted_until(&self, part: PartRef) -> Option<Time> {
        if self.moves.attach_waiters.contains_key(&part) {
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
        let moves = migrations.map(|(part, it)| (*part, it.to_tier, it.cause, it.state, it.since, it.to));
        let written_back = self.moves.write_backs.iter().map(|(part, it)| {
            (*part, it.tier, Cause::WriteBack, it.state.as_migration_state(), it.since, it.to)
        });
        let view = |(part, to, cause, state, since, extent): (PartRef, _, _, _, _, _)| {
            let allocation = self.allocations.get(part.allocation)?;
            let tenant = self.tenants.name(allocation.tenant).to_owned();
            let (device, bytes) = (self.uuid(allocation.device).to_owned(), allocation.size_of(part.part));
            Some(MoveView { part, tenant, device, to, bytes, cause, state, since, extent })
        };
        moves.chain(written_back).filter_map(view).collect()
    }

    /// Reports a fact that matters only to waiters.
    pub(crate) fn push_if_waiters(&mut self, fact: Fact) {
        if !self.line.is_empty() {
            self.follow_ups.push(fact);
        }
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
        if let Some(entry) = self.line.remove(waiter) {
            let what = match waiter {
                Waiter::Part(_) => WaiterKind::Part,
                Waiter::Batch(_) => WaiterKind::Batch,
            };
            self.push_notice(Notice::WaitEnded { waiter: what, since: entry.since, end });
        }
    }

    /// Cancels a wait for an operator. Calls that pin the part are refused; sessions that were to be sent it
    /// keep it away.
    pub(crate) fn cancel_wait(&mut self, wait: u64) -> Start {
        let waiter = self.line.find(Arrival::from_raw(wait)).ok_or(Refusal::WaitNotFound { wait })?;
        let why = Refusal::WaitCancelled { wait };
        self.leave_line(waiter, WaitEnd::Cancelled);
        match waiter {
            Waiter::Part(part) => {
                self.moves.attach_waiters.remove(&part);
                self.refuse_calls_missing(part, &why);
            }
            Waiter::Batch(op) => self.refuse_batch(op, why),
        }
        self.follow_ups.push(Fact::WaitCancelled);
        Ok(Started::Done(Outcome::WaitCancelled))
    }
}
