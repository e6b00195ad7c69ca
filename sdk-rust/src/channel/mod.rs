//! The session's channel: everything that concerns mappings, in one order.

#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod frame;
mod hello;
mod link;
mod place;
mod reader;
mod socket;
#[cfg(test)]
mod tests;
mod worker;

pub(crate) use hello::{Greeting, open};
pub(crate) use link::Link;
pub(crate) use place::Seat;
pub(crate) use reader::{Attended, attend};
pub(crate) use worker::spawn as spawn_worker;
