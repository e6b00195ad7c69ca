//! The only clock that the broker's time comes from.

use std::time::{Duration, SystemTime};

use broker_core::Time;
use tokio::time::Instant;

/// Counts from the daemon's start, whatever is done to the wall clock meanwhile.
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

    /// The time of day, by the wall clock's word at the start and what has passed since.
    pub fn time_of_day(&self) -> Option<SystemTime> {
        self.started_at.checked_add(self.start.elapsed())
    }

    /// What the wall clock said at the start.
    pub fn started_at(&self) -> SystemTime {
        self.started_at
    }

    /// `None` never comes.
    pub(super) async fn sleep_until(&self, deadline: Option<Time>) {
        let at = deadline.and_then(|time| self.start.checked_add(Duration::from_micros(time.as_micros())));
        match at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}
