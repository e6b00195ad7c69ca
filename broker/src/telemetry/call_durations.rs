//! Buffers the durations of gRPC calls on their way into the histogram.
//!
//! The histogram is behind a lock, and all cores would write to the same few cache lines at every call. So each thread
//! writes its measurements to a buffer that it shares with few others. A full buffer is recorded in the histogram, and
//! all buffers are before metrics are collected. Each value is recorded as it was measured, only later.

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

/// Measurements in one buffer. They are enough that threads seldom lock the histogram, and are recorded in about a
/// microsecond.
const BUFFER_MAX: usize = 64;

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The thread's number, given out when the thread first records a call.
    static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

#[derive(Debug)]
pub(super) struct CallDurations {
    histogram: Histogram<f64>,
    /// One buffer for each thread that may run at a time.
    buffers: Box<[Buffer]>,
}

/// One buffer, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Buffer(Mutex<Vec<Measurement>>);

#[derive(Debug)]
struct Measurement {
    method: &'static Method,
    code: Code,
    seconds: f64,
}

impl CallDurations {
    pub(super) fn new(histogram: Histogram<f64>) -> Self {
        let threads = available_parallelism().map_or(1, usize::from);
        Self { histogram, buffers: (0..threads).map(|_| Buffer::default()).collect() }
    }

    /// Records how long a call of the method took and how it ended.
    pub(super) fn record(&self, method: &'static Method, code: Code, time: Duration) {
        let number = NUMBER.with(|number| *number);
        let Some(buffer) = self.buffers.get(number % self.buffers.len()) else { return };
        let mut measurements = buffer.0.lock().unwrap_or_else(PoisonError::into_inner);
        if measurements.is_empty() {
            measurements.reserve_exact(BUFFER_MAX);
        }
        measurements.push(Measurement { method, code, seconds: time.as_secs_f64() });
        if measurements.len() >= BUFFER_MAX {
            self.record_buffer(&mut measurements);
        }
    }

    /// Records all buffered measurements in the histogram.
    pub(super) fn flush(&self) {
        for buffer in &self.buffers {
            self.record_buffer(&mut buffer.0.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn record_buffer(&self, buffer: &mut Vec<Measurement>) {
        for Measurement { method, code, seconds } in buffer.drain(..) {
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
    /// Leaves some measurements in each buffer.
    const EACH: usize = BUFFER_MAX * 3 + 7;

    #[test]
    fn every_value_of_every_thread_is_recorded_once() {
        let measured = Measured::default();
        let durations = CallDurations::new(measured.histogram());
        let methods: &'static Methods = Box::leak(Box::default());
        let call = |index: usize| {
            let code = if index.is_multiple_of(3) { Code::NotFound } else { Code::Ok };
            durations.record(methods.find(METHODS[index % 2]), code, Duration::from_millis(1 << (index % 4)));
        };
        for round in 1..=2 {
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| (0..EACH).for_each(call));
                }
            });
            durations.flush();
            durations.flush();
            assert_eq!(measured.count(), round * (THREADS * EACH) as u64);
            assert_eq!(measured.counts().len(), METHODS.len() * 2);
        }
    }
}
