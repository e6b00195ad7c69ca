//! The protocol of the words under a model checker: every interleaving of a daemon, a worker and callers over one part.
//!
//! ```text
//! RUSTFLAGS="--cfg vramd_loom" cargo test -p vramd-words --release --test loom --target-dir target/loom
//! ```
//!
//! The words are the crate's own code. Around them stands a small daemon that keeps the mapper set, the shadow and the
//! place of the part ([`daemon`]), an SDK's worker ([`worker`]) and threads that pin, use and unpin ([`caller`]), joined
//! by ordered channels as in the real thing. The test's own thread is the operator, who orders moves and runs out of
//! patience whenever it likes.
//!
//! What must hold in each run ([`world::Truth`] watches): nothing is copied out while it is mapped or pinned, no byte that
//! was written under a pin is missing from where the part ends up, no pin is left, no unpin goes below zero, every call
//! is answered, and in the end the part can be evicted. [`holds`] shows that for the protocol; [`breaks`] shows, for each
//! form that looks as good, that the checker finds it out.
//!
//! Runs with one caller are bounded to three preemptions (two for many orders), those with two callers to one: so often a
//! thread may be interrupted against its will, and it gives way as often as it waits. `LOOM_MAX_PREEMPTIONS` sets another
//! bound.

#![cfg(vramd_loom)]

mod breaks;
mod caller;
mod channel_end;
mod daemon;
mod exchange;
mod form;
mod holds;
mod scenario;
mod sets;
mod worker;
mod world;
