//! A stream of the SDK's own, for copies that wait for nothing but themselves.
//!
//! It is non-blocking: it is not ordered with the program's default stream, nor with any other. The SDK polls an
//! event for the end of a copy, since the driver's waiting calls may spin a core or stop other threads. Polling has
//! no deadline: while the device may touch the program's buffer, the buffer must not be returned.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{calls::Opaque, context::Current, fault::Fault};

/// The time within which most copies of a chunk end.
const SPIN: Duration = Duration::from_micros(100);
const PAUSE: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub(super) struct Stream {
    stream: Opaque,
    event: Opaque,
}

impl Stream {
    pub(super) fn create(current: &Current<'_>) -> Result<Self, Fault> {
        let stream = current.api().create_stream()?;
        match current.api().create_event() {
            Ok(event) => Ok(Self { stream, event }),
            Err(fault) => {
                // The first failure is the one to report.
                let _ = current.api().destroy_stream(stream);
                Err(fault)
            }
        }
    }

    pub(super) fn copy_to_device(&self, current: &Current<'_>, to: u64, from: &[u8]) -> Result<(), Fault> {
        current.api().begin_to_device(to, from, self.stream)?;
        self.wait(current)
    }

    pub(super) fn copy_to_host(&self, current: &Current<'_>, to: &mut [u8], from: u64) -> Result<(), Fault> {
        current.api().begin_to_host(to, from, self.stream)?;
        self.wait(current)
    }

    /// Begins work on the stream, and waits for it.
    pub(super) fn run<T>(&self, current: &Current<'_>, begin: impl FnOnce(Opaque) -> T) -> Result<T, Fault> {
        let begun = begin(self.stream);
        self.wait(current).map(|()| begun)
    }

    /// Waits until all begun work has ended. An error here affects the whole context, which then does nothing more.
    fn wait(&self, current: &Current<'_>) -> Result<(), Fault> {
        current.api().record(self.event, self.stream)?;
        let begun = Instant::now();
        while !current.api().has_happened(self.event)? {
            if begun.elapsed() < SPIN { thread::yield_now() } else { thread::sleep(PAUSE) }
        }
        Ok(())
    }

    pub(super) fn destroy(self, current: &Current<'_>) {
        // These fail only in a lost context, which takes both along.
        let _ = current.api().destroy_event(self.event);
        let _ = current.api().destroy_stream(self.stream);
    }
}
