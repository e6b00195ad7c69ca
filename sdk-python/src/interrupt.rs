//! Ctrl-C ends a call that waits: Python's signal handlers run during the wait, and their exception ends it.

use std::cell::RefCell;

use pyo3::prelude::*;
use vramd_client::interruptible;

use crate::error::Fault;

thread_local! {
    /// The exception that a handler raised during the call of this thread.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Runs a call of the SDK without the GIL. Only the main thread handles signals, so only its calls end early.
pub(crate) fn without_gil<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Fault> + Send,
) -> Result<T, Fault> {
    let outcome = py.detach(|| interruptible(check_signals, work));
    match RAISED.take() {
        None => outcome,
        // The call may have ended well at the same moment. Its memory is released like that of a lost object.
        Some(raised) => Err(Fault::raised(raised)),
    }
}

/// Runs handlers of signals that have arrived; true if one has raised.
fn check_signals() -> bool {
    match Python::attach(|py| py.check_signals()) {
        Ok(()) => false,
        Err(raised) => {
            RAISED.set(Some(raised));
            true
        }
    }
}
