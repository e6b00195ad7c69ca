//! The end of a run: no more faults, and no actor begins anything. Then every call is answered, every process
//! leaves, operators free what was meant to stay, and nothing may be left.

use std::time::Duration;

use broker_core::{OperatorRequest, Target, Time};
use vramd_types::Bytes;

use super::{DRAIN_EVENTS_MAX, World, queue::Action, request::WAIT_MAX};
use crate::failure::Failure;

/// Upper bound of the pin calls that wait without end in one world.
const WAITING_PINS: u64 = 16;

impl World {
    pub(super) fn drain(&mut self) -> Result<(), Failure> {
        self.story.add_line(self.now, || "the faults stop".to_owned());
        self.calm = true;
        self.scenario.faults.stop();
        self.driver.other_programs.fill(Bytes::ZERO);
        self.driver.other_programs_in_host.fill(Bytes::ZERO);
        self.driver.filled.clear();
        self.driver.damaged.clear();
        let stopped: Vec<_> = self.processes.values().map(|process| process.pid).collect();
        for pid in stopped {
            self.resume(pid);
            self.unpin_all(pid);
            self.yield_any(pid);
        }
        self.run_until_quiet()?;
        if self.release_holds()? {
            self.run_until_quiet()?;
        }
        self.oracle.check_all_answered(&self.broker);
        self.oracle.check_pins_answered();
        self.oracle.check_deliveries(&self.broker);
        self.check();
        self.take_failure()?;

        self.story.add_line(self.now, || "the processes leave".to_owned());
        let pids: Vec<_> = self.processes.keys().copied().collect();
        pids.into_iter().for_each(|pid| self.die(pid));
        self.run_until_quiet()?;
        self.oracle.check_after_processes(&self.broker);
        self.check();
        self.take_failure()?;

        self.story.add_line(self.now, || "operators free the rest".to_owned());
        // One after the other: many requests at once may be refused.
        let (rest, _) = self.broker.list_allocations(None, None, usize::MAX);
        for view in rest {
            self.operator_call(None, OperatorRequest::FreeAllocation(Target::Id(view.id)));
            while !self.queue.is_empty() {
                self.step()?;
            }
        }
        self.run_until_quiet()?;
        self.oracle.check_all_answered(&self.broker);
        self.oracle.check_drained(&self.broker);
        self.oracle.compare_all(&self.broker);
        let found = self.broker.check();
        self.check();
        if let Some(first) = found.into_iter().next() {
            self.fail(first.invariant, first.detail);
        }
        self.take_failure()
    }

    /// Lets go of what operators hold, one allocation after the other. Returns whether there was any.
    fn release_holds(&mut self) -> Result<bool, Failure> {
        let (all, _) = self.broker.list_allocations(None, None, usize::MAX);
        let is_held = |target: &Target| {
            self.broker.show(target).is_ok_and(|view| view.parts.iter().any(|part| part.operator_hold))
        };
        let held: Vec<_> = all.into_iter().map(|view| Target::Id(view.id)).filter(is_held).collect();
        let any = !held.is_empty();
        for target in held {
            self.operator_call(None, OperatorRequest::HoldParts { target, parts: Vec::new(), hold: false });
            while !self.queue.is_empty() {
                self.step()?;
            }
        }
        Ok(any)
    }

    /// Runs until nothing is under way, every grace time and two surveys have passed, and no memory is
    /// cached.
    fn run_until_quiet(&mut self) -> Result<(), Failure> {
        let limits = &self.scenario.config.limits;
        let answers = limits.map_answer_timeout + limits.revoke_answer_timeout + limits.unmap_answer_timeout;
        let answers = answers + limits.pin_stall + limits.end_silent_after;
        let grace = answers + limits.survey_interval * 2 + limits.cached_for + WAIT_MAX;
        let mut quiet_since: Option<Time> = None;
        // The core retries a pin that can never be granted again and again, which is an event each time.
        let looks = grace.as_micros() / limits.pin_stall.as_micros().max(1);
        let last = self.events + DRAIN_EVENTS_MAX + u64::try_from(looks).unwrap_or(u64::MAX) * WAITING_PINS;
        while self.events < last {
            let only_timers = self.queue.is_empty() && !self.harvest();
            match quiet_since {
                Some(since) if only_timers && self.now > since.after(grace) => return Ok(()),
                None if only_timers => quiet_since = Some(self.now),
                _ => {}
            }
            if self.queue.is_empty() && self.broker.next_deadline().is_none() {
                self.queue.schedule(self.now.after(Duration::from_millis(1)), 0, Action::OtherPrograms);
            }
            self.step()?;
        }
        self.fail(broker_core::invariants::DRAINS, "it never comes to rest".to_owned());
        self.take_failure()
    }
}
