//! Batches of the line: a batch starts once all of it fits. It is refused when its time is over, when no wait can
//! meet it, or when an operator or its client cancels it.

use vramd_types::{Bytes, SessionId, WaitId};

use crate::{
    broker::Broker,
    command::{Notice, WaitEnd},
    error::Refusal,
    event::Tier,
    follow_up::Fact,
    handler::{Start, Started},
    ledger::Shortage,
    line::{BatchRequest, BatchShortage, Waiter},
    tenancy::{Method, OpId, Outcome, Session},
};

impl Broker {
    /// Starts a batch of the line if it fits. `Err` says where it is short.
    pub(crate) fn try_batch(&mut self, op: OpId) -> Result<(), Shortage> {
        let Some((session, tenant, batch)) = self.waiting_batch_mut(op) else {
            self.leave_line(Waiter::Batch(op), WaitEnd::Left);
            return Ok(());
        };
        let (plans, arrived, until, tries) = (
            std::mem::take(&mut batch.request.plans),
            batch.request.arrived,
            batch.request.until,
            batch.request.tries,
        );
        let connected = self.sessions.get(session).is_some_and(Session::is_connected);
        let checked = match connected {
            true => self.recheck_plans(session, tenant, &plans),
            false => Err(Refusal::SessionLost { session }),
        };
        if let Err(refusal) = checked {
            self.refuse_batch(op, refusal);
            return Ok(());
        }
        if self.line.is_suspended(Waiter::Batch(op)) {
            if let Some((_, _, batch)) = self.waiting_batch_mut(op) {
                batch.request.plans = plans;
            }
            return Err(Shortage::Room { free: Bytes::ZERO });
        }
        if let Err(missing) = self.check_batch_room(tenant, &plans) {
            let why = self.batch_refusal(tenant, &missing);
            if let Some((_, _, batch)) = self.waiting_batch_mut(op) {
                (batch.request.plans, batch.why) = (plans, why);
            }
            return Err(match missing {
                // Below devices nothing makes room.
                BatchShortage::Bytes { place, .. } if place.tier != Tier::Device => {
                    self.refuse_short_batch(op);
                    return Ok(());
                }
                BatchShortage::Bytes { shortage, .. } => shortage,
                BatchShortage::Extents(ages) => {
                    self.release_cached(ages);
                    Shortage::Room { free: Bytes::ZERO }
                }
            });
        }
        self.note_retry(Waiter::Batch(op));
        self.leave_line(Waiter::Batch(op), WaitEnd::Served);
        self.push_notice(Notice::RoomMade { tenant: Some(self.tenants.name(tenant).to_owned()) });
        // Several waiters may have counted on the cached extents.
        self.push_if_waiters(Fact::RoomTaken);
        match self.create_batch(op, session, tenant, BatchRequest { plans, arrived, until, tries }) {
            Ok(kind) => {
                if let Some(op) = self.requests.ops.get_mut(op) {
                    op.kind = kind;
                }
                self.finish_allocation(op);
            }
            Err(refusal) => self.finish(op, Err(refusal)),
        }
        Ok(())
    }

    /// Refuses the batch if its time is over. A batch whose client allowed it to wait is told what it waited for.
    pub(crate) fn expire_batch(&mut self, op: OpId) {
        let now = self.shell.now;
        let until = self.waiting_batch(op).map(|(_, batch)| batch.request.until);
        if let Some(until) = until.filter(|until| *until <= now) {
            let since = self.line.since(Waiter::Batch(op)).unwrap_or(until);
            let waited = now.since(since);
            let what = if until <= since { None } else { self.describe_batch_wait(op) };
            let Some(why) = self.present_shortage(op) else { return };
            self.refuse_batch(
                op,
                match what {
                    Some(what) => Refusal::NoRoom { waited, what, why: Box::new(why) },
                    None => why,
                },
            );
        }
    }

