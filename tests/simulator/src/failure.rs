//! What a run found.

use std::fmt;

/// The first thing that was not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// After so many events.
    pub event: u64,
    /// Its id in the registry, or `panic`.
    pub invariant: String,
    pub detail: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at event {}: {}", self.invariant, self.event, self.detail)
    }
}
