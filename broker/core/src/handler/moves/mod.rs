//! Parts that move between tiers, and the bytes that they own below their device.
//!
//! - `migrate`: a migration from its start to its copy
//! - `migration_end`: how a migration ends
//! - `write_back`: copying dirty parts to their backing while they stay
//! - `backing`: bytes below the device that a part owns
//! - `advice`: `Advise`: parts that a device accesses in place

mod advice;
mod backing;
mod migrate;
mod migration_end;
mod write_back;
