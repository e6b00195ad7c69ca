//! Client processes whose parts move.

pub(crate) mod killed;
pub(crate) mod prefetches;
pub(crate) mod programs;
pub(crate) mod readers;
pub(crate) mod stopped;
