//! The primary context of a device, and the right to call the driver within it.

use std::{
    marker::PhantomData,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    api::{Api, Device},
    calls::Opaque,
    driver::Driver,
    fault::Fault,
    stream::Stream,
};

#[derive(Debug)]
pub(crate) struct Context {
    driver: Arc<Driver>,
    device: Device,
    raw: Opaque,
    /// Those that no copy uses now: as many as ever were in use at once.
    idle: Mutex<Vec<Stream>>,
}

/// The context is current on this thread, until this is dropped.
#[derive(Debug)]
pub(super) struct Current<'a> {
    context: &'a Context,
    // What is current is a matter of the thread.
    _thread: PhantomData<*const ()>,
}

impl Context {
    pub(super) fn retain(driver: Arc<Driver>, device: Device) -> Result<Self, Fault> {
        let raw = driver.api.retain(device)?;
        Ok(Self { driver, device, raw, idle: Mutex::default() })
    }

    pub(super) fn enter(&self) -> Result<Current<'_>, Fault> {
        self.driver.api.push(self.raw)?;
        Ok(Current { context: self, _thread: PhantomData })
    }

    /// Returns when the bytes are there.
    pub(crate) fn copy_to_device(&self, to: u64, from: &[u8]) -> Result<(), Fault> {
        self.with_stream(|current, stream| stream.copy_to_device(current, to, from))
    }

    /// Returns when the bytes are there.
    pub(crate) fn copy_to_host(&self, to: &mut [u8], from: u64) -> Result<(), Fault> {
        self.with_stream(|current, stream| stream.copy_to_host(current, to, from))
    }

    fn with_stream(
        &self,
        copy: impl FnOnce(&Current<'_>, &Stream) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let current = self.enter()?;
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = idle().pop();
        let stream = match taken {
            Some(stream) => stream,
            None => Stream::create(&current)?,
        };
        let outcome = copy(&current, &stream);
        idle().push(stream);
        outcome
    }
}

impl Current<'_> {
    pub(super) fn api(&self) -> &Api {
        &self.context.driver.api
    }

    pub(super) fn device(&self) -> Device {
        self.context.device
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        // It fails only where the driver has shut down, with the process.
        let _ = self.api().pop();
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let streams = std::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner));
        if let Ok(current) = self.enter() {
            for stream in streams {
                stream.destroy(&current);
            }
        }
        // As above.
        let _ = self.driver.api.release(self.device);
    }
}
