//! Extents: they are ordered, cached and released, and they back parts.
//!
//! - `create_extent`: bytes are reserved, and an extent is ordered from the driver
//! - `backing`: bytes below its device that a part owns
//! - `cache`: freed extents that stay charged to their tenant
//! - `discardable`: parts that leave without a copy, for a destination without memory
//! - `release`: extents that go back to the driver, and the room that this makes

pub(super) mod backing;
mod cache;
pub(super) mod create_extent;
mod discardable;
mod release;
