//! `vramd.Sealed`: memory that no session can write any more.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::{info::Released, memory::Memory, shared::Shared};

/// Memory that no session can write any more, mapped read-only. Dropping it detaches the session.
#[pyclass(frozen, extends = Memory, module = "vramd")]
#[derive(Debug)]
pub(crate) struct Sealed;

impl Sealed {
    pub(crate) fn create(py: Python<'_>, shared: Arc<Shared>) -> PyResult<Py<Self>> {
        Py::new(py, PyClassInitializer::from(Memory::new(shared)).add_subclass(Self))
    }
}

#[pymethods]
impl Sealed {
    #[getter]
    fn digest(slf: &Bound<'_, Self>) -> String {
        slf.as_super().get().shared().facts.info.digest.clone().unwrap_or_default()
    }

    fn free(slf: &Bound<'_, Self>) -> PyResult<Released> {
        Ok(slf.as_super().get().shared().free(slf.py())?.into())
    }

    fn detach(slf: &Bound<'_, Self>) -> PyResult<()> {
        Ok(slf.as_super().get().shared().detach(slf.py())?)
    }
}
