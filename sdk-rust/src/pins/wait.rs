//! The slow way to a set of pins: the daemon is asked, and this thread waits until all of it is here.

use std::time::Instant;

use vramd_proto::channel::PARTS_PER_FRAME_MAX;
use vramd_types::Reason;

use crate::{
    error::{Error, Result},
    mapping::{Asked, Until, Wanted},
    session::Session,
};

impl Session {
    /// Pins all of these parts, or none.
    pub(crate) fn pin_waiting(&self, parts: &[Wanted], deadline: Instant) -> Result<()> {
        let _seat = self.sit();
        let call = match self.ask(parts, deadline)? {
            Asked::Pinned => return Ok(()),
            Asked::Call { call, .. } => call,
        };
        let Err(error) = self.wait(Until::Pinned { call }, deadline) else { return Ok(()) };
        self.give_up(call);
        if self.table().ending().is_some() {
            // Nothing moves any more: what is mapped can be had.
            return self.table().ask(parts, deadline).map(drop);
        }
        Err(error)
    }

    fn ask(&self, parts: &[Wanted], deadline: Instant) -> Result<Asked> {
        // Calls are told in the order of their numbers.
        let turn = self.link().turn();
        let asked = self.table().ask(parts, deadline)?;
        if let Asked::Call { call, frame } = &asked {
            if let Err(error) = turn.ask(frame.clone()) {
                drop(turn);
                self.give_up(*call);
                self.link().end();
                return Err(Error::BrokerGone { problem: format!("asking for pins: {error}") });
            }
            fault_point!(PinCalled);
        }
        Ok(asked)
    }

    fn give_up(&self, call: u64) {
        let turn = self.link().turn();
        let answer = self.table().give_up(call);
        let told = answer.is_ok_and(|answer| self.table().ending().is_some() || turn.tell(answer).is_ok());
        if !told {
            self.link().end();
        }
    }
}

/// More parts than a frame names can't be asked for at once, and so not be pinned together.
#[inline]
pub(super) fn check_count(parts: usize) -> Result<()> {
    if parts <= PARTS_PER_FRAME_MAX { Ok(()) } else { Err(too_many(parts)) }
}

#[cold]
fn too_many(parts: usize) -> Error {
    Error::refused(Reason::BatchTooLarge, &[("items_max", &PARTS_PER_FRAME_MAX), ("items", &parts)])
}
