//! What the daemon tells of itself.

pub mod logs;
