//! `vramd.Memory`: the common base of open and sealed allocations.

use std::{ffi::c_int, sync::Arc};

use pyo3::{exceptions::PyTypeError, ffi, prelude::*};
use vramd_client::Access;

use crate::{
    arguments::{self, Parts},
    buffer, copy,
    dlpack::{self, ExportRequest},
    dtype::DType,
    held::{Held, Spot},
    info::AllocationInfo,
    pin::Pin,
    shared::{Handle, Shared},
    tensor::{Shape, Tensor},
    view::PinRequest,
};

/// Mapped memory that the daemon owns.
#[pyclass(frozen, subclass, module = "vramd")]
#[derive(Debug)]
pub(crate) struct Memory {
    shared: Arc<Shared>,
}

impl Memory {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

#[pymethods]
impl Memory {
    #[getter]
    fn id(&self) -> u64 {
        self.shared.id().get()
    }

    /// Frees the allocation although this object no longer has it, as after a seal whose result is lost. Its owner may.
    fn _free_by_id(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.shared.free_by_id(py)?)
    }

    #[getter]
    fn name(&self) -> Option<&str> {
        self.shared.facts.info.name.as_deref()
    }

    #[getter]
    fn size(&self) -> usize {
        self.shared.facts.size
    }

    #[getter]
    fn part_count(&self) -> usize {
        self.shared.facts.info.parts.len()
    }

    #[getter]
    fn device(&self) -> &str {
        &self.shared.facts.info.device
    }

    #[getter]
    fn device_ptr(&self) -> usize {
        self.shared.facts.address()
    }

    #[getter]
    fn is_device_memory(&self) -> bool {
        self.shared.facts.is_device()
    }

    #[getter]
    fn info(&self) -> AllocationInfo {
        AllocationInfo::from(&self.shared.facts.info)
    }

    #[getter]
    fn is_mapped(&self, py: Python<'_>) -> bool {
        // After a seal, free, detach or fork, this object maps nothing.
        self.shared.read(py, |handle| Ok(Handle::is_mapped(handle))).unwrap_or(false)
    }

    #[getter]
    fn has_handle_pin(&self, py: Python<'_>) -> bool {
        self.shared.read(py, |handle| Ok(Handle::has_handle_pin(handle))).unwrap_or(false)
    }

    fn repin(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.shared.write(py, Handle::repin)?)
    }

    fn unpin(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.shared.write(py, Handle::unpin)?)
    }

    #[pyo3(signature = (advice = None, *, parts = None, importance_percent = None, memory_class = None,
                        needed_within = None, location = None, pattern = None, preset = None))]
    #[allow(clippy::too_many_arguments, reason = "they are keyword arguments in Python")]
    fn advise(
        &self,
        py: Python<'_>,
        advice: Option<&str>,
        parts: Option<Parts>,
        importance_percent: Option<u8>,
        memory_class: Option<&str>,
        needed_within: Option<f64>,
        location: Option<&str>,
        pattern: Option<&str>,
        preset: Option<&str>,
    ) -> PyResult<()> {
        let values = arguments::AdviceValues {
            importance_percent,
            memory_class,
            needed_within,
            location,
            pattern,
            preset,
        };
        let advice = arguments::advice(advice, &values)?;
        let parts = parts.map(|parts| parts.0);
        Ok(self.shared.read(py, |handle| handle.advise(parts, advice))?)
    }

    #[pyo3(signature = (tier = "host"))]
    fn evict(&self, py: Python<'_>, tier: &str) -> PyResult<()> {
        let tier = arguments::tier("tier", tier)?;
        Ok(self.shared.read(py, |handle| handle.evict(tier))?)
    }

    #[pyo3(signature = (*, parts = None, write = false, wait = None))]
    fn pin(&self, py: Python<'_>, parts: Option<Parts>, write: bool, wait: Option<f64>) -> PyResult<Pin> {
        let access = if write { Access::Write } else { Access::Read };
        let request = PinRequest { access, wait: wait.map(arguments::wait).transpose()? };
        Ok(Pin::new(self.shared.pin_view(py, parts.map(|parts| parts.0), request)?)?)
    }

    #[pyo3(signature = (offset = 0, length = None))]
    fn copy_to<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        copy::to_bytes(py, &self.shared, offset, length)
    }

    #[pyo3(signature = (buffer, offset = 0))]
    fn copy_into(&self, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<()> {
        copy::to_buffer(buffer, &self.shared, offset)
    }

    #[pyo3(
        signature = (shape = None, dtype = DType::U8, offset = 0),
        text_signature = "($self, shape=None, dtype='uint8', offset=0)"
    )]
    fn tensor(&self, py: Python<'_>, shape: Option<Shape>, dtype: DType, offset: usize) -> PyResult<Tensor> {
        let whole = 0..self.shared.facts.size;
        Tensor::within(py, &self.shared, whole, self.shared.access(), shape, dtype, offset)
    }

    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let request = ExportRequest { stream, max_version, dl_device, copy };
        self.tensor(py, None, DType::U8, 0)?.export(py, &request)
    }

    fn __dlpack_device__(&self, py: Python<'_>) -> PyResult<(i32, i32)> {
        if !self.shared.facts.is_placed() {
            // The device is known once a part has arrived.
            drop(self.shared.view(py)?);
        }
        dlpack::device(Spot::of(&self.shared.facts))
    }

    fn __len__(&self) -> usize {
        self.shared.facts.size
    }

    fn __bool__(&self) -> bool {
        true
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let class = slf.get_type().qualname()?;
        let facts = &slf.get().shared.facts;
        let name = facts.info.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
        let (id, size, device) = (facts.info.id, facts.size, &facts.info.device);
        Ok(format!("<vramd.{class} {id}{name}: {size} bytes on {device}>"))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a mapping belongs to its process: attach the allocation by its name there"))
    }

    /// Only for memory that the CPU can access.
    // SAFETY: The buffer protocol makes it unsafe. The interpreter alone calls it, with a view to be filled.
    #[expect(unsafe_code, reason = "the buffer protocol is a C interface")]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let shared = &slf.get().shared;
        let filled = buffer::cpu_view(slf.py(), shared, None, shared.access())?;
        // SAFETY: needed to pass on what the interpreter passes: a view to be filled, and its flags.
        unsafe { buffer::fill(slf.into_any(), Held::Allocation(filled), view, flags) }
    }

    #[expect(unsafe_code, reason = "the buffer protocol is a C interface")]
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: needed to pass on what the interpreter passes: a view that `__getbuffer__` has filled, once.
        unsafe { buffer::release(view) }
    }
}
