//! `vramctl put` and `vramctl verify`: commands that compare a file with the bytes of an allocation. They connect as a client.

mod digest;
pub(crate) mod put;
mod stdin;
pub(crate) mod verify;
