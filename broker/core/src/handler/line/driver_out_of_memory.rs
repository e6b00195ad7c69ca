//! A device whose driver has no memory though by the books there is room: something outside took it, and the books learn of it.
//!
//! Who asked stands in the line again, room is made for it as for any other, and it is tried again: but only after something has
//! left the device, or the books are short themselves. So nobody tries as fast as the driver can fail. Where nothing is left that
//! could leave, and the books say that there is room, a part is tried some times more, each after a look.

use vramd_types::{Bytes, DeviceIndex};

use crate::{
    broker::Broker,
    command::Notice,
    error::Refusal,
    event::{PartRef, Tier},
    handler::{
        Started,
        line::batch::{BatchRequest, WaitingBatch},
    },
    ledger::Place,
    migration::Waiter,
    tenancy::{OpId, Requester},
};

/// So often a batch is tried until it is time to look at all devices again: what is undone of it leaves the device too, so that could
/// go on as fast as the driver can fail. And so often a part is for which nothing leaves.
const TRIES_MAX: u32 = 4;

impl Broker {
    /// The driver had not so much more. It is looked who holds it; until that is known as much is missing.
    pub(crate) fn on_device_ran_out(&mut self, device: DeviceIndex, asked: Bytes) {
        // What is cached goes, so that the next try finds room.
        self.release_all_cached(Some(device));
        self.withhold(Place::device(device), |ledger| ledger.cap_capacity(Place::device(device), asked));
        self.survey(device);
        self.surveys.await_next(device);
        // Once it is known what is undone for that.
        self.follow_ups.short_devices.insert(device);
        self.follow_ups.full_scan = true;
    }

    /// A batch for which there was no memory stands in the line again, where it would have stood.
    pub(crate) fn requeue_batch(&mut self, op: OpId, mut asked: BatchRequest, why: Refusal) {
        let Some(Requester::Session { tenant, .. }) = self.ops.get(op).map(|op| op.requester) else { return };
        let Refusal::DeviceFull { device, .. } = &why else { return };
        let device = self.find_device(device);
        // What begins below where a device is full waits for none.
        let asks = |(place, ..): &(Place, _, _)| place.tier == Tier::Device;
        if !self.requested_by_place(tenant, &asked.plans).iter().any(asks) {
            return self.finish(op, Err(why));
        }
        asked.tries = asked.tries.saturating_add(1);
        let rests = asked.tries >= TRIES_MAX;
        if rests && asked.until <= self.now {
            return self.finish(op, Err(why));
        }
        if rests {
            asked.tries = 0;
        }
        let Started::Waiting(kind) = self.enqueue_batch(op, tenant, WaitingBatch::new(asked, why)) else {
            return;
        };
        if let Some(op) = self.ops.get_mut(op) {
            op.kind = kind;
        }
        if let Some(device) = device {
            self.bar_waiter(Waiter::Batch(op), device, 0);
        }
        if rests {
            self.line.rest(Waiter::Batch(op));
        }
    }

    /// Something has left a device, and the driver has its memory back.
    pub(crate) fn note_memory_returned(&mut self, place: Place) {
        if place.tier == Tier::Device && self.line.retry_after_release(place.device) {
            self.follow_ups.full_scan = true;
        }
    }

    /// It is begun with once more, for which there was no memory before.
    pub(crate) fn note_retry(&mut self, waiter: Waiter) {
        if let Some(device) = self.line.out_of_memory_device(waiter) {
            self.push_notice(Notice::CreateRetried { device });
        }
    }

    /// Nothing leaves a device any more on which there was no memory for somebody, and what others hold is known. It waits as any
    /// other where the books say that there is no room; else nothing is left that would help it.
    pub(crate) fn judge_barred_waiters(&mut self) {
        for (waiter, device, survey) in self.line.awaiting_release() {
            if !self.has_surveyed(device, survey) || self.awaited_room.is_leaving(device) {
                continue;
            }
            match waiter {
                Waiter::Part(part) => self.judge_part(part, device),
                Waiter::Batch(op) => self.judge_batch(op),
            }
        }
    }

    fn judge_part(&mut self, part: PartRef, device: DeviceIndex) {
        if self.check_part_room(part).is_err() || self.line.count_vain_try(part, TRIES_MAX) {
            return self.allow_retry(Waiter::Part(part));
        }
        let asked = self.footprint_of(part).map_or(Bytes::ZERO, |footprint| footprint.size);
        let (tier, free, device) = (Tier::Device, Bytes::ZERO, self.uuid(device).to_owned());
        self.line.defer(part);
        self.refuse_calls_missing(part, &Refusal::DeviceFull { device, tier, free, requested: asked });
    }

    fn judge_batch(&mut self, op: OpId) {
        let Some((tenant, batch)) = self.waiting_batch(op) else { return };
        let (has_time, why) = (batch.request.until > self.now, batch.why.clone());
        match self.check_batch_room(tenant, &batch.request.plans).is_ok() {
            false => self.allow_retry(Waiter::Batch(op)),
            true if has_time => self.line.wait_for_survey(Waiter::Batch(op)),
            true => self.refuse_batch(op, why),
        }
    }

    fn allow_retry(&mut self, waiter: Waiter) {
        self.line.allow_retry(waiter);
        self.follow_ups.full_scan = true;
    }
}
