//! Collections that are smaller and faster than the standard library's for a million entries.

mod id_map;

pub(crate) use id_map::IdMap;
