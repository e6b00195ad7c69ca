//! Mappings: parts that sessions are sent, map and are told to unmap.

mod delivery;
mod descriptors;
mod in_place;
mod map_frames;
mod placement;
mod slots;
pub(super) mod turns;
mod unpinned;

pub(crate) use placement::LinkFacts;
