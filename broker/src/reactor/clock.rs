//! The only source of the broker's time.

use std::time::{Duration, SystemTime};

use broker_core::Time;
use tokio::time::Instant;

/// A clock that counts from the daemon's start, whatever happens to the wall clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    started_at: SystemTime,
}

impl Clock {
    pub fn start() -> Self {
        Self { start: Instant::now(), started_at: SystemTime::now() }
    }

    pub fn now(&self) -> Time {
        Time::START.after(self.start.elapsed())
    }

    /// Returns the time of day: the wall clock's time at the start plus the time since.
    pub fn time_of_day(&self) -> Option<SystemTime> {
        self.started_at.checked_add(self.start.elapsed())
    }

    /// The wall clock's time at the start.
    pub fn started_at(&self) -> SystemTime {
        self.started_at
    }

    /// Sleeps until the deadline; without one, for ever.
    pub(super) async fn sleep_until(&self, deadline: Option<Time>) {
        let at = deadline.and_then(|time| self.start.checked_add(Duration::from_micros(time.as_micros())));
        match at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}
