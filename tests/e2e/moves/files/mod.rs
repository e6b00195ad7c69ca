//! Files that are loaded in place of backing.

pub(crate) mod changed;
mod in_place;
pub(crate) mod load;
pub(crate) mod verity;
