//! Deadlines that have come, each handed to its subject. A timer that an answer has overtaken finds nothing to do.

use crate::{broker::Broker, follow_up::Fact, shell::Timer};

impl Broker {
    /// Runs every timer that is due.
    pub(crate) fn run_timers(&mut self) {
        while let Some((deadline, timer)) = self.shell.timers.first().copied() {
            if deadline > self.shell.now {
                return;
            }
            self.shell.timers.pop_first();
            match timer {
                Timer::Session(id) => self.check_deadlines(id),
                Timer::Pressure => self.sample_pressure(),
                Timer::Cached => self.expire_cached(),
                Timer::Fence(part) => {
                    self.expire_fence(part);
                    self.after_revocations();
                }
                Timer::Wait(op) => self.expire_batch(op),
                Timer::Pin(id, call) => self.expire_pin((id, call)),
                Timer::Parts(op) => self.begin_parts(op),
                Timer::Backing(device) => self.reserve_late_backings(device),
                // The follow-ups of this event do it.
                Timer::InPlaceUnmaps => {}
                Timer::Stall(id, call) => self.follow_ups.push(Fact::StallCheckDue((id, call))),
                Timer::Prefetch => self.retry_prefetches(),
                Timer::Turns => self.follow_ups.push(Fact::TurnsDue),
                Timer::Pass => self.push_if_waiters(Fact::WaiterLetsPass),
                Timer::Survey => self.begin_surveys(),
            }
        }
    }
}
