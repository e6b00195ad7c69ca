//! Streams, and transfers whose end is polled.
//!
//! No call waits for work on a stream: a thread that needs the end polls for it and sleeps in between. Only the
//! copies of a few bytes at the end of this file wait.
#![allow(unsafe_code, reason = "calls of the CUDA driver, which reads and writes by address")]

use std::{mem, ptr, sync::Arc, thread, time::Duration};

use cudarc::driver::sys::{CUevent, CUstream};
use vramd_types::Bytes;

use super::{
    Context, CudaError, Pinned,
    physical::{number, size_of},
};
use crate::disk::IoMemory;

/// How often to poll: far less than the time of the smallest chunk worth a stream.
const POLL_EVERY: Duration = Duration::from_micros(50);

/// The direction of a transfer, by the kinds of its two addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TransferKind<'a> {
    /// From host memory.
    HostToDevice,
    /// To host memory.
    DeviceToHost,
    /// On the stream's own device.
    WithinDevice,
    /// From the first context's device, which is the stream's, to the second's.
    AcrossDevices(&'a Context, &'a Context),
}

/// A queue of ordered work, independent of all others.
#[derive(Debug)]
pub(crate) struct Stream {
    context: Arc<Context>,
    raw: CUstream,
}

// SAFETY: A stream may be used by any thread; the pointer is a name for it, never followed here.
unsafe impl Send for Stream {}

impl Stream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        const NON_BLOCKING: u32 = 1;
        let _entered = context.enter()?;
        let api = context.api();
        let mut raw: CUstream = ptr::null_mut();
        // SAFETY: A foreign call, which writes one pointer where it is told to.
        let code = unsafe { (api.functions.cuStreamCreate)(&raw mut raw, NON_BLOCKING) };
        api.check("cuStreamCreate", code)?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Begins to copy `length` bytes from a device address into a buffer, which comes back at the end. `source`
    /// keeps the address valid until then.
    pub(crate) fn copy_out<B: KeepAlive + AsRef<Pinned>, K: KeepAlive>(
        &self,
        source: K,
        from: u64,
        length: usize,
        into: B,
    ) -> Result<Transfer<(B, K)>, CudaError> {
        let buffer = into.as_ref();
        assert!(length <= buffer.length(), "the buffer is shorter than the copy");
        let _entered = self.context.enter()?;
        let event = Event::new(&self.context)?;
        let api = self.context.api();
        // SAFETY: A foreign call, which goes on after it has returned. Until it has ended the transfer keeps
        // the buffer and the source; the range ends inside the buffer.
        let code = unsafe {
            (api.functions.cuMemcpyDtoHAsync_v2)(buffer.start().as_ptr().cast(), from, length, self.raw)
        };
        api.check("cuMemcpyDtoHAsync_v2", code)?;
        Transfer::begun(event, self, (into, source))
    }

    /// Begins to copy between two addresses. `keep_alive` keeps both valid until the end.
    pub(crate) fn copy<K: KeepAlive>(
        &self,
        keep_alive: K,
        kind: TransferKind<'_>,
        from: u64,
        to: u64,
        length: usize,
    ) -> Result<Transfer<K>, CudaError> {
        let _entered = self.context.enter()?;
        let event = Event::new(&self.context)?;
        let api = self.context.api();
        let table = &api.functions;
        // SAFETY: Foreign calls, which go on after they have returned. Until they have ended `keep_alive` stays
        // in the transfer, and with it both ranges, which the caller has mapped. The driver takes a host
        // address as it is, and checks a device address. No reference to the bytes exists: they are accessed by
        // address alone.
        let (call, code) = unsafe {
            match kind {
                TransferKind::HostToDevice => (
                    "cuMemcpyHtoDAsync_v2",
                    (table.cuMemcpyHtoDAsync_v2)(
                        to,
                        ptr::with_exposed_provenance(number(from)),
                        length,
                        self.raw,
                    ),
                ),
                TransferKind::DeviceToHost => (
                    "cuMemcpyDtoHAsync_v2",
                    (table.cuMemcpyDtoHAsync_v2)(
                        ptr::with_exposed_provenance_mut(number(to)),
                        from,
                        length,
                        self.raw,
                    ),
                ),
                TransferKind::WithinDevice => {
                    ("cuMemcpyDtoDAsync_v2", (table.cuMemcpyDtoDAsync_v2)(to, from, length, self.raw))
                }
                TransferKind::AcrossDevices(source, target) => (
                    "cuMemcpyPeerAsync",
                    (table.cuMemcpyPeerAsync)(to, target.raw(), from, source.raw(), length, self.raw),
                ),
            }
        };
        api.check(call, code)?;
        Transfer::begun(event, self, keep_alive)
    }

    /// Begins to fill device memory with a byte. `target` keeps the address valid until the end.
    pub(crate) fn fill<K: KeepAlive>(
        &self,
        target: K,
        at: u64,
        byte: u8,
        length: Bytes,
    ) -> Result<Transfer<K>, CudaError> {
        let _entered = self.context.enter()?;
        let event = Event::new(&self.context)?;
        let api = self.context.api();
        // SAFETY: A foreign call on a range that the caller has mapped and keeps until it has ended.
        let code = unsafe { (api.functions.cuMemsetD8Async)(at, byte, size_of(length), self.raw) };
        api.check("cuMemsetD8Async", code)?;
        Transfer::begun(event, self, target)
    }
}

