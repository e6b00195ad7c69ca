//! A `with` block whose end Ctrl-C cannot skip.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
};

use pyo3::{
    prelude::*,
    types::{PyDict, PyTuple, PyType},
};

/// The base of context managers in Python that hold something for the length of a block.
///
/// `_begin` returns the value of the `with` statement and what `_end` gets, before the error of the block; by default
/// these are the object itself and nothing. Python may run a signal's handler before the first instruction of any of its
/// functions, so an `__exit__` in Python can be kept from doing anything. This one calls `_end` again after a failure. So
/// `_end` does nothing once it has been done. It follows that `_begin` undoes itself if it fails.
#[pyclass(frozen, subclass, module = "vramd._native", name = "_Scope")]
#[derive(Debug)]
pub(crate) struct Scope {
    /// The state of the open blocks of each thread; of one thread, the innermost comes last. Locked for a moment only.
    begun: Mutex<Vec<(ThreadId, Py<PyAny>)>>,
}

impl Scope {
    fn lock(&self) -> MutexGuard<'_, Vec<(ThreadId, Py<PyAny>)>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Py<PyAny>> {
        let mut begun = self.lock();
        // A block may end in another thread than it began in: generators and frameworks close it there.
        let of_thread = begun.iter().rposition(|(thread, _)| *thread == thread::current().id());
        let last = of_thread.or_else(|| begun.len().checked_sub(1))?;
        Some(begun.remove(last).1)
    }
}

#[pymethods]
impl Scope {
    #[new]
    #[pyo3(signature = (*_arguments, **_named))]
    fn new(_arguments: &Bound<'_, PyTuple>, _named: Option<&Bound<'_, PyDict>>) -> Self {
        Self { begun: Mutex::default() }
    }

    /// Types are for type checkers alone.
    #[classmethod]
    fn __class_getitem__(cls: &Bound<'_, PyType>, _types: &Bound<'_, PyAny>) -> Py<PyType> {
        cls.clone().unbind()
    }

    /// For what has begun before.
    fn _begin<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, Self>, Option<Py<PyAny>>) {
        (slf.clone(), None)
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (value, begun): (Bound<'py, PyAny>, Py<PyAny>) = slf.call_method0("_begin")?.extract()?;
        slf.get().lock().push((thread::current().id(), begun));
        Ok(value)
    }

    #[pyo3(signature = (_kind = None, error = None, _trace = None))]
    fn __exit__(
        slf: &Bound<'_, Self>,
        _kind: Option<&Bound<'_, PyAny>>,
        error: Option<&Bound<'_, PyAny>>,
        _trace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let Some(begun) = slf.get().take() else { return Ok(()) };
        let end = || slf.call_method1("_end", (&begun, error)).map(drop);
        end().inspect_err(|_| {
            // If this one fails too, it fails for the reason that the first has given.
            let _ = end();
        })
    }
}
