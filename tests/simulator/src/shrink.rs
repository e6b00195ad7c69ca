//! Shortens a failing run, by events, faults, processes and acts, while it keeps failing in the same way.

use crate::{
    run::run,
    scenario::{Fault, OPERATORS, Plan, Scenario},
    story::Story,
};

/// The most runs that shrinking may take.
const TRIES_MAX: usize = 600;

/// A shrunk run: nothing more can be left out, or the tries are used up.
#[derive(Debug)]
pub struct Shrunk {
    pub plan: Plan,
    pub tries: usize,
    /// Number of acts at first and now.
    pub acts: (usize, usize),
}

struct Shrinker {
    plan: Plan,
    invariant: String,
    acts: Vec<u64>,
    tries: usize,
}

/// Shrinks a plan. `None` if it does not fail.
pub fn shrink(plan: &Plan) -> Option<Shrunk> {
    let ran = run(plan, Story::Silent);
    let failure = ran.failure?;
    let first = ran.acts.len();
    let mut shrinker =
        Shrinker { plan: plan.clone(), invariant: failure.invariant, acts: ran.acts, tries: 0 };
    shrinker.cut_to(failure.event);
    shrinker.leave_out_faults();
    shrinker.leave_out_seats();
    shrinker.leave_out_acts();
    let acts = (first, shrinker.acts.len());
    Some(Shrunk { plan: shrinker.plan, tries: shrinker.tries, acts })
}

impl Shrinker {
    /// Runs a plan, and keeps it if it fails as before. Returns whether it does.
    fn try_plan(&mut self, plan: Plan) -> bool {
        if self.tries >= TRIES_MAX {
            return false;
        }
        self.tries += 1;
        let ran = run(&plan, Story::Silent);
        let Some(failure) = ran.failure.filter(|failure| failure.invariant == self.invariant) else {
            return false;
        };
        self.plan = Plan { events: plan.events.min(failure.event), ..plan };
        self.acts = ran.acts;
        true
    }

    fn cut_to(&mut self, event: u64) {
        let events = event.min(self.plan.events);
        self.try_plan(Plan { events, ..self.plan.clone() });
        // A run that fails only at its end may also fail after fewer events.
        let mut events = self.plan.events / 2;
        while events > 0 && self.try_plan(Plan { events, ..self.plan.clone() }) {
            events = self.plan.events / 2;
        }
    }

    fn leave_out_faults(&mut self) {
        for fault in Fault::ALL {
            let mut plan = self.plan.clone();
            plan.without.insert(*fault);
            self.try_plan(plan);
        }
    }

    fn leave_out_seats(&mut self) {
        let seats = Scenario::of(&self.plan).seats.len();
        for seat in (0..seats).chain([OPERATORS]) {
            let mut plan = self.plan.clone();
            plan.idle.insert(seat);
            self.try_plan(plan);
        }
    }

    /// Leaves out halves, quarters, … of the acts, as long as that helps.
    fn leave_out_acts(&mut self) {
        let mut size = self.acts.len().div_ceil(2);
        while size > 0 && self.tries < TRIES_MAX {
            let mut at = 0;
            while at < self.acts.len() && self.tries < TRIES_MAX {
                let end = (at + size).min(self.acts.len());
                let mut plan = self.plan.clone();
                plan.skip.extend(&self.acts[at..end]);
                if !self.try_plan(plan) {
                    at = end;
                }
            }
            size /= 2;
        }
    }
}
