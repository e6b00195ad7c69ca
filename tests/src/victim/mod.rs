//! A client process that comes to one step of the protocol and dies there: what it is told, and who watches it.
//!
//! It takes its fate as arguments and tells what it does, one line a thing ([`Word`]). `src/bin/victim` is the other
//! side.

mod fate;
mod handle;
mod word;

pub use self::{
    fate::{Death, Fate, Script, Setting, Step, content},
    handle::Victim,
    word::{Order, Word},
};
