//! A stream of the SDK's own, for copies that wait for nothing but themselves.
//!
//! It is non-blocking: it does not order itself with the program's default stream, nor with any other. Its end is seen
//! by asking an event, since the calls that wait may spin a core or stop others. Asking has no deadline: as long as
//! the device may touch the program's buffer, the buffer must not go back.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{calls::Opaque, context::Current, fault::Fault};

/// Most copies of a chunk end within this.
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
                // The first failure is the one to tell.
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

    /// Until all that was begun has ended. An error here is one of the whole context, which then does nothing more.
    fn wait(&self, current: &Current<'_>) -> Result<(), Fault> {
        current.api().record(self.event, self.stream)?;
        let begun = Instant::now();
        while !current.api().has_happened(self.event)? {
            if begun.elapsed() < SPIN { thread::yield_now() } else { thread::sleep(PAUSE) }
        }
        Ok(())
    }

    pub(super) fn destroy(self, current: &Current<'_>) {
        // They fail only in a context that is lost, which takes both along.
        let _ = current.api().destroy_event(self.event);
        let _ = current.api().destroy_stream(self.stream);
    }
}
