//! The node as a whole: sessions with their frames and deadlines, pressure, and what surveys find.
//!
//! - `session`: a session's hello, silence and end
//! - `frames`: frames of clients
//! - `deadlines`: what a session has not done in time
//! - `pressure`: what the daemon does as a place fills up
//! - `surveyed`: the result of a survey

mod deadlines;
mod frames;
mod pressure;
mod session;
mod surveyed;

use crate::{pressure::PressureState, settings::Settings, time::Time};

/// The state of the node as a whole.
#[derive(Debug)]
pub(crate) struct NodeState {
    /// The settings in force.
    pub(crate) settings: Settings,
    /// Whether no new session and no new memory is admitted.
    pub(crate) draining: bool,
    pub(crate) surveys: super::shared::survey::Surveys,
    pub(crate) pressure: PressureState,
    /// When the cache is scanned next for extents to release.
    pub(crate) cache_scan_at: Option<Time>,
}

impl NodeState {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            draining: false,
            surveys: super::shared::survey::Surveys::default(),
            pressure: PressureState::default(),
            cache_scan_at: None,
        }
    }
}
