//! The simulator: the real core of vramd in virtual time, in a world drawn from a seed.
//!
//! [`scenario`] is what a seed determines: a node, tenants with their scripts, faults with their rates.
//! [`world`] is the run: driver, disk, client processes and operators around one broker. [`oracle`] checks
//! the broker's events and commands. A run first makes trouble; then the faults stop, and everything must
//! drain. The same plan gives the same trace, byte by byte, so a seed is enough to keep a failure.

pub mod campaign;
pub mod coverage;
pub mod dice;
pub mod digest;
pub mod failure;
pub mod forced;
pub mod known_seeds;
pub mod oracle;
pub mod run;
pub mod scenario;
pub mod shrink;
pub mod story;
pub mod world;
