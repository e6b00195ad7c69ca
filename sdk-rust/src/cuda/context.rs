//! The primary context of a device, and the guard under which the driver is called in it.

use std::{
    marker::PhantomData,
    ptr::NonNull,
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
    /// The streams that no copy uses now: as many as were ever in use at once.
    idle: Mutex<Vec<Stream>>,
}

/// Keeps the context current on this thread until it is dropped. Meanwhile nothing that the thread does disturbs a
/// capture of a stream, its own or another thread's: a program's thread may get here in the middle of one.
#[derive(Debug)]
pub(super) struct Current<'a> {
    context: &'a Context,
    /// The thread's own mode.
    capture_mode: u32,
    // The current context belongs to the thread.
    _thread: PhantomData<*const ()>,
}

impl Context {
    pub(super) fn retain(driver: Arc<Driver>, device: Device) -> Result<Self, Fault> {
        let raw = driver.api.retain(device)?;
        Ok(Self { driver, device, raw, idle: Mutex::default() })
    }

    pub(super) fn enter(&self) -> Result<Current<'_>, Fault> {
        self.enter_other(self.raw)
    }

    /// Enters another context of the program.
    pub(super) fn enter_other(&self, raw: Opaque) -> Result<Current<'_>, Fault> {
        let capture_mode = self.driver.api.relax_capture()?;
        let current = Current { context: self, capture_mode, _thread: PhantomData };
        match self.driver.api.push(raw) {
            Ok(()) => Ok(current),
            Err(fault) => {
                current.restore_capture_mode();
                std::mem::forget(current);
                Err(fault)
            }
        }
    }

    pub(super) fn raw(&self) -> Opaque {
        self.raw
    }

    /// Copies, and returns when the bytes have arrived.
    pub(crate) fn copy_to_device(&self, to: u64, from: &[u8]) -> Result<(), Fault> {
        self.with_stream(|current, stream| stream.copy_to_device(current, to, from))
    }

    /// Copies, and returns when the bytes have arrived.
    pub(crate) fn copy_to_host(&self, to: &mut [u8], from: u64) -> Result<(), Fault> {
        self.with_stream(|current, stream| stream.copy_to_host(current, to, from))
    }

    /// Waits until all that was launched in this context is done. It fails while a stream is being captured.
    pub(crate) fn synchronize(&self) -> Result<(), Fault> {
        self.enter()?.api().synchronize()
    }

    /// Page-locks host memory, so that copies between it and the device run at the speed of the link.
    pub(crate) fn register_host(&self, start: NonNull<u8>, len: usize) -> Result<(), Fault> {
        self.enter()?.api().register_host(start, len)
    }

    pub(crate) fn unregister_host(&self, start: NonNull<u8>) -> Result<(), Fault> {
        self.enter()?.api().unregister_host(start)
    }

    pub(super) fn with_stream<T>(
        &self,
        work: impl FnOnce(&Current<'_>, &Stream) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let current = self.enter()?;
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = idle().pop();
        let stream = match taken {
            Some(stream) => stream,
            None => Stream::create(&current)?,
        };
        let outcome = work(&current, &stream);
        idle().push(stream);
        outcome
    }
}

impl Current<'_> {
    pub(super) fn api(&self) -> &Api {
        &self.context.driver.api
    }

    pub(super) fn driver(&self) -> &Driver {
        &self.context.driver
    }

    pub(super) fn device(&self) -> Device {
        self.context.device
    }

    fn restore_capture_mode(&self) {
        // The call that set the mode can set it again.
        let _ = self.api().exchange_capture_mode(self.capture_mode);
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        // This fails only if the driver has shut down, with the process.
        let _ = self.api().pop();
        self.restore_capture_mode();
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