impl Stream {
    /// Sleeps until all work on the stream has ended. Called in the stream's context.
    fn wait(&self) -> Result<(), CudaError> {
        let api = self.context.api();
        loop {
            // SAFETY: A foreign call on a stream that is alive.
            let code = unsafe { (api.functions.cuStreamQuery)(self.raw) };
            match api.check("cuStreamQuery", code) {
                Err(error) if error.is_not_ready() => thread::sleep(POLL_EVERY),
                ended => return ended,
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        let api = self.context.api();
        // SAFETY: A foreign call, once for the one stream that this value stands for. Work in flight on it still ends.
        let code = unsafe { (api.functions.cuStreamDestroy_v2)(self.raw) };
        let _ = api.check("cuStreamDestroy_v2", code);
    }
}

/// The resources of work on a stream.
pub(crate) trait KeepAlive: Sized {
    /// Leaks the resources, since the end of the work is unknown. A thread that waits to have them alone must
    /// be able to notice.
    fn leak(self) {
        mem::forget(self);
    }
}

impl KeepAlive for Pinned {}

impl<B: KeepAlive, K: KeepAlive> KeepAlive for (B, K) {
    fn leak(self) {
        let (buffer, used) = self;
        buffer.leak();
        used.leak();
    }
}

/// Work in flight, with its resources.
#[derive(Debug)]
pub(crate) struct Transfer<K: KeepAlive> {
    event: Event,
    keep_alive: Option<K>,
}

impl<K: KeepAlive> Transfer<K> {
    fn begun(event: Event, on: &Stream, keep_alive: K) -> Result<Self, CudaError> {
        if let Err(error) = event.record(on) {
            // No event will signal the end, so the whole stream must. A lost context has no work. Only if even
            // that is unknown, the resources are leaked.
            match on.wait() {
                Err(unknown) if !error.ends_context() && !unknown.ends_context() => keep_alive.leak(),
                _ => drop(keep_alive),
            }
            return Err(error);
        }
        Ok(Self { event, keep_alive: Some(keep_alive) })
    }

    /// Whether the work has ended; then its resources are dropped. Does not sleep.
    pub(crate) fn poll(&mut self) -> Result<bool, CudaError> {
        let ended = self.event.has_ended()?;
        if ended {
            drop(self.keep_alive.take());
        }
        Ok(ended)
    }

    /// The resources, once the work has ended. Does not sleep, and is not called again then.
    pub(crate) fn poll_take(&mut self) -> Result<Option<K>, CudaError> {
        Ok(if self.event.has_ended()? { self.keep_alive.take() } else { None })
    }

    /// Sleeps until the work has ended, and returns its resources.
    pub(crate) fn end(mut self) -> Result<K, CudaError> {
        self.event.wait()?;
        Ok(self.keep_alive.take().expect("it is taken once, here or in drop"))
    }
}

impl<K: KeepAlive> Drop for Transfer<K> {
    /// The resources are dropped only after the work has ended; if that is unknown, never. A lost context has
    /// no work.
    fn drop(&mut self) {
        let Some(keep_alive) = self.keep_alive.take() else { return };
        match self.event.wait() {
            Err(unknown) if !unknown.ends_context() => keep_alive.leak(),
            _ => drop(keep_alive),
        }
    }
}

#[derive(Debug)]
struct Event {
    context: Arc<Context>,
    raw: CUevent,
}

// SAFETY: An event may be used by any thread; the pointer is a name for it, never followed here.
unsafe impl Send for Event {}

impl Event {
    /// Called in the named context.
    fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        const WITHOUT_TIME: u32 = 2;
        let api = context.api();
        let mut raw: CUevent = ptr::null_mut();
        // SAFETY: A foreign call, which writes one pointer where it is told to.
        let code = unsafe { (api.functions.cuEventCreate)(&raw mut raw, WITHOUT_TIME) };
        api.check("cuEventCreate", code)?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        let api = self.context.api();
        // SAFETY: A foreign call on a stream and an event of the same context, both alive.
        let code = unsafe { (api.functions.cuEventRecord)(self.raw, stream.raw) };
        api.check("cuEventRecord", code)
    }

    /// An event that was never recorded counts as ended.
    fn wait(&self) -> Result<(), CudaError> {
        while !self.has_ended()? {
            thread::sleep(POLL_EVERY);
        }
        Ok(())
    }

    fn has_ended(&self) -> Result<bool, CudaError> {
        let _entered = self.context.enter()?;
        let api = self.context.api();
        // SAFETY: A foreign call on an event that is alive.
        let code = unsafe { (api.functions.cuEventQuery)(self.raw) };
        match api.check("cuEventQuery", code) {
            Err(error) if error.is_not_ready() => Ok(false),
            ended => ended.map(|()| true),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        let api = self.context.api();
        // SAFETY: A foreign call, once for the one event that this value stands for.
        let code = unsafe { (api.functions.cuEventDestroy_v2)(self.raw) };
        let _ = api.check("cuEventDestroy_v2", code);
    }
}

/// Copies that end before the call returns, through pageable memory, for a few bytes.
impl Context {
    pub(crate) fn read(&self, from: u64, into: &mut [u8]) -> Result<(), CudaError> {
        let _entered = self.enter()?;
        let api = self.api();
        // SAFETY: A foreign call, which writes as many bytes as the slice has. A range of the device that is not
        // mapped for reading is an error.
        let code = unsafe { (api.functions.cuMemcpyDtoH_v2)(into.as_mut_ptr().cast(), from, into.len()) };
        api.check("cuMemcpyDtoH_v2", code)
    }

    pub(crate) fn write(&self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        let _entered = self.enter()?;
        let api = self.api();
        // SAFETY: A foreign call, which reads as many bytes as the slice has. A range of the device that is not
        // mapped for writing is an error.
        let code = unsafe { (api.functions.cuMemcpyHtoD_v2)(to, from.as_ptr().cast(), from.len()) };
        api.check("cuMemcpyHtoD_v2", code)?;
        // From pageable memory the call returns once the bytes are staged: another process would still read the
        // old ones. A read behind it returns when both are done.
        self.read(to, &mut [0; 1])
    }
}
