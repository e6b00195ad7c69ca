//! Waiters for which the driver had no memory: the decision about them, once nothing leaves their device and a
//! survey has reported.

use vramd_types::{Bytes, DeviceIndex};

use crate::{
    broker::Broker,
    event::PartRef,
    follow_up::Fact,
    ledger::Place,
    line::{Verdict, Waiter},
    pool::ExtentError,
    tenancy::OpId,
};

impl Broker {
    /// Decides on waiters that the driver failed, once nothing leaves their device and a survey has reported.
    /// [`crate::line::Line::judge`] has the rule.
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

    fn judge_part(&mut self, part: PartRef, device: DeviceIndex) {
        let has_room = self.check_part_room(part).is_ok();
        match self.line.judge(Waiter::Part(part), has_room, true) {
            Verdict::Retry => self.follow_ups.push(Fact::RetryAllowed),
            Verdict::Wait => {}
            Verdict::GiveUp => {
                let requested = self.footprint_of(part).map_or(Bytes::ZERO, |footprint| footprint.size);
                let error = ExtentError::OutOfMemory { place: Place::device(device), requested };
                let why = self.move_refusal(part, &error.into());
                self.line.defer(part);
                self.refuse_calls_missing(part, &why);
            }
        }
    }

    fn judge_batch(&mut self, op: OpId) {
        let Some((tenant, batch)) = self.waiting_batch(op) else { return };
        let (has_time, why) = (batch.request.until > self.shell.now, batch.why.clone());
        let has_room = self.check_batch_room(tenant, &batch.request.plans).is_ok();
        match self.line.judge(Waiter::Batch(op), has_room, has_time) {
            Verdict::Retry => self.follow_ups.push(Fact::RetryAllowed),
            Verdict::Wait => {}
            Verdict::GiveUp => self.refuse_batch(op, why),
        }
    }
}
