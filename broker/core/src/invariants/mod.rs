//! What must always be so, by name. One registry for tests, the running daemon and the docs.
//!
//! [`Broker::check`] recomputes everything from the tables; tests call it after every event. In production each
//! violation that a handler meets is counted, logged and survived.

mod books;
mod extents;
mod mappings;
mod sums;

use crate::broker::Broker;

pub const LEDGER_BOOKS: &str = "INV-LEDGER-1";
pub const LEDGER_SUMS: &str = "INV-LEDGER-2";
pub const EXTENTS: &str = "INV-EXTENT-1";
pub const EXTENT_RELEASED: &str = "INV-EXTENT-2";
pub const MAPPERS: &str = "INV-MAP-1";
pub const UNSEALED: &str = "INV-MAP-2";
pub const FDS: &str = "INV-FDS-1";
pub const NAMES: &str = "INV-NAME-1";
pub const OPS: &str = "INV-OP-1";
pub const TRANSITIONS: &str = "INV-STATE-1";
pub const IDS: &str = "INV-ID-1";

/// Every invariant with what it says.
pub const REGISTRY: &[(&str, &str)] = &[
    (
        LEDGER_BOOKS,
        "accounts equal the extents and reservations that are charged to them, per tenant, device and tier",
    ),
    (LEDGER_SUMS, "held and committed sums of a device equal the sums over its accounts"),
    (
        EXTENTS,
        "every extent backs exactly one part of an allocation that is not gone, and every such part has one",
    ),
    (EXTENT_RELEASED, "an extent that is released is mapped by nobody and read by nobody"),
    (MAPPERS, "mapper sets and what sessions map agree, and name only sessions that exist"),
    (UNSEALED, "until it is sealed a movable allocation is mapped by its owner's session only"),
    (FDS, "no descriptor is in flight but to a session that exists, and the budgets add up"),
    (NAMES, "a name belongs to one allocation, which bears it and is not freed"),
    (OPS, "everything that waits is waited for by something that will happen"),
    (TRANSITIONS, "allocations, sessions and mappings move only along their tables"),
    (IDS, "ids are never reused, over restarts too"),
];

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub invariant: &'static str,
    pub detail: String,
}

impl Broker {
    /// Recomputes everything, and says what does not hold.
    pub fn check(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        books::check(self, &mut found);
        extents::check(self, &mut found);
        mappings::check(self, &mut found);
        sums::check(self, &mut found);
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

fn expect(found: &mut Vec<Violation>, invariant: &'static str, holds: bool, what: impl FnOnce() -> String) {
    if !holds {
        found.push(Violation { invariant, detail: what() });
    }
}
