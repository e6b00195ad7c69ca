//! A pool of managed memory: each segment is allocated in this process, and charged to its tenant.

use std::{
    collections::BTreeMap,
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pyo3::prelude::*;
use vramd_client::{Bytes, Client as Sdk, ManagedFailure, ManagedMemory, ManagedRequest};

use super::{
    pool::device_of,
    symbols::{self, Allocator},
};
use crate::{
    arguments::{self, DeviceName},
    client::Client,
    error::Fault,
    shared::check_process,
};

#[derive(Debug)]
struct ManagedPool {
    client: Sdk,
    /// UUID.
    device: String,
    /// The number of the device in PyTorch.
    ordinal: i32,
    wait: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By their addresses.
    segments: BTreeMap<u64, ManagedMemory>,
    /// How often each step has failed, with the driver's reason.
    failures: BTreeMap<String, u64>,
    /// Why the last allocation failed.
    refusal: Option<Fault>,
    closed: bool,
}

impl ManagedPool {
    fn try_alloc(&self, size: isize, device: i32, stream: u64) -> Result<usize, Fault> {
        let invalid = || Fault::unfitting(format!("a segment cannot have {size} bytes"));
        let asked = u64::try_from(size).ok().filter(|size| *size > 0).ok_or_else(invalid)?;
        if device != self.ordinal {
            let problem =
                format!("the pool is on device {}, and device {device} was asked for", self.ordinal);
            return Err(Fault::unfitting(problem));
        }
        self.check_open()?;
        let request = ManagedRequest::new(Bytes::new(asked)).device(&*self.device);
        let memory = self.client.allocate_managed(request.stream(stream).wait(self.wait))?;
        let address = memory.as_device_ptr();
        let mut state = self.lock();
        state.count(memory.failures());
        if state.closed {
            // Freed after the lock.
            drop(state);
            self.check_open()?;
            return Err(invalid());
        }
        state.segments.insert(address, memory);
        usize::try_from(address).map_err(|_| invalid())
    }

    fn check_open(&self) -> Result<(), Fault> {
        if self.lock().closed { Err(Fault::unfitting("the pool is closed")) } else { Ok(()) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn count(&mut self, failures: &[ManagedFailure]) {
        for ManagedFailure { step, problem } in failures {
            *self.failures.entry(format!("{step}: {problem}")).or_default() += 1;
        }
    }
}

impl Allocator for ManagedPool {
    fn alloc(&self, size: isize, device: i32, stream: u64) -> Option<usize> {
        match self.try_alloc(size, device, stream) {
            Ok(address) => Some(address),
            Err(error) => {
                self.lock().refusal = Some(error);
                None
            }
        }
    }

    /// An address at which no segment begins is ignored, as one that was freed before.
    fn free(&self, address: usize, stream: u64) {
        let Some(memory) = self.lock().segments.remove(&(address as u64)) else { return };
        // No lock is held while the stream is waited for.
        let failures = memory.free(stream);
        self.lock().count(&failures);
    }

    fn is_over(&self) -> bool {
        let state = self.lock();
        state.closed && state.segments.is_empty()
    }
}

/// The native half of `vramd.torch.ManagedPool`.
#[pyclass(frozen, module = "vramd._native", name = "_ManagedPool")]
#[derive(Debug)]
pub(crate) struct ManagedPoolObject {
    pid: u32,
    pool: Arc<ManagedPool>,
    slot: usize,
}

impl ManagedPoolObject {
    fn state(&self) -> Result<MutexGuard<'_, State>, Fault> {
        check_process(self.pid)?;
        Ok(self.pool.lock())
    }
}

#[pymethods]
impl ManagedPoolObject {
    #[new]
    #[pyo3(signature = (client, *, device = None, wait))]
    fn new(client: &Client, device: Option<DeviceName>, wait: f64) -> PyResult<Self> {
        let (client, wait) = (client.sdk()?, arguments::wait(wait)?);
        let (device, ordinal) = device_of(&client, device.map(|device| device.0).as_deref())?;
        let pool = Arc::new(ManagedPool { client, device, ordinal, wait, state: Mutex::default() });
        let slot = symbols::occupy_or_raise(&pool)?;
        Ok(Self { pid: process::id(), pool, slot })
    }

    /// The names of its symbols: to allocate and to free.
    #[getter]
    fn symbols(&self) -> (String, String) {
        symbols::names_of(self.slot)
    }

    #[getter]
    fn device(&self) -> &str {
        &self.pool.device
    }

    #[getter]
    fn ordinal(&self) -> i32 {
        self.pool.ordinal
    }

    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        Ok(self.state()?.segments.values().map(|memory| memory.size().get()).sum())
    }

    #[getter]
    fn failures(&self) -> PyResult<BTreeMap<String, u64>> {
        Ok(self.state()?.failures.clone())
    }

    /// Whether a segment of the pool has this address.
    fn contains(&self, address: u64) -> PyResult<bool> {
        let state = self.state()?;
        let found = state.segments.range(..=address).next_back();
        Ok(found.is_some_and(|(at, memory)| address - at < memory.size().get()))
    }

    /// Why the last allocation failed, once; as an exception.
    fn take_refusal(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let refusal = self.state()?.refusal.take();
        Ok(refusal.map(|error| PyErr::from(error).into_value(py).into_any()))
    }

    /// Refuses further allocations. Its symbols are free again once PyTorch has freed all of its memory.
    fn close(&self) {
        if self.pid == process::id() {
            self.pool.lock().closed = true;
            symbols::vacate(self.slot);
        }
    }
}

impl Drop for ManagedPoolObject {
    fn drop(&mut self) {
        self.close();
    }
}
