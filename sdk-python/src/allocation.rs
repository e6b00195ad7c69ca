//! `vramd.Allocation`: memory of this session alone, to be written and then sealed.

use std::sync::Arc;

use pyo3::prelude::*;
use vramd_client::Error;

use crate::{
    copy,
    info::Released,
    memory::Memory,
    sealed::Sealed,
    shared::{Handle, Shared},
    staging::StagingBuffer,
};

/// Memory of this session alone, mapped for reading and writing. Dropping it unsealed frees it.
#[pyclass(frozen, extends = Memory, module = "vramd")]
#[derive(Debug)]
pub(crate) struct Allocation;

impl Allocation {
    pub(crate) fn create(py: Python<'_>, shared: Arc<Shared>) -> PyResult<Py<Self>> {
        Py::new(py, PyClassInitializer::from(Memory::new(shared)).add_subclass(Self))
    }
}

#[pymethods]
impl Allocation {
    #[pyo3(signature = (buffer, offset = 0))]
    fn copy_from(slf: &Bound<'_, Self>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<()> {
        copy::from_buffer(buffer, slf.as_super().get().shared(), offset)
    }

    fn staging_buffer(slf: &Bound<'_, Self>, size: usize) -> PyResult<StagingBuffer> {
        let made = slf.as_super().get().shared().write(slf.py(), |handle| match handle {
            Handle::Open(allocation) => allocation.staging_buffer(size),
            Handle::Sealed(sealed) => Err(Error::NotMapped { allocation: sealed.id().to_string() }),
        });
        Ok(StagingBuffer::new(made?))
    }

    fn seal(slf: &Bound<'_, Self>) -> PyResult<Py<Sealed>> {
        let sealed = slf.as_super().get().shared().seal(slf.py())?;
        Sealed::create(slf.py(), sealed)
    }

    fn free(slf: &Bound<'_, Self>) -> PyResult<Released> {
        Ok(slf.as_super().get().shared().free(slf.py())?.into())
    }
}
