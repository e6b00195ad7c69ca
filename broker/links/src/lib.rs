//! Who goes next on the links that copies of several classes share.
//!
//! [`Links`] are asked before each chunk of a copy is begun in a lane. They are pure: what waits, and the time, are told by who
//! asks. So the lanes of the drivers and the simulator have the same order.
//!
//! - Classes go in their order: demand, prefetch, write-back.
//! - A class that has had less of a link than its share while it waited goes first until it has had it; prefetches never before
//!   demand.
//! - What a class does not want is lent to the others, and a class that begins to wait again has nothing saved up. Who has as much
//!   under way as its lane takes wants more all the same.
//! - Whoever has waited for [`STANDS_AT_MOST`], and was passed by [`PASSED_AT_MOST`] chunks meanwhile or sees none begun for as long,
//!   goes first with one, so that nothing stands for ever.
//!
//! Each lane has a link of its own, and some are shared by several. There:
//!
//! - A class that lacks its share goes first in each of its lanes, whatever else waits in them, and what nobody waits for is not begun
//!   in other lanes beyond its own share.
//! - Demand is never held back by another lane. The others go when it is their turn and no demand is under way, or when the link has
//!   room beside what is.
//! - Who goes first because it stood is the lane that stood longest, and does not hang: something is under way there, and none of
//!   it has ended for as long.

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

/// So long a class that waits has nothing.
pub const STARVED_AFTER: Duration = Duration::from_secs(1);

/// On a slow link longer, while no more chunks than that are begun of others.
pub const STARVED_AFTER_CHUNKS: u32 = 16;

#[cfg(test)]
mod tests;
