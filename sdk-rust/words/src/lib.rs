//! The words that a session and the daemon share: who uses a part now, and whether it may move.
//!
//! A client must be able to say "I am using this" at the price of one atomic instruction, and the daemon must be able to
//! move what nobody uses without asking anyone. So each session has a table in shared memory, with two words for each
//! part that it maps. A program pins in the first word; the daemon revokes there. Neither ever waits for the other: who
//! finds the word in the wrong state sends a frame over the channel, and that is the slow way.
//!
//! ```text
//!  table: [ header, 64 bytes ][ slot 0: w0 w1 ][ slot 1: w0 w1 ] …
//!
//!  w0:  63 ─────────── 28 │ 27 UNMAPPING │ 26 REVOKE │ 25 MAPPED │ 24 WRITTEN │ 23 ──── 0
//!            zero                                                                pins
//!  w1:  63 ── 32 uses │ 31 ── 0 last touch, a coarse tick
//!
//!                      set_mapped (worker), with a pin for each call that waits
//!            ┌──────────────────────────────────────────────┐
//!            │                                              ▼
//!      ╭──────────╮                                   ╭───────────╮ ◄─ pin, unpin (client)
//!      │  absent  │                                   │ resident  │ ◄─ write-back: WRITTEN off at pins 0 (daemon)
//!      ╰──────────╯                                   ╰───────────╯
//!            ▲                                         │    │   ▲
//!     finish │               begin_unmap (worker):     │    │   │ taken back before a frame was sent (daemon),
//!  (WRITTEN  │               freed, detached, sealed,  │    │   │ or the channel ended (worker)
//!     stays) │               pins 0                    │    ▼   │
//!     ╭───────────╮ ◄──────────────────────────────────╯  ╭──────────╮
//!     │ unmapping │ ◄──────────────────────────────────── │ revoking │ ◄─ unpin; pin while others still hold one
//!     ╰───────────╯  begin_unmap_revoked (worker), pins 0 ╰──────────╯
//! ```
//!
//! Three views, and each can do only what its side may: [`Daemon`] revokes, writes back and harvests; [`Client`] pins and
//! unpins, from any thread; [`Worker`], one a process, maps and unmaps as the channel's frames say. A [`Word`] is the
//! pure value with its transitions; the views make them atomic. `tests/loom` is the model of all this, frames included,
//! and of the forms that look as good and lose a byte.
//!
//! # Why these orderings
//! Every change of `w0` is AcqRel, and every look at it Acquire. *Release* in an unpin, *acquire* in the worker's step to
//! unmapping and in the daemon's write-back: what was done under a pin happens before the copy. *Release* in
//! [`WorkerSlot::set_mapped`], *acquire* in a pin: the mapping stands before anybody uses it. A revoke needs neither for
//! itself, but it lies between an unpin and a copy, and a read-modify-write keeps the chain whole. There is no place for
//! a fence or SeqCst, since no decision looks at two words at once. `w1` is advice: relaxed, and a lost count is no harm.
//!
//! # Who is trusted
//! Nobody. The other side can write anything at any time, so nothing read here is an index, and the daemon takes the number
//! of slots from itself, never from the header. A word that no honest client makes is [`Impossible`]. A client that lies
//! can pin what it doesn't use, or move what it does: its own tenant's loss.

#![forbid(unsafe_code)]

mod client;
mod daemon;
mod header;
mod sync;
mod table;
mod touch;
mod word;
mod worker;

pub use client::{Client, ClientSlot, SetRefused, Unpinned, pin_set};
pub use daemon::{Daemon, DaemonSlot, Evict, Fence, Impossible, WriteBack};
pub use header::{HEADER_WORDS, Header, MAGIC, OpenError};
pub use sync::AtomicU64;
pub use table::{DEFAULT_SLOTS, SLOT_WORDS, TooSmall, bytes_for, open};
pub use touch::Touch;
pub use word::{Access, NotMappable, NotPinned, NotUnmappable, PinRefused, State, Waiting, Word};
pub use worker::{Unmapping, Worker, WorkerSlot};
