//! Ends calls that wait: by Ctrl-C in the main thread, and by an [`Interrupt`] in any other.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use pyo3::prelude::*;
use vramd_client::interruptible;

use crate::error::Fault;

thread_local! {
    /// The exception that a handler raised during the call of this thread.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// The interrupt of the block that this thread is in.
    static INTERRUPT: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Ends the calls of one thread from another. Once it is set, calls inside of a `with` block of it raise
/// `InterruptedError`, and what they had begun is undone. For `vramd.aio`, whose tasks may be cancelled.
#[pyclass(frozen, module = "vramd._native", name = "_Interrupt")]
pub(crate) struct Interrupt(Arc<AtomicBool>);

#[pymethods]
impl Interrupt {
    #[new]
    fn new() -> Self {
        Self(Arc::default())
    }

    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn __enter__(&self) {
        INTERRUPT.set(Some(Arc::clone(&self.0)));
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyAny>) {
        INTERRUPT.set(None);
    }
}

/// Runs a call of the SDK without the GIL. Only the main thread handles signals.
pub(crate) fn without_gil<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Fault> + Send,
) -> Result<T, Fault> {
    let outcome = py.detach(|| interruptible(check, work));
    match RAISED.take() {
        None => outcome,
        // The call may have ended well at the same moment. Its memory is released like that of a lost object.
        Some(raised) => Err(Fault::raised(raised)),
    }
}

/// Whether the call of this thread is to end.
fn check() -> bool {
    // A thread with an interrupt is not the main thread, and needs no GIL for this.
    if let Some(is_set) = INTERRUPT.with_borrow(|it| it.as_ref().map(|it| it.load(Ordering::Relaxed))) {
        return is_set;
    }
    match Python::attach(|py| py.check_signals()) {
        Ok(()) => false,
        Err(raised) => {
            RAISED.set(Some(raised));
            true
        }
    }
}
