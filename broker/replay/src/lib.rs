//! Traces of the daemon, and replays of them: the core runs offline on a trace, with any eviction policy.
//!
//! ```text
//!   file ──format──▶ Trace ──▶ Scenario ──▶ play: Broker, with a shell that answers at once ──▶ Counts
//!                                      └──▶ bound: the fewest bytes that have to be fetched
//! ```
//!
//! The daemon collects [`Record`]s while it serves; [`Trace::head`] and [`Names::write_record`] make a file of them.

#![forbid(unsafe_code)]

pub mod bound;
mod format;
mod play;
mod policy;
mod scenario;
mod shell;
mod trace;

pub use format::{TraceError, read};
pub use play::{Counts, play};
pub use policy::{Policy, UnknownPolicy};
pub use scenario::{Options, PARTS_MAX, Recorded, Scenario, ScenarioError};
pub use trace::{End, Names, PartKey, RECORDS_MAX, Record, Start, Trace, What};

#[cfg(test)]
mod tests;
