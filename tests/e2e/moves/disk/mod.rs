//! The disk tier: real files, real file systems.

pub(crate) mod engines;
pub(crate) mod full_disk;
pub(crate) mod stops;
pub(crate) mod surroundings;
pub(crate) mod tier;
