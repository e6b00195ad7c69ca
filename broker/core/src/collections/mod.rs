//! What the standard library's collections do not do small and fast enough for a million of each.

mod few;
mod id_map;

pub(crate) use few::Few;
pub(crate) use id_map::IdMap;
