//! `vramd.PinSet`: pins of several allocations, taken together.

use pyo3::{exceptions::PyTypeError, prelude::*, types::PyTuple};

use crate::{error::Fault, pin::Pin, view::View};

/// Pins that were taken together, all or none. Each can be released on its own.
#[pyclass(frozen, module = "vramd")]
#[derive(Debug)]
pub(crate) struct PinSet {
    pins: Vec<Py<Pin>>,
}

impl PinSet {
    pub(crate) fn new(py: Python<'_>, views: Vec<View>) -> PyResult<Self> {
        let pins: Vec<_> = views.into_iter().map(Pin::new).collect::<Result<_, Fault>>()?;
        Ok(Self { pins: pins.into_iter().map(|pin| Py::new(py, pin)).collect::<PyResult<_>>()? })
    }
}

#[pymethods]
impl PinSet {
    #[getter]
    fn pins<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.pins)
    }

    fn release(&self) {
        self.pins.iter().for_each(|pin| pin.get().release());
    }

    #[pyo3(signature = (*streams))]
    fn unpin_after(&self, py: Python<'_>, streams: Vec<u64>) -> PyResult<()> {
        Ok(self.pins.iter().try_for_each(|pin| pin.get().unpin_if_pinned(py, &streams))?)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyAny>) {
        self.release();
    }

    fn __repr__(&self) -> String {
        format!("<vramd.PinSet of {}>", self.pins.len())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a pin belongs to its process: pin what is attached there"))
    }
}
