//! `vramd.StagingBuffer`: host memory to read into before a copy to a GPU.

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use pyo3::{exceptions::PyTypeError, ffi, prelude::*};

/// Its bytes are a writable buffer of the interpreter's.
#[pyclass(frozen, module = "vramd")]
#[derive(Debug)]
pub(crate) struct StagingBuffer {
    /// Only the interpreter's buffers reach the bytes from here on.
    memory: vramd_client::StagingBuffer,
    address: usize,
    len: usize,
}

impl StagingBuffer {
    pub(crate) fn new(mut memory: vramd_client::StagingBuffer) -> Self {
        let (address, len) = (memory.as_mut_ptr().expose_provenance(), memory.len());
        Self { memory, address, len }
    }
}

#[pymethods]
impl StagingBuffer {
    #[getter]
    fn is_page_locked(&self) -> bool {
        self.memory.is_page_locked()
    }

    fn __len__(&self) -> usize {
        self.len
    }

    fn __repr__(&self) -> String {
        let kind = if self.is_page_locked() { "page-locked" } else { "ordinary" };
        format!("<vramd.StagingBuffer: {} bytes, {kind}>", self.len)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a staging buffer belongs to its process"))
    }

    // SAFETY: The buffer protocol makes it unsafe. The interpreter alone calls it, with a view to be filled.
    #[expect(unsafe_code, reason = "the buffer protocol is a C interface")]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let start = ptr::with_exposed_provenance_mut::<c_void>(this.address);
        let len = isize::try_from(this.len)?;
        // SAFETY: needed to fill the interpreter's structure. The memory lives as long as this object, which the buffer
        // keeps, and nothing else of this process touches its bytes.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
