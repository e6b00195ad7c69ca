//! The slow path of a pin: the daemon is asked, and this thread waits until all parts have arrived.

use std::time::Instant;

use vramd_proto::channel::PARTS_PER_FRAME_MAX;
use vramd_types::Reason;

use crate::{
    error::{Error, Result},
    mapping::{Caller, PinStart, PinTarget, Until},
    session::Session,
};

impl Session {
    /// Pins all of these parts, or none, waiting until the deadline.
    pub(crate) fn pin_waiting(&self, parts: &[PinTarget], deadline: Instant) -> Result<()> {
        self.pin_for(Caller::Program, parts, deadline)
    }

    /// The same for a caller that may pin although the session's memory is away.
    pub(crate) fn pin_for(&self, caller: Caller, parts: &[PinTarget], deadline: Instant) -> Result<()> {
        let _seat = self.take_seat();
        let call = match self.begin_pin(parts, deadline, caller)? {
            PinStart::Pinned => return Ok(()),
            PinStart::Call { call, .. } => call,
        };
        let Err(error) = self.wait(Until::Pinned { call }, deadline) else { return Ok(()) };
        self.cancel_pin(call);
        if self.table().ending().is_some() {
            // No part moves any more: mapped parts can be pinned.
            return self.table().begin_pin(parts, deadline, caller).map(drop);
        }
        Err(error)
    }

    fn begin_pin(&self, parts: &[PinTarget], deadline: Instant, caller: Caller) -> Result<PinStart> {
        // Calls are reported in the order of their numbers.
        let channel = self.link().lock_channel();
        let start = self.table().begin_pin(parts, deadline, caller)?;
        if let PinStart::Call { call, frame } = &start {
            if let Err(error) = channel.send_pin(frame.clone()) {
                drop(channel);
                self.cancel_pin(*call);
                self.link().end();
                return Err(Error::broker_gone(format!("sending a pin call failed: {error}")));
            }
            fault_point!(PinCalled);
        }
        Ok(start)
    }

    fn cancel_pin(&self, call: u64) {
        let channel = self.link().lock_channel();
        let answer = self.table().cancel_pin(call);
        let reported =
            answer.is_ok_and(|answer| self.table().ending().is_some() || channel.report(answer).is_ok());
        if !reported {
            self.link().end();
        }
    }
}

/// Refuses more parts than a frame can name: they could not be requested at once, and so not be pinned together.
#[inline]
pub(super) fn check_count(parts: usize) -> Result<()> {
    if parts <= PARTS_PER_FRAME_MAX { Ok(()) } else { Err(too_many(parts)) }
}

#[cold]
fn too_many(parts: usize) -> Error {
    Error::refused(Reason::BatchTooLarge, &[("items_max", &PARTS_PER_FRAME_MAX), ("items", &parts)])
}
