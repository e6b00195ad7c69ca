//! Parts that move between tiers, and their bytes below the device.
//!
//! - `migrate`: migrations, from their start to their copy
//! - `migration_end`: how a migration ends
//! - `write_back`: copying dirty parts to their backing
//! - `backing`: bytes below the device that a part owns
//! - `advice`: `Advise`: parts that a device accesses in place

mod advice;
mod backing;
mod migrate;
mod migration_end;
mod write_back;
