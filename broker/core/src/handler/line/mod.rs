//! The line of waiters for room on devices.
//!
//! The line itself is a table of the core (`moves/`). Here is what the daemon does with it.
//!
//! - `wanted`: parts that clients want on their device: they enter the line
//! - `batch`: batches of allocations that wait in the line
//! - `scan`: the scan, which starts waiters that find room and plans evictions for the next
//! - `victims`: the choice of what leaves a device
//! - `make_room`: executing that choice, and telling the waiter when the memory is returned
//! - `driver_out_of_memory`: waiters whose memory the driver could not create
//! - `feasibility`: refusing requests that no wait can meet
//! - `wait_list`: the line as operators see it, and cancelling a wait

pub(super) mod batch;
mod driver_out_of_memory;
mod feasibility;
pub(super) mod make_room;
mod scan;
mod victims;
mod wait_list;
mod wanted;
