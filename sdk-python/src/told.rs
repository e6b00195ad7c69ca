//! A program's own function, which the SDK calls when it is told of pressure.
//!
//! It is called on a thread of the SDK's, which has the GIL for that alone. An interpreter that ends must not find such a
//! thread on its way in: at the exit no more calls are begun, and those that run are waited for, though not for ever.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use pyo3::{exceptions::PyTypeError, prelude::*};

use crate::info::Pressure;

/// How long the exit waits for a function that does not come back.
const EXIT_PATIENCE: Duration = Duration::from_secs(1);

static RUNNING: AtomicUsize = AtomicUsize::new(0);
static IS_EXIT: AtomicBool = AtomicBool::new(false);

/// Calls it with each pressure that is told. What it raises is reported as what nobody can catch.
pub(crate) fn on_pressure(
    call: Py<PyAny>,
    py: Python<'_>,
) -> PyResult<impl Fn(vramd_client::Pressure) + Send + Sync + use<>> {
    if !call.bind(py).is_callable() {
        return Err(PyTypeError::new_err(
            "`on_pressure` is called with each pressure, and this cannot be called",
        ));
    }
    Ok(move |told: vramd_client::Pressure| {
        // Both in one order for all threads: either the exit sees this call, or this call the exit.
        RUNNING.fetch_add(1, Ordering::SeqCst);
        if !IS_EXIT.load(Ordering::SeqCst) {
            Python::try_attach(|py| {
                if let Err(error) = call.call1(py, (Pressure::from(&told),)) {
                    error.write_unraisable(py, Some(call.bind(py)));
                }
            });
        }
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    })
}

/// For `atexit`.
#[pyfunction]
pub(crate) fn end_calls(py: Python<'_>) {
    IS_EXIT.store(true, Ordering::SeqCst);
    py.detach(|| {
        let begun = Instant::now();
        while RUNNING.load(Ordering::SeqCst) > 0 && begun.elapsed() < EXIT_PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
    });
}
