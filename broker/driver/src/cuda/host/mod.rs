//! Pins host memory, for extents and ahead of need.

pub(crate) mod headroom;
pub(crate) mod maker;
pub(crate) mod memory;
pub(crate) mod node;
