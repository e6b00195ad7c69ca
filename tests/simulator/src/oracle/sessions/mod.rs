//! Sessions: their deadlines, their answers, their mistakes, and what ends with them.

pub(super) mod answers;
mod deadlines;
mod kills;
mod lies;
mod lifetimes;
pub(super) mod silences;
