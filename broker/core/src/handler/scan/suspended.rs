//! Waiters for which the driver had no memory: the decision about them, once nothing leaves their device and a
//! survey has reported.

use vramd_types::Bytes;
use vramd_types::DeviceIndex;

use crate::{
    broker::Broker,
    error::Refusal,
    event::{PartRef, Tier},
    follow_up::Fact,
    line::{TRIES_MAX, Waiter},
    tenancy::OpId,
};

impl Broker {
    /// Decides on waiters that the driver failed, once nothing leaves their device and a survey has reported.
    /// If the ledger has no room, such a waiter waits as any other. Else nothing is left that would help it.
    pub(crate) fn judge_suspended_waiters(&mut self) {
        for (waiter, device, survey) in self.line.awaiting_release() {
            if !self.has_surveyed(device, survey) || self.line.room.is_leaving(device) {
                continue;
            }
            match waiter {
                Waiter::Part(part) => self.judge_part(part, device),
                Waiter::Batch(op) => self.judge_batch(op),
            }
        }
    }

    pub(crate) fn judge_part(&mut self, part: PartRef, device: DeviceIndex) {
        if self.check_part_room(part).is_err() || self.line.count_vain_try(part, TRIES_MAX) {
            return self.resume_waiter(Waiter::Part(part));
        }
        let requested = self.footprint_of(part).map_or(Bytes::ZERO, |footprint| footprint.size);
        let (tier, free, device) = (Tier::Device, Bytes::ZERO, self.uuid(device).to_owned());
        self.line.defer(part);
        self.refuse_calls_missing(part, &Refusal::DeviceFull { device, tier, free, requested });
    }

    pub(crate) fn judge_batch(&mut self, op: OpId) {
        let Some((tenant, batch)) = self.waiting_batch(op) else { return };
        let (has_time, why) = (batch.request.until > self.shell.now, batch.why.clone());
        match self.check_batch_room(tenant, &batch.request.plans).is_ok() {
            false => self.resume_waiter(Waiter::Batch(op)),
            true if has_time => self.line.wait_for_survey(Waiter::Batch(op)),
            true => self.refuse_batch(op, why),
        }
    }

    pub(crate) fn resume_waiter(&mut self, waiter: Waiter) {
        self.line.allow_retry(waiter);
        self.follow_ups.push(Fact::RetryAllowed);
    }
}
