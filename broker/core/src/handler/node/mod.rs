//! Sessions, time, pressure and the driver's reports.
//!
//! - `session`: sessions: hello, silence, end
//! - `timer`: deadlines
//! - `completion`: the driver's reports
//! - `follow_up`: follow-up work at the end of an event
//! - `pressure`: what happens as a place fills up
//! - `survey`: surveys of devices
//! - `notice`: notices for operators

mod completion;
pub(super) mod follow_up;
pub(super) mod notice;
mod pressure;
mod session;
pub(super) mod survey;
pub(super) mod timer;
