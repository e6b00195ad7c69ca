//! `vramd.MappedFile`: a file in this process's memory, which a device reads in place.

use std::{
    ffi::c_int,
    os::fd::{BorrowedFd, RawFd},
    process,
    sync::{Arc, Mutex, PoisonError},
};

use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    ffi,
    prelude::*,
    types::PyBytes,
};
use vramd_client::FallBack;

use crate::{
    buffer,
    dtype::DType,
    error::Fault,
    held::{Held, Spot},
    interrupt::without_gil,
    shared::check_process,
    tensor::{Shape, Tensor},
};

/// The mapping, kept by the Python object and by all tensors in it.
#[derive(Debug)]
pub(crate) struct OwnFile {
    pid: u32,
    sdk: vramd_client::MappedFile,
}

impl OwnFile {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.sdk.as_slice()
    }

    pub(crate) fn device_ptr(&self) -> u64 {
        self.sdk.as_device_ptr()
    }

    pub(crate) fn spot(&self) -> Spot<'_> {
        Spot { is_device: self.sdk.is_device_memory(), uuid: self.sdk.device() }
    }

    pub(crate) fn check_own_process(&self) -> Result<(), Fault> {
        check_process(self.pid)
    }
}

/// The daemon's answer on one file and one device.
#[pyclass(frozen, module = "vramd")]
#[derive(Debug)]
pub(crate) struct FileCheck(pub(crate) vramd_client::FileCheck);

#[pymethods]
impl FileCheck {
    #[getter]
    fn in_place_by_default(&self) -> bool {
        self.0.is_in_place_by_default()
    }

    #[getter]
    fn device(&self) -> &str {
        self.0.device()
    }

    #[getter]
    fn not_in_place(&self) -> Option<NotInPlace> {
        self.0.access().err().cloned().map(NotInPlace)
    }

    fn __repr__(&self) -> String {
        let how = match self.0.access() {
            Ok(_) => "readable in place".to_owned(),
            Err(not) => format!("to be copied, {}", not.reason),
        };
        format!("<vramd.FileCheck: {how}>")
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a check belongs to its process"))
    }
}

/// Why a file is copied to a device instead of being read in place.
#[pyclass(frozen, module = "vramd")]
#[derive(Debug)]
pub(crate) struct NotInPlace(pub(crate) vramd_client::NotInPlace);

#[pymethods]
impl NotInPlace {
    #[getter]
    fn reason(&self) -> &'static str {
        self.0.reason.name()
    }

    #[getter]
    fn problem(&self) -> &str {
        &self.0.problem
    }

    fn __repr__(&self) -> String {
        format!("<vramd.NotInPlace, {}: {}>", self.0.reason, self.0.problem)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("it belongs to its process"))
    }
}

/// The reason of that name.
pub(crate) fn fall_back(name: &str) -> PyResult<FallBack> {
    let found = FallBack::ALL.into_iter().find(|reason| reason.name() == name);
    found.ok_or_else(|| PyValueError::new_err(format!("no reason is called {name:?}")))
}

/// A descriptor that the caller keeps open during a call.
pub(crate) fn borrowed(number: RawFd) -> PyResult<BorrowedFd<'static>> {
    if number < 0 {
        return Err(PyValueError::new_err("the file is closed"));
    }
    #[expect(unsafe_code, reason = "Python names descriptors by number")]
    // SAFETY: needed because Python has numbers. It is used during one call only. Closed meanwhile, it is another file or
    // none, which the kernel says.
    Ok(unsafe { BorrowedFd::borrow_raw(number) })
}

/// A file in this process's memory, read-only. Dropping it and all tensors in it unmaps it.
#[pyclass(frozen, module = "vramd")]
#[derive(Debug)]
pub(crate) struct MappedFile {
    /// `None` once it is detached.
    file: Mutex<Option<Arc<OwnFile>>>,
}

impl MappedFile {
    pub(crate) fn new(sdk: vramd_client::MappedFile) -> Self {
        Self { file: Mutex::new(Some(Arc::new(OwnFile { pid: process::id(), sdk }))) }
    }

    fn file(&self) -> Result<Arc<OwnFile>, Fault> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let file = file.ok_or_else(|| Fault::own("HandleClosed", "the mapped file was detached"))?;
        file.check_own_process()?;
        Ok(file)
    }
}

#[pymethods]
impl MappedFile {
    #[getter]
    fn size(&self) -> PyResult<usize> {
        Ok(self.file()?.bytes().len())
    }

    #[getter]
    fn device(&self) -> PyResult<String> {
        Ok(self.file()?.sdk.device().to_owned())
    }

    #[getter]
    fn device_ptr(&self) -> PyResult<u64> {
        Ok(self.file()?.device_ptr())
    }

    #[getter]
    fn is_device_memory(&self) -> PyResult<bool> {
        Ok(self.file()?.sdk.is_device_memory())
    }

    #[getter]
    fn is_mapped(&self) -> bool {
        self.file().is_ok()
    }

    #[pyo3(
        signature = (shape = None, dtype = DType::U8, offset = 0),
        text_signature = "($self, shape=None, dtype='uint8', offset=0)"
    )]
    fn tensor(&self, shape: Option<Shape>, dtype: DType, offset: usize) -> PyResult<Tensor> {
        Tensor::in_file(self.file()?, shape, dtype, offset)
    }

    #[pyo3(signature = (offset = 0, length = None))]
    fn copy_to<'py>(
        &self,
        py: Python<'py>,
        offset: usize,
        length: Option<usize>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.file()?;
        let rest = file.bytes().get(offset..);
        let bytes = rest.and_then(|rest| length.map_or(Some(rest), |length| rest.get(..length)));
        let outside = || {
            let length = length.unwrap_or(0);
            let size = file.bytes().len();
            PyValueError::new_err(format!("{length} bytes at offset {offset} exceed its {size} bytes"))
        };
        let bytes = bytes.ok_or_else(outside)?;
        // The pages may have to come from a disk.
        PyBytes::new_with(py, bytes.len(), |to| {
            without_gil(py, || {
                to.copy_from_slice(bytes);
                Ok(())
            })?;
            Ok(())
        })
    }

    fn detach(&self) {
        // Dropped after the lock.
        drop(self.file.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn __len__(&self) -> PyResult<usize> {
        self.size()
    }

    fn __bool__(&self) -> bool {
        true
    }

    fn __repr__(&self) -> String {
        match self.file() {
            Ok(file) => {
                format!("<vramd.MappedFile: {} bytes for {}>", file.bytes().len(), file.sdk.device())
            }
            Err(_) => "<vramd.MappedFile, detached>".to_owned(),
        }
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a mapping belongs to its process: load the file there"))
    }

    // SAFETY: The buffer protocol makes it unsafe. The interpreter alone calls it, with a view to be filled.
    #[expect(unsafe_code, reason = "the buffer protocol is a C interface")]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, out: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let held = Held::File(slf.get().file()?);
        // SAFETY: needed to pass on what the interpreter passes: a view to be filled, and its flags.
        unsafe { buffer::fill(slf.into_any(), held, out, flags) }
    }

    #[expect(unsafe_code, reason = "the buffer protocol is a C interface")]
    unsafe fn __releasebuffer__(&self, out: *mut ffi::Py_buffer) {
        // SAFETY: needed to pass on what the interpreter passes: a view that `__getbuffer__` has filled, once.
        unsafe { buffer::release(out) }
    }
}
