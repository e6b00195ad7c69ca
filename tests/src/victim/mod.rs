//! A client process that comes to one step of the protocol and dies there, and its watcher.
//!
//! It takes its fate as arguments, and reports each step in one line ([`Report`]). `src/bin/victim` is the other side.

mod fate;
mod handle;
mod report;

pub use self::{
    fate::{Death, Fate, Script, Setting, Step, content},
    handle::Victim,
    report::{Order, Report},
};
