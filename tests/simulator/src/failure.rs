//! The failure of a run.

use std::fmt;

/// The first violation of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Number of events before it.
    pub event: u64,
    /// Id of the invariant in the registry, or `panic`.
    pub invariant: String,
    pub detail: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at event {}: {}", self.invariant, self.event, self.detail)
    }
}
