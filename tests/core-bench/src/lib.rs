//! How fast the pure core is, how much memory it takes, and how its costs grow with what lives.
//!
//! The real core runs a mixed workload on one thread. Around it everything obeys at once, so that what is timed is the
//! core: `handle`, `poll_command` and the getters.

pub mod curve;
pub mod dice;
pub mod kind;
pub mod memory;
pub mod meter;
pub mod mix;
pub mod moves;
pub mod report;
pub mod shell;
pub mod throughput;
