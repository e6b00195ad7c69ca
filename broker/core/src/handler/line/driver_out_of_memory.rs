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
        line::batch::{Asked, Batch},
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
    pub(crate) fn device_ran_out(&mut self, device: DeviceIndex, asked: Bytes) {
        // What is cached goes, so that the next try finds room.
        self.give_up_cached(Some(device));
        self.withhold(Place::device(device), |ledger| ledger.cap_capacity(Place::device(device), asked));
        self.survey(device);
        self.surveys.is_lacking(device);
        // Once it is known what is undone for that.
        self.follow_ups.short.insert(device);
        self.follow_ups.demands = true;
    }

    /// A batch for which there was no memory stands in the line again, where it would have stood.
    pub(crate) fn line_up_again(&mut self, op: OpId, mut asked: Asked, why: Refusal) {
        let Some(Requester::Session { tenant, .. }) = self.ops.get(op).map(|op| op.requester) else { return };
        let Refusal::DeviceFull { device, .. } = &why else { return };
        let device = self.find_device(device);
        // What begins below where a device is full waits for none.
        let asks = |(place, ..): &(Place, _, _)| place.tier == Tier::Device;
        if !self.asked_by_place(tenant, &asked.plans).iter().any(asks) {
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
        let Started::Waiting(kind) = self.line_up(op, tenant, Batch::new(asked, why)) else { return };
        if let Some(op) = self.ops.get_mut(op) {
            op.kind = kind;
        }
        if let Some(device) = device {
            self.bar(Waiter::Batch(op), device, 0);
        }
        if rests {
            self.line.rest(Waiter::Batch(op));
        }
    }

    /// Something has left a device, and the driver has its memory back.
    pub(crate) fn has_left(&mut self, place: Place) {
        if place.tier == Tier::Device && self.line.retry_after_release(place.device) {
            self.follow_ups.demands = true;
        }
    }

    /// It is begun with once more, for which there was no memory before.
    pub(crate) fn tried_again(&mut self, waiter: Waiter) {
        if let Some(device) = self.line.out_of_memory_device(waiter) {
            self.push_notice(Notice::CreateRetried { device });
        }
    }

    /// Nothing leaves a device any more on which there was no memory for somebody, and what others hold is known. It waits as any
    /// other where the books say that there is no room; else nothing is left that would help it.
    pub(crate) fn judge_barred(&mut self) {
        for (waiter, device, survey) in self.line.awaiting_release() {
            if !self.is_looked_at(device, survey) || self.awaited_room.is_made_on(device) {
                continue;
            }
            match waiter {
                Waiter::Part(part) => self.judge_part(part, device),
                Waiter::Batch(op) => self.judge_batch(op),
            }
        }
    }

    fn judge_part(&mut self, part: PartRef, device: DeviceIndex) {
        if self.has_room_for(part).is_err() || self.line.count_vain_try(part, TRIES_MAX) {
            return self.may_be_tried(Waiter::Part(part));
        }
        let asked = self.piece_of(part).map_or(Bytes::ZERO, |piece| piece.size);
        let (tier, free, device) = (Tier::Device, Bytes::ZERO, self.uuid(device).to_owned());
        self.line.defer(part);
        self.refuse_lacking(part, &Refusal::DeviceFull { device, tier, free, requested: asked });
    }

    fn judge_batch(&mut self, op: OpId) {
        let Some((tenant, batch)) = self.waiting(op) else { return };
        let (has_time, why) = (batch.asked.until > self.now, batch.why.clone());
        match self.check_room(tenant, &batch.asked.plans).is_ok() {
            false => self.may_be_tried(Waiter::Batch(op)),
            true if has_time => self.line.wait_for_survey(Waiter::Batch(op)),
            true => self.refuse_batch(op, why),
        }
    }

    fn may_be_tried(&mut self, waiter: Waiter) {
        self.line.allow_retry(waiter);
        self.follow_ups.demands = true;
    }
}
