//! Where parts lie, how they move, and what they have below their devices.

pub(super) mod advised;
mod backings;
mod classes;
mod content;
mod copies;
mod dropped;
pub(super) mod effort;
mod evictions;
pub(super) mod files;
mod first_content;
pub(super) mod operator_holds;
mod positions;
mod write_backs;
