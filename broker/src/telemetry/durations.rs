//! How long calls took, on the way into their histogram.
//!
//! The histogram is behind a lock, and all cores would write to the same few lines of memory at every call. So a thread
//! puts what it measured into a drawer that is nearly its own; a full one is emptied into the histogram, and all are
//! before metrics are collected. Each value is recorded as it was measured, only later.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::available_parallelism,
    time::Duration,
};

use opentelemetry::metrics::Histogram;
use tonic::Code;

use super::calls::Method;

/// Values in one drawer: enough that the histogram is seldom written to, and recorded in about a microsecond.
const DRAWER_MAX: usize = 64;

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Threads are numbered as they first come.
    static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

#[derive(Debug)]
pub(super) struct Durations {
    histogram: Histogram<f64>,
    /// One for each thread that may run at a time.
    drawers: Box<[Drawer]>,
}

/// On lines of memory of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Drawer(Mutex<Vec<Taken>>);

#[derive(Debug)]
struct Taken {
    method: &'static Method,
    code: Code,
    seconds: f64,
}

impl Durations {
    pub(super) fn new(histogram: Histogram<f64>) -> Self {
        let threads = available_parallelism().map_or(1, usize::from);
        Self { histogram, drawers: (0..threads).map(|_| Drawer::default()).collect() }
    }

    /// A call of that method took so long and ended so.
    pub(super) fn took(&self, method: &'static Method, code: Code, time: Duration) {
        let number = NUMBER.with(|number| *number);
        let Some(drawer) = self.drawers.get(number % self.drawers.len()) else { return };
        let mut taken = drawer.0.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.is_empty() {
            taken.reserve_exact(DRAWER_MAX);
        }
        taken.push(Taken { method, code, seconds: time.as_secs_f64() });
        if taken.len() >= DRAWER_MAX {
            self.empty(&mut taken);
        }
    }

    /// Brings the histogram up to date.
    pub(super) fn settle(&self) {
        for drawer in &self.drawers {
            self.empty(&mut drawer.0.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn empty(&self, drawer: &mut Vec<Taken>) {
        for Taken { method, code, seconds } in drawer.drain(..) {
            method.record(&self.histogram, code, seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::telemetry::{calls::Methods, tests::Measured};

    const METHODS: [&str; 2] = ["/vramd.v1.MemoryService/Seal", "/vramd.v1.MemoryService/Attach"];
    const THREADS: usize = 5;
    /// So that some are left in each drawer.
    const EACH: usize = DRAWER_MAX * 3 + 7;

    #[test]
    fn every_value_of_every_thread_is_recorded_once() {
        let measured = Measured::default();
        let durations = Durations::new(measured.histogram());
        let methods: &'static Methods = Box::leak(Box::default());
        let call = |index: usize| {
            let code = if index.is_multiple_of(3) { Code::NotFound } else { Code::Ok };
            durations.took(methods.of(METHODS[index % 2]), code, Duration::from_millis(1 << (index % 4)));
        };
        for round in 1..=2 {
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| (0..EACH).for_each(call));
                }
            });
            durations.settle();
            durations.settle();
            assert_eq!(measured.count(), round * (THREADS * EACH) as u64);
            assert_eq!(measured.counts().len(), METHODS.len() * 2);
        }
    }
}
