//! A client process that comes to one step of the protocol and dies there, and its watcher.
//!
//! It takes its fate as arguments, and reports each step in one line ([`Word`]). `src/bin/victim` is the other side.

mod fate;
mod handle;
mod word;

pub use self::{
    fate::{Death, Fate, Script, Setting, Step, content},
    handle::Victim,
    word::{Order, Word},
};
