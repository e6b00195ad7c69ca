//! Sessions, deadlines, pressure, and the driver's reports.
//!
//! - `session`: a session's hello, silence and end
//! - `timer`: deadlines
//! - `completion`: the driver's reports, each to its subject
//! - `pressure`: what the daemon does as a place fills up
//! - `survey`: surveys of devices, and what they find
//! - `notice`: notices for operators

mod completion;
pub(super) mod notice;
mod pressure;
mod session;
pub(super) mod survey;
pub(super) mod timer;
