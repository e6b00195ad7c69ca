//! Invariants: statements that hold after every event, by name. Tests, the running daemon and the docs share
//! one registry.
//!
//! Each invariant has its own file. [`Broker::check`] recomputes all of them from the tables; with the
//! feature `observed`, `check_changed` does so for the rows that the last event changed. In production, a
//! violation that a handler detects is counted, logged and survived.

mod backings;
mod cached;
mod descriptors;
mod eviction_order;
mod extent_backing;
mod extent_released;
mod files;
mod ledger_balances;
mod ledger_sums;
mod line;
mod mapper_sets;
mod migrations;
mod names;
mod pins;
mod registry;
mod running_sums;
mod scope;
mod slots;
mod timers;
mod turns;
mod unsealed;
mod waits;
mod write_backs;

pub use registry::*;

use scope::Scope;

use crate::broker::Broker;

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub invariant: &'static str,
    pub detail: String,
}

/// One file's check.
type Check = fn(&Broker, &Scope, &mut Vec<Violation>);

const CHECKS: [Check; 21] = [
    ledger_balances::check,
    ledger_sums::check,
    extent_backing::check,
    extent_released::check,
    backings::check,
    files::check,
    cached::check,
    mapper_sets::check,
    migrations::check,
    write_backs::check,
    line::check,
    eviction_order::check,
    running_sums::check,
    slots::check,
    pins::check,
    unsealed::check,
    descriptors::check,
    names::check,
    waits::check,
    timers::check,
    turns::check,
];

impl Broker {
    /// Recomputes everything, and returns the violations.
    pub fn check(&self) -> Vec<Violation> {
        self.check_in(&Scope::All)
    }

    /// Recomputes the rows that the last event changed.
    #[cfg(feature = "observed")]
    pub fn check_changed(&self) -> Vec<Violation> {
        self.check_in(&Scope::changed_in(self))
    }

    fn check_in(&self, scope: &Scope) -> Vec<Violation> {
        let mut found = Vec::new();
        for check in CHECKS {
            check(self, scope, &mut found);
        }
        found
    }
}

/// Records a violation unless the two are equal.
fn expect_equal<T: PartialEq + std::fmt::Debug>(
    found: &mut Vec<Violation>,
    invariant: &'static str,
    what: impl FnOnce() -> String,
    is: &T,
    should: &T,
) {
    if is != should {
        found.push(Violation { invariant, detail: format!("{}: {is:?}, should be {should:?}", what()) });
    }
}

fn expect(
    found: &mut Vec<Violation>,
    invariant: &'static str,
    mappings: bool,
    what: impl FnOnce() -> String,
) {
    if !mappings {
        found.push(Violation { invariant, detail: what() });
    }
}
