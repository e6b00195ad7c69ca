//! Pins: a program's promises to use memory, in words that it shares with the daemon (`vramd-words`).
//!
//! ```text
//!  Handle ──────────┐                            ┌── words: pinned and unpinned by any thread, one instruction
//!  Pinned, Pinned … ┴─► Anchor (one an allocation)┤
//!                                                └── session: asked by a frame for what is not here, and woken by the
//!                                                    last unpin of what the daemon wants back
//! ```
//!
//! An [`Anchor`] lives as long as a handle of the allocation or one of its guards. Its last user releases the allocation,
//! so a guard that outlives its handle still keeps the memory where it is. Handles of one allocation share the anchor
//! (`shared.rs`).

mod anchor;
#[cfg(test)]
mod fork_tests;
mod guard;
mod guard_ref;
mod memory;
mod reaper;
mod set;
mod shared;
#[cfg(test)]
mod tests;
mod views;
mod wait;
mod words;

pub(crate) use anchor::{Anchor, Layout};
pub use guard::{Pinned, UnpinFailed};
pub use guard_ref::PinnedRef;
#[cfg(test)]
pub(crate) use memory::Memory;
pub(crate) use reaper::Reaper;
pub use set::{Pinnable, PinnedSet};
pub(crate) use set::{pin_set, private};
pub(crate) use shared::{Anchors, Sharers};
pub(crate) use views::{View, ViewConflict};
pub(crate) use words::{Unmappable, Words, WordsView, one_waiter};
