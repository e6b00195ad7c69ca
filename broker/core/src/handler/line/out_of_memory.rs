//! A device whose driver has no memory although the ledger has room: another program took it.
//!
//! The daemon surveys the device, so that the ledger learns of it. The waiter re-enters the line at its old
//! position, and the scan makes room for it as for any other. `crate::line::Line` says when it is tried again; this
//! file brings it what it learns. `scan/out_of_memory.rs` gives up on waiters that nothing helps.

use vramd_types::{Bytes, DeviceIndex};

use crate::{
    broker::Broker,
    command::Notice,
    error::Refusal,
    event::{PartRef, Tier},
    follow_up::Fact,
    handler::Started,
    ledger::Place,
    line::{BatchRequest, MemoryNews, TRIES_MAX, Waiter, WaitingBatch},
    ops::Requester,
    tenancy::OpId,
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
        self.suspend(Waiter::Batch(op), device, 0, rests);
    }

    /// Puts a part back into the line at the position of its oldest call.
    pub(crate) fn requeue_part(&mut self, part: PartRef, device: DeviceIndex, vain_tries: u32) {
        self.enter_line(part);
        self.suspend(Waiter::Part(part), device, vain_tries, false);
    }

    /// Suspends a waiter that the driver failed. The next survey that begins shows which program has the memory.
    fn suspend(&mut self, waiter: Waiter, device: DeviceIndex, vain_tries: u32, rests: bool) {
        let survey = self.node.surveys.requested(device);
        self.line.suspend(waiter, (device, survey), vain_tries, rests);
    }

    /// The driver has memory of the device back: waiters that it failed may be tried.
    pub(crate) fn note_memory_returned(&mut self, place: Place) {
        if place.tier == Tier::Device && self.line.learn(MemoryNews::Returned(place.device)) {
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
