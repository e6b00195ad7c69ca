//! The session's channel: everything that concerns mappings, in one order.

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
pub(crate) use link::Link;
pub(crate) use reader::{ReadOutcome, read_one};
pub(crate) use reader_seat::ReaderSeat;
pub(crate) use worker::spawn as spawn_worker;
