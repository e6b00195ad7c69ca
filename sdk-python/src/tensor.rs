//! `vramd.Tensor`: memory with a shape and a type of elements, for NumPy, PyTorch and their like.

use std::{
    ffi::{CStr, c_int},
    ops::Range,
    sync::Arc,
};

use pyo3::{
    exceptions::{PyAttributeError, PyBufferError, PyTypeError, PyValueError},
    ffi,
    prelude::*,
    types::{PyDict, PyTuple},
};
use vramd_client::Access;

use crate::{
    buffer::{self, Layout},
    dlpack::{self, Content, ExportRequest},
    dtype::DType,
    held::Held,
    mapped_file::OwnFile,
    shared::Shared,
};

/// The largest number of dimensions; no library takes more.
const DIMENSIONS_MAX: usize = 64;

/// A C-contiguous tensor in memory that the daemon owns. The tensor, and everything made from it, keeps that memory
/// mapped.
#[pyclass(frozen, module = "vramd")]
#[derive(Debug)]
pub(crate) struct Tensor {
    held: Held,
    address: usize,
    /// In what is held.
    offset: usize,
    dtype: DType,
    /// In elements.
    shape: Vec<isize>,
    /// In bytes.
    strides: Vec<isize>,
    bytes: usize,
}

/// How many elements, or how many along each dimension.
#[derive(Debug, FromPyObject)]
pub(crate) enum Shape {
    Flat(isize),
    Dimensions(Vec<isize>),
}

impl Tensor {
    /// A tensor at `offset` in a range of the memory's bytes. It pins only the parts in which it lies.
    pub(crate) fn within(
        py: Python<'_>,
        shared: &Arc<Shared>,
        range: Range<usize>,
        access: Access,
        shape: Option<Shape>,
        dtype: DType,
        offset: usize,
    ) -> PyResult<Self> {
        let form = Form::of(range.len(), shape, dtype, offset)?;
        let start = range.start + offset;
        let view = shared.view_of(py, &(start..start + form.bytes), access)?;
        let offset = start - view.start();
        Self::new(Held::Allocation(view), offset, dtype, form)
    }

    /// A tensor at `offset` in a mapped file.
    pub(crate) fn in_file(
        file: Arc<OwnFile>,
        shape: Option<Shape>,
        dtype: DType,
        offset: usize,
    ) -> PyResult<Self> {
        let form = Form::of(file.bytes().len(), shape, dtype, offset)?;
        Self::new(Held::File(file), offset, dtype, form)
    }

    fn new(held: Held, offset: usize, dtype: DType, form: Form) -> PyResult<Self> {
        let address = held.address()? + offset;
        let Form { shape, strides, bytes } = form;
        Ok(Self { held, address, offset, dtype, shape, strides, bytes })
    }

    pub(crate) fn export<'py>(
        &self,
        py: Python<'py>,
        request: &ExportRequest,
    ) -> PyResult<Bound<'py, PyAny>> {
        request.check(self.held.spot(), self.held.is_writable())?;
        let item = small(self.dtype.size())?;
        let wide = |numbers: &mut dyn Iterator<Item = isize>| numbers.map(|number| number as i64).collect();
        let content = Content {
            held: self.held.again(py)?,
            offset: self.offset,
            dtype: self.dtype,
            shape: wide(&mut self.shape.iter().copied()),
            strides: wide(&mut self.strides.iter().map(|stride| stride / item)),
        };
        dlpack::export(py, content, request.is_versioned())
    }

    fn format(&self) -> PyResult<&'static CStr> {
        self.dtype.format.ok_or_else(|| {
            PyBufferError::new_err(format!(
                "the buffer protocol has no {}: use DLPack, or a tensor of uint8",
                self.dtype.name
            ))
        })
    }
}

