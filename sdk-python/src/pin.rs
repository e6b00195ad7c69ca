//! `vramd.Pin`: memory that stays where it is while a program's own kernels use it.

use std::{
    ffi::c_int,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use pyo3::{exceptions::PyTypeError, ffi, prelude::*, types::PyRange};
use vramd_client::Access;

use crate::{
    buffer,
    dtype::DType,
    error::Fault,
    held::Held,
    shared::check_process,
    tensor::{Shape, Tensor},
    view::View,
};

/// As long as it is not released, the memory stays mapped at its address.
#[pyclass(frozen, weakref, module = "vramd")]
#[derive(Debug)]
pub(crate) struct Pin {
    pid: u32,
    size: usize,
    /// Locked for a moment only, never during a wait.
    view: Mutex<Option<View>>,
}

impl Pin {
    pub(crate) fn new(view: View) -> Result<Self, Fault> {
        let (pid, size) = (std::process::id(), view.len()?);
        Ok(Self { pid, size, view: Mutex::new(Some(view)) })
    }

    /// The pinned memory, unless it was released.
    pub(crate) fn take(&self) -> Option<View> {
        self.lock().take()
    }

    /// Releases it after these streams, or keeps it.
    fn unpin(&self, py: Python<'_>, view: View, streams: &[u64]) -> Result<(), Fault> {
        py.detach(|| view.unpin_after(streams)).map_err(|failed| {
            let (view, error) = *failed;
            *self.lock() = Some(view);
            Fault::from(error)
        })
    }

    /// The same, unless it was released.
    pub(crate) fn unpin_if_pinned(&self, py: Python<'_>, streams: &[u64]) -> Result<(), Fault> {
        check_process(self.pid)?;
        self.take().map_or(Ok(()), |view| self.unpin(py, view, streams))
    }

    fn lock(&self) -> MutexGuard<'_, Option<View>> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_view<T>(&self, work: impl FnOnce(&View) -> T) -> Result<T, Fault> {
        check_process(self.pid)?;
        self.lock().as_ref().map(work).ok_or_else(released)
    }
}

#[pymethods]
impl Pin {
    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    #[getter]
    fn device_ptr(&self) -> PyResult<usize> {
        Ok(self.with_view(View::address)??)
    }

    #[getter]
    fn parts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyRange>> {
        let parts = self.with_view(View::parts)?;
        let small = |part: u32| isize::try_from(part).unwrap_or(isize::MAX);
        PyRange::new(py, small(parts.start), small(parts.end))
    }

    #[getter]
    fn write(&self) -> PyResult<bool> {
        Ok(self.with_view(|view| view.access() == Access::Write)?)
    }

    #[getter]
    fn drop_count(&self) -> PyResult<u64> {
        Ok(self.with_view(View::drop_count)?)
    }

    #[getter]
    fn is_released(&self) -> bool {
        self.lock().is_none()
    }

    pub(crate) fn release(&self) {
        // Dropped after the lock.
        drop(self.take());
    }

    #[pyo3(
        signature = (shape = None, dtype = DType::U8, offset = 0),
        text_signature = "($self, shape=None, dtype='uint8', offset=0)"
    )]
    fn tensor(&self, py: Python<'_>, shape: Option<Shape>, dtype: DType, offset: usize) -> PyResult<Tensor> {
        let of_view = |view: &View| (Arc::clone(view.shared()), view.start(), view.access());
        let (shared, start, access) = self.with_view(of_view)?;
        Tensor::within(py, &shared, start..start + self.size, access, shape, dtype, offset)
    }

    fn __len__(&self) -> usize {
        self.size
    }

    fn __bool__(&self) -> bool {
        true
    }

    /// Only for memory that the CPU can access.
    // SAFETY: The buffer protocol makes it unsafe. The interpreter alone calls it, with a view to be filled.
    #[expect(unsafe_code, reason = "the buffer protocol is a C interface")]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, out: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let of_view = |view: &View| (Arc::clone(view.shared()), view.parts(), view.access());
        let (shared, parts, access) = slf.get().with_view(of_view)?;
        let view = buffer::cpu_view(slf.py(), &shared, Some(parts), access)?;
        // SAFETY: needed to pass on what the interpreter passes: a view to be filled, and its flags.
        unsafe { buffer::fill(slf.into_any(), Held::Allocation(view), out, flags) }
    }

    #[expect(unsafe_code, reason = "the buffer protocol is a C interface")]
    unsafe fn __releasebuffer__(&self, out: *mut ffi::Py_buffer) {
        // SAFETY: needed to pass on what the interpreter passes: a view that `__getbuffer__` has filled, once.
        unsafe { buffer::release(out) }
    }

    #[pyo3(signature = (*streams))]
    fn unpin_after(&self, py: Python<'_>, streams: Vec<u64>) -> PyResult<()> {
        check_process(self.pid)?;
        let view = self.take().ok_or_else(released)?;
        Ok(self.unpin(py, view, &streams)?)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyAny>) {
        self.release();
    }

    fn __repr__(&self) -> String {
        let text = self.with_view(|view| {
            let kind = if view.access() == Access::Write { "write" } else { "read" };
            format!("<vramd.Pin to {kind} {}>", view.facts().info.id)
        });
        text.unwrap_or_else(|_| "<vramd.Pin, released>".to_owned())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a pin belongs to its process: pin what is attached there"))
    }
}

fn released() -> Fault {
    Fault::own("HandleClosed", "the pin was released")
}
