//! Pin calls, and the fences that end them.

mod aborts;
mod answers;
mod fences;
mod pinned;
mod stalls;
