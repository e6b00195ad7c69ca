//! PyTorch's allocator over memory of the daemon: `symbols` are what PyTorch calls, a `pool` is what they call, and an
//! `arena` is one allocation of the daemon, from which a pool carves. A `managed` pool has memory of this process that the
//! daemon charges.

mod arena;
mod managed;
mod pool;
mod symbols;
mod watch;

use std::{process, sync::Arc};

use pyo3::prelude::*;

use crate::{
    arguments::{self, DeviceName, Size},
    client::Client,
    error::Fault,
    interrupt::without_gil,
    shared::check_process,
};
pub(crate) use managed::ManagedPoolObject;
use pool::{Pool, Settings};
pub(crate) use watch::SignalWatch;

/// The native half of `vramd.torch.Pool`.
#[pyclass(frozen, module = "vramd._native", name = "_Pool")]
#[derive(Debug)]
pub(crate) struct PoolObject {
    pid: u32,
    pool: Arc<Pool>,
    slot: usize,
}

impl PoolObject {
    fn pool(&self) -> Result<&Arc<Pool>, Fault> {
        check_process(self.pid)?;
        Ok(&self.pool)
    }
}

#[pymethods]
impl PoolObject {
    #[new]
    #[pyo3(signature = (client, *, device = None, arena, wait))]
    fn new(client: &Client, device: Option<DeviceName>, arena: Size, wait: f64) -> PyResult<Self> {
        let device = device.map(|device| device.0);
        let settings = Settings { device, arena: arena.0, wait: arguments::wait(wait)? };
        let pool = Arc::new(Pool::new(client.sdk()?, settings)?);
        let slot = symbols::occupy_or_raise(&pool)?;
        Ok(Self { pid: process::id(), pool, slot })
    }

    /// The UUID of the device that has this number in PyTorch.
    #[staticmethod]
    fn uuid_of(client: &Client, device: DeviceName) -> PyResult<String> {
        Ok(pool::device_of(&client.sdk()?, Some(&device.0))?.0)
    }

    /// The names of its symbols: to allocate and to free.
    #[getter]
    fn symbols(&self) -> (String, String) {
        symbols::names_of(self.slot)
    }

    #[getter]
    fn device(&self) -> &str {
        self.pool.device()
    }

    #[getter]
    fn ordinal(&self) -> i32 {
        self.pool.ordinal()
    }

    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        Ok(self.pool()?.nbytes())
    }

    #[getter]
    fn used(&self) -> PyResult<u64> {
        Ok(self.pool()?.used())
    }

    #[getter]
    fn is_awake(&self) -> PyResult<bool> {
        Ok(self.pool()?.is_awake())
    }

    /// Whether the pool has memory at this address, mapped or not.
    fn contains(&self, address: u64) -> PyResult<bool> {
        Ok(self.pool()?.contains(address))
    }

    fn sleep(&self, py: Python<'_>, discard: bool) -> PyResult<()> {
        let pool = self.pool()?;
        Ok(without_gil(py, || pool.sleep(discard))?)
    }

    fn wake_up(&self, py: Python<'_>, wait: f64) -> PyResult<()> {
        let (pool, wait) = (self.pool()?, arguments::wait(wait)?);
        Ok(without_gil(py, || pool.wake_up(wait))?)
    }

    /// Why the last allocation failed, once; as an exception.
    fn take_refusal(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let refusal = self.pool()?.take_refusal();
        Ok(refusal.map(|error| PyErr::from(error).into_value(py).into_any()))
    }

    /// Refuses further allocations. Its symbols are free again once PyTorch has freed all of its memory.
    fn close(&self) {
        if self.pid == process::id() {
            self.pool.close();
            symbols::vacate(self.slot);
        }
    }
}

impl Drop for PoolObject {
    fn drop(&mut self) {
        self.close();
    }
}
