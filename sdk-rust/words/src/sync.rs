//! The one atomic type that this crate stands on: the real one, or the model checker's.

pub(crate) use core::sync::atomic::Ordering;

/// What a table is made of. With `--cfg vramd_loom` it is the model checker's, which is no plain integer.
#[cfg(not(vramd_loom))]
pub type AtomicU64 = core::sync::atomic::AtomicU64;
/// What a table is made of: under the model checker, its own.
#[cfg(vramd_loom)]
pub type AtomicU64 = loom::sync::atomic::AtomicU64;
