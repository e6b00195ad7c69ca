//! The node as a whole: its bounds, its devices, its ids, and what is left in the end.

mod bounds;
mod devices;
mod drained;
mod draining;
pub(super) mod ids;
