//! Files that are loaded in place of backing.

pub(crate) mod changed;
pub(crate) mod load;
pub(crate) mod verity;