#[pymethods]
impl Tensor {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes
    }

    #[getter]
    fn device_ptr(&self) -> usize {
        self.address
    }

    #[getter]
    fn readonly(&self) -> bool {
        !self.held.is_writable()
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if !self.held.spot().is_device {
            return Err(PyAttributeError::new_err("the memory is not a GPU's"));
        }
        let typestr = self.dtype.typestr.ok_or_else(|| {
            PyAttributeError::new_err(format!("this interface has no {}: use DLPack", self.dtype.name))
        })?;
        let interface = PyDict::new(py);
        interface.set_item("shape", self.shape(py)?)?;
        interface.set_item("typestr", typestr)?;
        interface.set_item("data", (self.device_ptr(), self.readonly()))?;
        interface.set_item("strides", py.None())?;
        interface.set_item("stream", py.None())?;
        interface.set_item("version", 3)?;
        Ok(interface)
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
        self.export(py, &ExportRequest { stream, max_version, dl_device, copy })
    }

    fn __dlpack_device__(&self) -> PyResult<(i32, i32)> {
        dlpack::device(self.held.spot())
    }

    fn __repr__(&self) -> String {
        let kind = if self.readonly() { "read-only" } else { "writable" };
        let memory = self.held.name();
        format!("<vramd.Tensor {} {:?} in {memory}, {kind}>", self.dtype.name, self.shape)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a mapping belongs to its process: attach the allocation by its name there"))
    }

    // SAFETY: The buffer protocol makes it unsafe. The interpreter alone calls it, with a view to be filled.
    #[expect(unsafe_code, reason = "the buffer protocol is a C interface")]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, out: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let tensor = slf.clone();
        let tensor = tensor.get();
        let layout = Layout {
            offset: tensor.offset,
            len: tensor.bytes,
            item_size: tensor.dtype.size(),
            format: tensor.format()?,
            shape: &tensor.shape,
            strides: &tensor.strides,
        };
        let held = match &tensor.held {
            Held::Allocation(view) => {
                let parts = Some(view.parts());
                Held::Allocation(buffer::cpu_view(slf.py(), view.shared(), parts, view.access())?)
            }
            file @ Held::File(_) => file.again(slf.py())?,
        };
        // SAFETY: needed to pass on the interpreter's arguments. The layout was checked when the tensor was made, and
        // belongs to the tensor, which never changes it.
        unsafe { buffer::fill_shaped(slf.into_any(), held, &layout, out, flags) }
    }

    #[expect(unsafe_code, reason = "the buffer protocol is a C interface")]
    unsafe fn __releasebuffer__(&self, out: *mut ffi::Py_buffer) {
        // SAFETY: needed to pass on what the interpreter passes: a view that `__getbuffer__` has filled, once.
        unsafe { buffer::release(out) }
    }
}

/// The shape of a tensor, with what follows from it.
#[derive(Debug)]
struct Form {
    shape: Vec<isize>,
    strides: Vec<isize>,
    bytes: usize,
}

impl Form {
    /// Checks a tensor at `offset` in so many bytes. Without a shape it takes all that follow.
    fn of(size: usize, shape: Option<Shape>, dtype: DType, offset: usize) -> PyResult<Self> {
        let rest = size
            .checked_sub(offset)
            .ok_or_else(|| PyValueError::new_err(format!("offset {offset} is beyond its {size} bytes")))?;
        if !offset.is_multiple_of(dtype.size()) {
            return Err(PyValueError::new_err(format!("offset {offset} is not aligned for {}", dtype.name)));
        }
        let shape = match shape {
            Some(Shape::Flat(length)) => vec![length],
            Some(Shape::Dimensions(dimensions)) => dimensions,
            None if rest.is_multiple_of(dtype.size()) => vec![small(rest / dtype.size())?],
            None => {
                let problem = format!("{rest} bytes are not a whole number of {}: pass a shape", dtype.name);
                return Err(PyValueError::new_err(problem));
            }
        };
        let (strides, bytes) = measure(&shape, dtype.size())?;
        if bytes > rest {
            return Err(PyValueError::new_err(format!(
                "a tensor of {bytes} bytes at offset {offset} exceeds its {size} bytes"
            )));
        }
        Ok(Self { shape, strides, bytes })
    }
}

/// The strides of a C-contiguous tensor, and its size in bytes.
fn measure(shape: &[isize], item: usize) -> PyResult<(Vec<isize>, usize)> {
    let problem = |what: &str| PyValueError::new_err(format!("the shape {shape:?} {what}"));
    if shape.len() > DIMENSIONS_MAX {
        return Err(PyValueError::new_err(format!(
            "{} dimensions requested, at most {DIMENSIONS_MAX} are possible",
            shape.len()
        )));
    }
    if shape.iter().any(|length| *length < 0) {
        return Err(problem("has a negative length"));
    }
    let mut strides = vec![0; shape.len()];
    let mut stride = small(item)?;
    let mut empty = false;
    for (slot, length) in strides.iter_mut().zip(shape).rev() {
        *slot = stride;
        empty |= *length == 0;
        stride = stride.checked_mul(*(length.max(&1))).ok_or_else(|| problem("is too large"))?;
    }
    Ok((strides, if empty { 0 } else { stride.unsigned_abs() }))
}

fn small(number: usize) -> PyResult<isize> {
    isize::try_from(number).map_err(|_| PyValueError::new_err("the number is too large for this process"))
}
