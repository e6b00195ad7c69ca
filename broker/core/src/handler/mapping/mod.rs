//! Which session maps which part: sending parts, revoking them, taking answers.
//!
//! - `frames`: parts sent, revoked and answered, frame by frame
//! - `step`: one step of one mapping along its table
//! - `revocation`: revoking parts from every session
//! - `teardown`: mappings that end with a session or an allocation
//! - `fd_budget`: descriptors in flight, by tenant and in all

pub(super) mod fd_budget;
pub(super) mod frames;
mod revocation;
mod step;
mod teardown;