    /// Refuses the batch if no wait can meet it.
    pub(crate) fn refuse_impossible_batch(&mut self, op: OpId) {
        let Some((tenant, batch)) = self.waiting_batch(op) else { return };
        let missing = self.check_batch_room(tenant, &batch.request.plans).err();
        if let Some(missing) = missing.filter(|missing| !self.is_ever_possible(tenant, missing)) {
            let why = self.batch_refusal(tenant, &missing);
            self.refuse_batch(op, why);
        }
    }

    /// Refuses the batch if its parts that begin below devices find no room there: the daemon makes none.
    pub(crate) fn refuse_without_room_below(&mut self, op: OpId) {
        let Some((tenant, batch)) = self.waiting_batch(op) else { return };
        let requested = self.requested_by_place(tenant, &batch.request.plans).into_iter();
        let mut below = requested.filter(|(place, ..)| place.tier != Tier::Device);
        let missing = below.find_map(|(place, requested, _)| {
            let shortage = self.ledger.admit(tenant, place, requested).err()?;
            Some(self.shortage_refusal(tenant, place, shortage, requested))
        });
        if let Some(why) = missing {
            self.refuse_batch(op, why);
        }
    }

    pub(crate) fn refuse_short_batch(&mut self, op: OpId) {
        if let Some(why) = self.present_shortage(op) {
            self.refuse_batch(op, why);
        }
    }

    /// Why the batch does not start now.
    fn present_shortage(&self, op: OpId) -> Option<Refusal> {
        let (tenant, batch) = self.waiting_batch(op)?;
        // After the driver ran out, the memory of the undone batch is not back yet, so its first reason stays.
        let ran_out = self.line.out_of_memory_device(Waiter::Batch(op)).is_some();
        let missing = self.check_batch_room(tenant, &batch.request.plans).err().filter(|_| !ran_out);
        Some(missing.map_or_else(|| batch.why.clone(), |missing| self.batch_refusal(tenant, &missing)))
    }

    pub(crate) fn refuse_batch(&mut self, op: OpId, why: Refusal) {
        self.leave_line(Waiter::Batch(op), WaitEnd::Refused);
        self.finish(op, Err(why));
        self.follow_ups.push(Fact::BatchRefused);
    }

    /// Refuses waiters that changed limits or guarantees have made infeasible.
    pub(crate) fn refuse_infeasible(&mut self) {
        self.refuse_infeasible_pins();
        for op in self.waiting_batches() {
            self.refuse_impossible_batch(op);
        }
    }

    /// Refuses waiting batches that find no room in a tier that shrank.
    pub(crate) fn refuse_batches_without_room_below(&mut self) {
        for op in self.waiting_batches() {
            self.refuse_without_room_below(op);
        }
    }

    pub(crate) fn waiting_batches(&self) -> Vec<OpId> {
        let batches = self.line.iter().filter_map(|(_, entry)| match entry.waiter {
            Waiter::Batch(op) => Some(op),
            Waiter::Part(_) => None,
        });
        batches.collect()
    }

    /// Cancels a batch that waits in the line, for its session.
    pub(crate) fn cancel_batch(&mut self, session: SessionId, request_id: [u8; 16]) -> Start {
        let log = self.sessions.get(session).map(|session| &session.requests);
        let op = log.and_then(|log| log.find_running(Method::AllocateBatch, request_id));
        let position = op.and_then(|op| self.line.position(Waiter::Batch(op)));
        self.cancel_wait(position.ok_or(Refusal::BatchNotWaiting { request_id })?.wait())
    }

    /// Cancels a wait for an operator. Calls that pin the part are refused; sessions that were to be sent it
    /// keep it away.
    pub(crate) fn cancel_wait(&mut self, wait: WaitId) -> Start {
        let waiter = self.line.find(wait).ok_or(Refusal::WaitNotFound { wait })?;
        let why = Refusal::WaitCancelled { wait };
        self.leave_line(waiter, WaitEnd::Cancelled);
        match waiter {
            Waiter::Part(part) => {
                self.moves.attach_waiters.take(part);
                self.refuse_calls_missing(part, &why);
            }
            Waiter::Batch(op) => self.refuse_batch(op, why),
        }
        self.follow_ups.push(Fact::WaitCancelled);
        Ok(Started::Done(Outcome::WaitCancelled))
    }
}
