//! Counts of instructions by Valgrind, which are the same in every run, and the committed counts that they are
//! compared with.

mod callgrind;
pub mod comparison;
pub mod measure;
pub mod workload;
