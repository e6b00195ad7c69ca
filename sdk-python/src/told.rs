//! What is told of pressure, on its way to a program's own function.
//!
//! A thread of Python's takes it there (`vramd/_told.py`), not the SDK's, for the sake of interpreters that end while it is told.
//! Until Python 3.14 a thread that comes back into one is unwound, and may have no frames of ours below it: they would touch what is
//! no more. Below the function that thread has Python's alone. Here it is only while it waits, and who comes back from that too late
//! is kept for ever by pyo3.

use std::{
    mem, process,
    sync::{
        Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
};

use pyo3::{exceptions::PyTypeError, prelude::*};

use crate::info::Pressure;

/// Where the thread waits for what is told. It hears one after the other, and while it does the SDK keeps the newest.
#[pyclass(frozen, name = "_Told", module = "vramd._native")]
pub(crate) struct Told {
    process: u32,
    calls: Mutex<Receiver<Call>>,
    /// Of the call that runs.
    running: Mutex<Option<Running>>,
}

struct Call {
    pressure: vramd_client::Pressure,
    running: Running,
}

/// The SDK waits until it is dropped.
struct Running(#[expect(dead_code, reason = "its end is what is told")] Sender<()>);

#[pymethods]
impl Told {
    /// The next, which is also to say that the last one was heard; `None` at the end of the session.
    fn next(&self, py: Python<'_>) -> Option<Pressure> {
        let last = lock(&self.running).take();
        if process::id() != self.process {
            // Forked by the function. Nobody waits for it here, and the locks of channels may be held by threads that are not here.
            mem::forget(last);
            return None;
        }
        drop(last);
        let call = py.detach(|| lock(&self.calls).recv()).ok()?;
        *lock(&self.running) = Some(call.running);
        Some(Pressure::from(&call.pressure))
    }
}

/// What the SDK calls, and where the thread waits for it.
pub(crate) fn channel() -> (impl Fn(vramd_client::Pressure) + Send + Sync + use<>, Told) {
    let (told, calls) = mpsc::channel();
    let call = move |pressure| {
        let (running, is_over) = mpsc::channel();
        if told.send(Call { pressure, running: Running(running) }).is_ok() {
            // Nothing is ever sent: it ends when the other end does.
            let _ = is_over.recv();
        }
    };
    (call, Told { process: process::id(), calls: Mutex::new(calls), running: Mutex::new(None) })
}

/// Begins the thread, which ends with the session.
pub(crate) fn start(py: Python<'_>, told: Told, on_pressure: Py<PyAny>) -> PyResult<()> {
    py.import("vramd._told")?.call_method1("start", (Py::new(py, told)?, on_pressure))?;
    Ok(())
}

pub(crate) fn check_callable(on_pressure: &Bound<'_, PyAny>) -> PyResult<()> {
    if on_pressure.is_callable() {
        return Ok(());
    }
    Err(PyTypeError::new_err("`on_pressure` is called with each pressure, and this cannot be called"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
