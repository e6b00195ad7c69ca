//! The protocol of the words under a model checker: a daemon, a worker and callers over one part.
//!
//! ```text
//! RUSTFLAGS="--cfg vramd_loom" cargo test -p vramd-words --release --test loom --target-dir target/loom
//! ```
//!
//! The words are the crate's own code. Around them stands a small daemon that keeps the mapper set, the backing and
//! the place of the part ([`daemon`]), an SDK's worker ([`worker`]) and threads that pin, use and unpin ([`caller`]),
//! joined by ordered channels as in the real system. The test's own thread is the operator, who orders moves and
//! whose patience ends at any time.
//!
//! Each run must satisfy ([`world::Truth`] checks it): no copy out while the part is mapped or pinned; no byte that
//! was written under a pin is missing where the part ends up; no pin is left; no unpin goes below zero; every call is
//! answered; and in the end the part can be evicted. [`holds`] shows that for the protocol; [`breaks`] shows, for
//! each wrong form, that the checker finds its failure.
//!
//! # How far it goes
//! Not every interleaving is explored. A thread is preempted a bounded number of times: three with one caller, two
//! with one and many orders, one with two callers. It yields as often as it waits. A wrong form shows what one
//! preemption with two callers can find. Of the runs within the bound, the checker leaves out those that it takes for
//! repetitions, and with a bound it sometimes errs there. Its memory model is less weak than C's: no store is seen
//! before its thread executes it.
//!
//! `VRAMD_LOOM_PREEMPTIONS=4` goes further; a value below a test's own is ignored, and so are the checker's own
//! variables. Each test states how many runs it must have seen, and prints (`--nocapture`) how many it saw.
//!
//! # Orderings
//! [`orderings`] weakens one step at a time and shows that the checker sees it. For that the worker reads the memory
//! between its two steps. The copy follows more steps of the word, each of which acquires what an unpin released, so
//! a step to unmapping that acquires nothing would not show there.
//!
//! Not shown: the ordering of a revoke, which passes on what others released, Relaxed or not, as every
//! read-modify-write does; and those of `finish` and `collect_written`, which the channel's frames order as well.

#![cfg(vramd_loom)]

mod bound;
mod breaks;
mod caller;
mod channel_end;
mod daemon;
mod exchange;
mod form;
mod holds;
mod orderings;
mod scenario;
mod sets;
mod step;
mod worker;
mod world;
