//! The line of waiters for room on devices.
//!
//! - `wanted`: parts that clients want on their device
//! - `batch`: batches of allocations that wait
//! - `scan`: the scan along the line
//! - `victims`: choosing what leaves a device
//! - `make_room`: evicting what was chosen, and telling the waiter
//! - `wait_list`: the line as operators see it
//! - `driver_out_of_memory`: waiters for whom the driver had no memory
//! - `feasibility`: requests that can never be met

pub(super) mod batch;
mod driver_out_of_memory;
mod feasibility;
pub(super) mod make_room;
mod scan;
mod victims;
mod wait_list;
mod wanted;
