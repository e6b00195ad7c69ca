//! The protocol of the words under a model checker: a daemon, a worker and callers over one part.
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
//! # How far it goes
//! Not every interleaving. A thread is interrupted against its will so many times at most: three with one caller, two with
//! one and many orders, one with two callers. It gives way as often as it waits. What one preemption with two callers can
//! find is shown by a form that needs both. Of the runs within the bound, the checker leaves out those that it takes for
//! repetitions, and with a bound it errs there at times. Its memory is less weak than C's: no store is seen before the
//! thread that makes it comes to it.
//!
//! `VRAMD_LOOM_PREEMPTIONS=4` goes further; fewer than a test asks for is not to be had, and the checker's own variables
//! are overruled. Each test says how many runs it must have seen, and prints (`--nocapture`) what it saw.
//!
//! # Orderings
//! [`orderings`] weakens one step at a time and shows that the checker sees it. That the worker looks at the memory between
//! its two steps is for this: the copy stands behind more steps of the word, each of which acquires what an unpin
//! released, so a step to unmapping that acquires nothing would not show there.
//!
//! Not shown: the ordering of a revoke, which passes on what others released, Relaxed or not, as every read-modify-write
//! does; and those of `finish` and `collect_written`, which the channel's frames order as well.

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
