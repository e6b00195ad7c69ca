//! Decides which copy class goes next on the links that several lanes share.
//!
//! A lane asks [`Links`] before it begins each chunk of a copy. The type is pure: the caller passes the time
//! and the waiting classes. So the lanes of the drivers and those of the simulator follow the same order.
//!
//! - Classes go in their order: demand, prefetch, write-back.
//! - A class that waited and got less of a link than its share is owed, and goes first until it has caught up.
//!   A prefetch never goes before demand for that.
//! - Unwanted share is lent to other classes. A class that begins to wait again has saved nothing up.
//! - A class whose lane is full, with as many chunks in flight as it takes, still counts as waiting.
//! - A class is starved once it has waited for [`STARVED_AFTER`] without a chunk and was passed by
//!   [`STARVED_AFTER_CHUNKS`] chunks, or saw none begin for as long. Then it goes first with one chunk.
//!
//! Each lane has a link of its own, and lanes share further links. On a shared link:
//!
//! - An owed class goes first in each of its lanes, whatever else waits there. Other lanes begin prefetches and
//!   write-backs only within the share of their own class.
//! - No other lane holds back demand. The other classes go when it is their turn and no demand is in flight, or
//!   when the link has room besides.
//! - Of several starved lanes the one that has waited longest goes first. A hung lane does not count: it has
//!   chunks in flight, and none has ended for as long.

#![forbid(unsafe_code)]

#[macro_use]
mod planted;
mod link;
mod links;
mod turn;
mod waiting;

use std::time::Duration;

#[cfg(feature = "planted")]
pub use planted::Flaw;
pub use {
    links::{Crossing, Links},
    waiting::WaitingClasses,
};

/// How long a class waits without a chunk before it is starved.
pub const STARVED_AFTER: Duration = Duration::from_secs(1);

/// On a slow link a class waits longer than [`STARVED_AFTER`]: until so many chunks of others have passed it.
pub const STARVED_AFTER_CHUNKS: u32 = 16;

#[cfg(test)]
mod tests;
