//! Declared sequences: a client says in which order it will use parts, and the daemon works ahead of it.
//!
//! - `declare`: sequences are taken, walked through and ended
//! - `window`: the requests for the steps ahead
//! - `list`: sequences as seen from outside
//!
//! The daemon makes a prefetch request for each step of the window, so order, fairness and links are those of all
//! requests (`handler/prefetch`). `line/advised_order.rs` has the order in which parts of a sequence leave. A sequence
//! only makes pins faster: a program that pins in another order waits longer, and nothing else.

mod declare;
mod list;
mod window;
