//! Parts that move between tiers.
//!
//! - `migrate`: a migration from its start to its copy
//! - `migration_end`: how a migration ends
//! - `write_back`: copying dirty parts to their backing while they stay

mod migrate;
pub(super) mod migration_end;
mod placement;
mod write_back;
