//! A device whose driver has no memory although the ledger has room: another program took it.
//!
//! The daemon surveys the device, so that the ledger learns of it. The waiter re-enters the line at its old
//! position, and the scan makes room for it as for any other. It is tried again only after something has left
//! the device, or the ledger is short itself: nothing retries as fast as the driver can fail. If nothing is
//! left that could leave and the ledger still has room, a part is tried a few times more, each time after a
//! survey.

use vramd_types::{Bytes, DeviceIndex};

use crate::{
    broker::Broker,
    command::Notice,
    error::Refusal,
    event::Tier,
    follow_up::Fact,
    handler::Started,
    ledger::Place,
    line::{BatchRequest, TRIES_MAX, Waiter, WaitingBatch},
    tenancy::{OpId, Requester},
};

impl Broker {
    /// The driver ran out of memory. Surveys the device; until the survey reports, the ledger treats the bytes
    /// as missing.
    pub(crate) fn on_out_of_memory(&mut self, device: DeviceIndex, requested: Bytes) {
        // Releasing cached extents lets the next try find room.
        self.release_all_cached(Some(device));
        self.withhold(Place::device(device), |ledger| ledger.cap_capacity(Place::device(device), requested));
        self.survey(device);
        self.node.surveys.await_next(device);
        // The shortfall is covered at the end of the event, when the undone extents are known.
        self.follow_ups.push(Fact::DriverRanOut(device));
    }

    /// Puts a batch back into the line at its old position.
    pub(crate) fn requeue_batch(
        &mut self,
        op: OpId,
        mut request: BatchRequest,
        device: DeviceIndex,
        why: Refusal,
    ) {
        let Some(Requester::Session { tenant, .. }) = self.requests.ops.get(op).map(|op| op.requester) else {
            return;
        };
        // A batch that begins below a full device waits for none.
        let asks = |(place, ..): &(Place, _, _)| place.tier == Tier::Device;
        if !self.requested_by_place(tenant, &request.plans).iter().any(asks) {
            return self.finish(op, Err(why));
        }
        request.tries = request.tries.saturating_add(1);
        let rests = request.tries >= TRIES_MAX;
        if rests && request.until <= self.shell.now {
            return self.finish(op, Err(why));
        }
        if rests {
            request.tries = 0;
        }
        let Started::Waiting(kind) = self.enqueue_batch(op, tenant, WaitingBatch::new(request, why)) else {
            return;
        };
        if let Some(op) = self.requests.ops.get_mut(op) {
            op.kind = kind;
        }
        self.suspend_waiter(Waiter::Batch(op), device, 0);
        if rests {
            self.line.rest(Waiter::Batch(op));
        }
    }

    /// The driver has memory of the device back: waiters that it failed may be tried.
    pub(crate) fn note_memory_returned(&mut self, place: Place) {
        if place.tier == Tier::Device && self.line.retry_after_release(place.device) {
            self.follow_ups.push(Fact::RetryAllowed);
        }
    }

    /// Notes that a waiter is tried again after the driver had no memory for it.
    pub(crate) fn note_retry(&mut self, waiter: Waiter) {
        if let Some(device) = self.line.out_of_memory_device(waiter) {
            self.push_notice(Notice::CreateRetried { device });
        }
    }
}
