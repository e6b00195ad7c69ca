//! Which session maps which part.
//!
//! Only [`step`] changes the state of a mapping. All other files decide when.
//!
//! - `frames`: sending parts, revoking them and taking answers, frame by frame
//! - `step`: one step of one mapping along its table, with all counts
//! - `revocation`: having every session unmap a part, by eviction or by fence
//! - `teardown`: mappings that end with a session, its channel or an allocation

pub(super) mod frames;
mod revocation;
mod step;
mod teardown;
