//! Pressure reports on their way from the SDK to a program's own Python function.
//!
//! A daemon thread of Python calls the function (`vramd/_pressure_stream.py`), not the SDK's thread, because an interpreter may
//! end during the call. Before Python 3.14 the interpreter unwinds a thread that returns into it after its end. Such a thread
//! must have no Rust frames below the call, or they would touch freed state. Below the function this thread has only Python
//! frames. It is in Rust only while it waits for the next report; pyo3 parks it for ever if the interpreter ends meanwhile.

use std::{
    mem, process,
    sync::{
        Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
};

use pyo3::{exceptions::PyTypeError, prelude::*};

use crate::info::Pressure;

/// The reports, one after the other. While the function runs the SDK keeps the newest report of each device and tier.
#[pyclass(frozen, name = "_PressureStream", module = "vramd._native")]
pub(crate) struct PressureStream {
    process: u32,
    reports: Mutex<Receiver<Report>>,
    /// The call of the function that is running.
    running: Mutex<Option<Running>>,
}

struct Report {
    pressure: vramd_client::Pressure,
    running: Running,
}

/// Dropping it lets the SDK's pressure thread go on.
struct Running(#[expect(dead_code, reason = "only its drop matters")] Sender<()>);

#[pymethods]
impl PressureStream {
    /// Returns the next report, and so acknowledges the one before it; `None` at the end of the session.
    fn next(&self, py: Python<'_>) -> Option<Pressure> {
        let last = lock(&self.running).take();
        if process::id() != self.process {
            // The function forked. No thread of the child waits for `last`, and a thread of the parent may hold the channel's
            // lock.
            mem::forget(last);
            return None;
        }
        drop(last);
        let report = py.detach(|| lock(&self.reports).recv()).ok()?;
        *lock(&self.running) = Some(report.running);
        Some(Pressure::from(&report.pressure))
    }
}

/// Returns the callback for the SDK and the stream that its reports come out of. The callback returns once the Python function
/// has handled the report.
pub(crate) fn channel() -> (impl Fn(vramd_client::Pressure) + Send + Sync + use<>, PressureStream) {
    let (sender, reports) = mpsc::channel();
    let call = move |pressure| {
        let (running, is_over) = mpsc::channel();
        if sender.send(Report { pressure, running: Running(running) }).is_ok() {
            // Nothing is ever sent: this returns when `running` is dropped.
            let _ = is_over.recv();
        }
    };
    (call, PressureStream { process: process::id(), reports: Mutex::new(reports), running: Mutex::new(None) })
}

/// Starts the thread, which ends with the session.
pub(crate) fn start(py: Python<'_>, stream: PressureStream, on_pressure: Py<PyAny>) -> PyResult<()> {
    py.import("vramd._pressure_stream")?.call_method1("start", (Py::new(py, stream)?, on_pressure))?;
    Ok(())
}

pub(crate) fn check_callable(on_pressure: &Bound<'_, PyAny>) -> PyResult<()> {
    if on_pressure.is_callable() {
        return Ok(());
    }
    Err(PyTypeError::new_err("`on_pressure` must be a callable that takes one `Pressure`"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
