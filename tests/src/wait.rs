//! Waits for other processes: polls with a deadline, and never sleeps in hope.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

/// How long a machine under load may take for a step that takes milliseconds otherwise.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Polls until `look` returns a value. Fails the test with `what` when patience ends.
#[track_caller]
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < end, "waited {PATIENCE:?} in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The same with another patience, and `None` at its end.
pub fn within<T>(patience: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + patience;
    loop {
        if let Some(seen) = look() {
            return Some(seen);
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Polls until it is true.
#[track_caller]
pub fn until(what: &str, mut look: impl FnMut() -> bool) {
    eventually(what, || look().then_some(()));
}

/// Polls until it is true, and returns an error with `what` when patience ends: for threads, which must not panic.
pub fn soon(what: &str, mut look: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !look() {
        ensure!(Instant::now() < end, "waited {PATIENCE:?} in vain: {what}");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Polls for as long as `span`, and fails the test as soon as it is false.
#[track_caller]
pub fn always(what: &str, span: Duration, mut look: impl FnMut() -> bool) {
    let end = Instant::now() + span;
    while Instant::now() < end {
        assert!(look(), "did not stay so: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
