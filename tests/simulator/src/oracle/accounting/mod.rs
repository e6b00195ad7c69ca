//! What tenants are charged, what is admitted, and the extents that stand for it.

mod admission;
mod cached;
pub(super) mod extents;
pub(super) mod ledger;
pub(super) mod places;
