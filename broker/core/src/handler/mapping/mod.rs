//! Which session maps which part.
//!
//! Only [`step`] changes the state of a mapping. All other files decide when.
//!
//! - `frames`: sending parts and telling sessions to unmap them, frame by frame
//! - `step`: one step of one mapping along its table, with all counts
//! - `revocation`: having every session unmap a part, by eviction or by fence

pub(super) mod frames;
mod in_place;
pub(super) mod revocation;
mod step;
