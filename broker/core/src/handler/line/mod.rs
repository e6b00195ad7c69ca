//! The line of waiters for room on devices.
//!
//! The line itself is a table of the core (`crate::line`). This folder is the way into it and out of it; `scan/` walks along it.
//!
//! - `enter_leave`: parts and batches enter the line, and leave it
//! - `wanted`: parts that clients want on their device
//! - `advised_order`: the order in which parts leave, with what owners say about it
//! - `victims`: the choice of what leaves a device
//! - `make_room`: executing that choice
//! - `out_of_memory`: waiters whose memory the driver could not create
//! - `wait_list`: the line and the moves as operators see them
//! - `wait_reason`: why a waiter has not started
//! - `wait_text`: the same as a clause, for the client that waits

mod advised_order;
mod enter_leave;
pub(super) mod make_room;
mod out_of_memory;
mod victims;
mod wait_list;
mod wait_reason;
mod wait_text;
mod wanted;
