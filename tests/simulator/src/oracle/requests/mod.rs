//! Requests of clients and operators, and their answers.

mod callers;
mod calls;
mod frees;
mod names;
pub(super) mod reasons;
pub(super) mod repeats;
mod sealing;
mod visibility;
