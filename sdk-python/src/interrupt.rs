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
    /// The interrupts of the blocks that this thread is in. The innermost counts.
    static INTERRUPTS: RefCell<Vec<Arc<AtomicBool>>> = const { RefCell::new(Vec::new()) };
}

/// Ends the calls of one thread from another. Once it is set, calls inside of a `with` block of it raise
/// `InterruptedError`, and what they had begun is undone. Inside of it the thread heeds no signal. For `vramd.aio`, whose
/// tasks may be cancelled, and for work that must end soon after a failure.
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
        INTERRUPTS.with_borrow_mut(|it| it.push(Arc::clone(&self.0)));
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyAny>) {
        INTERRUPTS.with_borrow_mut(|it| it.pop());
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

/// Drops something whose end is sent to the daemon. Without the GIL, so that a daemon that reads nothing stalls one thread
/// alone.
pub(crate) fn drop_without_gil<T: Send>(it: T) {
    let mut it = Some(it);
    // While the interpreter ends there is no GIL to give up, and `it` is dropped here.
    let _ = Python::try_attach(|py| py.detach(|| drop(it.take())));
}

/// Whether the call of this thread is to end.
fn check() -> bool {
    // This needs no GIL.
    if let Some(is_set) = INTERRUPTS.with_borrow(|it| it.last().map(|it| it.load(Ordering::Relaxed))) {
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
