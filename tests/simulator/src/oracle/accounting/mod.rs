//! Charges of tenants, admission, and the extents behind the charges.

mod admission;
mod cached;
pub(super) mod extents;
pub(super) mod ledger;
pub(super) mod managed;
pub(super) mod managed_orders;
pub(super) mod places;
pub(super) mod stored;
