//! Time as an argument: the shell reads the clock, the core only compares.

use std::time::Duration;

/// Microseconds since the start of the daemon, or of a simulated run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    pub const START: Self = Self(0);

    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The time since `earlier`; zero if that is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// The time `delay` before this one, but not before the start.
    #[must_use]
    pub fn before(self, delay: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX)))
    }

    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX)))
    }
}
