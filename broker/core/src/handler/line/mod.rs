//! The line of waiters for room on devices.
//!
//! The line itself is a table of the core (`crate::line`). This folder is the way into it and out of it; `scan/` walks along it.
//!
//! - `wanted`: parts that clients want on their device: they enter the line
//! - `batch`: batches of allocations that wait in the line
//! - `victims`: the choice of what leaves a device
//! - `make_room`: executing that choice
//! - `out_of_memory`: waiters whose memory the driver could not create
//! - `wait_list`: the line and the moves as operators see them

mod batch;
pub(super) mod make_room;
mod out_of_memory;
mod victims;
mod wait_list;
mod wanted;
