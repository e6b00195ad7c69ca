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

use crate::{pressure::PressureState, settings::Settings, time::Time};

/// The state of the node as a whole.
#[derive(Debug)]
pub(crate) struct NodeState {
    /// The settings in force.
    pub(crate) settings: Settings,
    /// Whether no new session and no new memory is admitted.
    pub(crate) draining: bool,
    pub(crate) surveys: survey::Surveys,
    pub(crate) pressure: PressureState,
    /// When the cache is scanned next for extents to release.
    pub(crate) cache_scan_at: Option<Time>,
}

impl NodeState {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            draining: false,
            surveys: survey::Surveys::default(),
            pressure: PressureState::default(),
            cache_scan_at: None,
        }
    }
}
