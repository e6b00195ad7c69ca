//! Measures how fast the pure core is, how much memory it takes, and how its costs grow with the number of
//! allocations.
//!
//! The real core runs a mixed workload on one thread. Everything around it answers at once, so the time
//! measured is that of the core: `handle`, `poll_command` and the getters.

pub mod client;
pub mod counted;
pub mod counts;
pub mod curve;
pub mod dice;
pub mod kind;
pub mod memory;
pub mod meter;
pub mod mix;
pub mod moves;
pub mod prefetches;
pub mod report;
pub mod shell;
pub mod throughput;
