//! A program's own function, which the SDK calls when it is told of pressure.
//!
//! It is called on a thread of the SDK's, which has the GIL for that alone. An interpreter that ends must not find such a
//! thread on its way in: at the exit no more calls are begun, and those that run are waited for, though not for ever. A forked
//! child has none of its parent's threads, so it waits for none of its parent's calls.

use std::{
    process,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use pyo3::{exceptions::PyTypeError, prelude::*};

use crate::info::Pressure;

/// How long the exit waits for a function that does not come back.
const EXIT_PATIENCE: Duration = Duration::from_secs(1);

/// How many calls run, below the number of the process in which they do.
static RUNNING: AtomicU64 = AtomicU64::new(0);
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
        let running = Running::begin();
        if !IS_EXIT.load(Ordering::SeqCst) {
            Python::try_attach(|py| {
                if let Err(error) = call.call1(py, (Pressure::from(&told),)) {
                    error.write_unraisable(py, Some(call.bind(py)));
                }
            });
        }
        running.end();
    })
}

/// For `atexit`.
#[pyfunction]
pub(crate) fn end_calls(py: Python<'_>) {
    IS_EXIT.store(true, Ordering::SeqCst);
    py.detach(|| {
        let begun = Instant::now();
        while Running::any() && begun.elapsed() < EXIT_PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// One call, of the process that began it: a child that is forked in it ends it too.
struct Running {
    process: u32,
}

impl Running {
    fn begin() -> Self {
        let process = process::id();
        Self::change(|running| packed(process, count_in(process, running) + 1));
        Self { process }
    }

    fn end(self) {
        Self::change(|running| match count_in(self.process, running) {
            // A child has counted calls of its own since.
            0 => running,
            count => packed(self.process, count - 1),
        });
    }

    fn any() -> bool {
        count_in(process::id(), RUNNING.load(Ordering::SeqCst)) > 0
    }

    fn change(change: impl Fn(u64) -> u64) {
        let _ = RUNNING.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |running| Some(change(running)));
    }
}

fn packed(process: u32, count: u32) -> u64 {
    (u64::from(process) << 32) | u64::from(count)
}

/// What was counted in another process counts for nothing.
fn count_in(process: u32, running: u64) -> u32 {
    let [counted_in, count] = [running >> 32, running & u64::from(u32::MAX)];
    if counted_in == u64::from(process) { u32::try_from(count).unwrap_or(u32::MAX) } else { 0 }
}
