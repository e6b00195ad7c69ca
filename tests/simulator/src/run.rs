//! One run of one plan.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{coverage::Coverage, failure::Failure, scenario::Plan, story::Story, world::World};

/// The result of a run.
#[derive(Debug)]
pub struct Ran {
    pub events: u64,
    pub acts: Vec<u64>,
    pub coverage: Coverage,
    pub story: Story,
    pub failure: Option<Failure>,
}

/// Runs a plan to its end or to the first failure; a panic of the core is one.
pub fn run(plan: &Plan, story: Story) -> Ran {
    let mut world = World::new(plan.clone(), story);
    let failure = match catch_unwind(AssertUnwindSafe(|| world.run())) {
        Ok(result) => result.err(),
        Err(panic) => {
            let said = panic.downcast_ref::<String>().cloned();
            let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            let detail = said.unwrap_or_else(|| "the panic has no message".to_owned());
            Some(Failure { event: world.events, invariant: "panic".to_owned(), detail })
        }
    };
    Ran { events: world.events, acts: world.acts, coverage: world.coverage, story: world.story, failure }
}
