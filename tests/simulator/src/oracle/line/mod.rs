//! The line of waiters for room.

mod batches;
pub(super) mod entries;
mod feasibility;
pub(super) mod needs;
mod passing;
pub(super) mod room;
mod turns;
pub(super) mod waiting;
