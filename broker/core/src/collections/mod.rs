//! Collections that are smaller and faster than the standard library's for a million entries.

mod id_map;
mod pair_map;

pub(crate) use id_map::IdMap;
pub(crate) use pair_map::{Pair, PairMap, PartMap};
