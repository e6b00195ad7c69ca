//! The line of waiters for room.

mod entries;
mod feasibility;
pub(super) mod waiting;
