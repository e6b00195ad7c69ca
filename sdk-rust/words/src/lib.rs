//! Pin words: what a session and the daemon share about each part, changed atomically without a call.
//!
//! A client states "I am using this" at the price of one atomic instruction, and the daemon moves unused parts
//! without asking a client. So each session has a table in shared memory, with two words for each part that it maps.
//! A program pins in the first word; the daemon revokes there. Neither ever waits for the other: the side that finds
//! the word in the wrong state sends a frame over the channel, which is the slow path.
//!
//! ```text
//!  table: [ header, 64 bytes ][ slot 0: w0 w1 ][ slot 1: w0 w1 ] …
//!
//!  w0:  63 ─────────── 28 │ 27 UNMAPPING │ 26 REVOKE │ 25 MAPPED │ 24 WRITTEN │ 23 ──── 0
//!            zero                                                                pins
//!  w1:  63 ── 32 uses │ 31 ── 0 last use, a coarse tick
//!
//!                      set_mapped (worker), with a pin for each call that waits
//!            ┌──────────────────────────────────────────────┐
//!            │                                              ▼
//!      ╭──────────╮                                   ╭───────────╮ ◄─ pin, unpin (client)
//!      │  absent  │                                   │ resident  │ ◄─ write-back: WRITTEN off at pins 0 (daemon)
//!      ╰──────────╯                                   ╰───────────╯
//!            ▲                                         │    │   ▲
//!     finish │               begin_unmap (worker):     │    │   │ withdrawn before a frame was sent (daemon),
//!  (WRITTEN  │               freed, detached, sealed,  │    │   │ or the channel ended (worker)
//!     stays) │               pins 0                    │    ▼   │
//!     ╭───────────╮ ◄──────────────────────────────────╯  ╭──────────╮
//!     │ unmapping │ ◄──────────────────────────────────── │ revoking │ ◄─ unpin; pin while other pins are left
//!     ╰───────────╯  begin_unmap_revoked (worker), pins 0 ╰──────────╯
//! ```
//!
//! Three views, each limited to what its side may do: [`Daemon`] revokes, writes back and harvests; [`Client`] pins
//! and unpins, from any thread; [`Worker`], one a process, maps and unmaps as the channel's frames say. A [`Word`] is
//! the pure value with its transitions; the views make them atomic. `tests/loom` models all this, frames included,
//! and shows which variants of the protocol lose a byte.
//!
//! # Why these orderings
//! Every change of `w0` is AcqRel, and every load of it Acquire. *Release* in an unpin, *acquire* in the worker's
//! step to unmapping and in the daemon's write-back: work under a pin happens before the copy. *Release* in
//! [`WorkerSlot::set_mapped`], *acquire* in a pin: the mapping stands before a thread uses it. A revoke needs neither
//! for itself, but it lies between an unpin and a copy, and a read-modify-write keeps the chain whole. No fence and
//! no SeqCst is needed, since no decision reads two words at once. `w1` is advice: relaxed, and a lost count does no
//! harm.
//!
//! # Who is trusted
//! Neither side trusts the other. The other side can write anything at any time, so no value read here is used as an
//! index, and the daemon takes the number of slots from itself, never from the header. A word that no honest client
//! makes is [`InvalidWord`]. A client that lies can pin parts that it does not use, or move parts that it does: its
//! own tenant's loss.

#![forbid(unsafe_code)]

mod client;
mod daemon;
mod header;
mod last_use;
mod sync;
mod table;
mod word;
mod worker;

pub use client::{Client, ClientSlot, SetRefused, Unpinned, pin_set};
pub use daemon::{Daemon, DaemonSlot, Evict, Fence, InvalidWord, WriteBack};
pub use header::{HEADER_WORDS, Header, MAGIC, OpenError};
pub use last_use::LastUse;
pub use sync::AtomicU64;
pub use table::{DEFAULT_SLOTS, SLOT_WORDS, TooSmall, bytes_for, open};
pub use word::{Access, NotMappable, NotPinned, NotUnmappable, PinRefused, State, Waiting, Word};
pub use worker::{Unmapping, Worker, WorkerSlot};
