//! The atomic type of this crate: the real one, or the model checker's.

pub(crate) use core::sync::atomic::Ordering;

/// The words of a table. With `--cfg vramd_loom` this is the model checker's type, which is no plain integer.
#[cfg(not(vramd_loom))]
pub type AtomicU64 = core::sync::atomic::AtomicU64;
/// The words of a table, under the model checker.
#[cfg(vramd_loom)]
pub type AtomicU64 = loom::sync::atomic::AtomicU64;
