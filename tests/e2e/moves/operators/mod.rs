//! Operators move, list, hold and write back parts.

pub(crate) mod holds;
pub(crate) mod links;
pub(crate) mod list;
pub(crate) mod part_ranges;
pub(crate) mod rebalance;
pub(crate) mod requests;
pub(crate) mod write_backs;
