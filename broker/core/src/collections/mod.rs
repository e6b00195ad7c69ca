//! Collections that are smaller and faster than the standard library's for a million entries.

mod few;
mod id_map;

pub(crate) use few::Few;
pub(crate) use id_map::IdMap;
