//! Pools of small allocations: blocks of chunks that a [`Pool`] has allocated before, so that an allocation needs no
//! call of the daemon, and usually no other thread.
//!
//! ```text
//! alloc ─► this thread's cache ─► shelf of the class ─► pages of a chunk ─► the daemon
//!   a lock of its own, ~20 ns       a lock, in batches     a lock, by slab      a call, by chunk
//! free  ─► the same way back; what is idle goes all of it, by the session's release thread
//! ```
//!
//! Sizes are rounded up to classes, four to a doubling; every block begins at a multiple of 256 bytes. A freed block
//! keeps its bytes, and its next user sees them: nothing is zero unless the program writes zeros. The records of
//! blocks lie in ordinary memory, so the chunk may be a GPU's. A kernel must have ended before a block that it uses
//! is dropped.
//!
//! The pool meets the rest of the SDK at two places: `api.rs` has the public types, and `source.rs` has what the pool
//! takes from its session.

mod api;
mod cache;
mod chunk;
mod classes;
mod config;
mod core;
mod shelf;
mod slab;
mod source;

pub use api::{Pool, PoolBlock};
pub use config::PoolConfig;
