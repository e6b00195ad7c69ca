//! The session's channel: every frame about mappings, in one order.
//!
//! `socket` carries packets and descriptors, `frame` decodes them, `hello` opens the session, and `reader` handles
//! one packet at a time. `reader_seat` decides which thread reads: the worker, or a caller that waits for memory.
//! `link` orders changes and reports.

#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod frame;
mod hello;
mod link;
mod reader;
mod reader_seat;
mod socket;
#[cfg(test)]
mod tests;
mod worker;

pub(crate) use hello::{Greeting, open};
pub(crate) use link::{ChannelLock, Link};
pub(crate) use reader::{ReadOutcome, read_one};
pub(crate) use reader_seat::ReaderSeat;
pub(crate) use worker::spawn as spawn_worker;
