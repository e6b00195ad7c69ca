//! The buffer protocol: memory that the CPU can access, as `memoryview`, NumPy and others read it.
//!
//! Each exported buffer owns a [`Held`], which ends when the buffer is released.

#![allow(unsafe_code, reason = "the buffer protocol is a C interface")]

use std::{
    ffi::{CStr, c_int, c_void},
    ops::Range,
    ptr,
    sync::Arc,
};

use pyo3::{exceptions::PyBufferError, ffi, prelude::*};
use vramd_client::{Access, Error};

use crate::{
    error::Fault,
    held::Held,
    shared::Shared,
    view::{PinRequest, View},
};

/// Fills a view of plain bytes.
///
/// # Safety
/// `out` and `flags` are the interpreter's own arguments for `owner`, and `owner` keeps nothing else in such a
/// buffer.
pub(crate) unsafe fn fill(
    owner: Bound<'_, PyAny>,
    held: Held,
    out: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let address = ptr::with_exposed_provenance_mut::<c_void>(held.host_address()?);
    let (len, read_only) = (length(held.len()?)?, c_int::from(!held.is_writable()));
    // SAFETY: needed to fill a C structure, which the caller promises it is. The memory is mapped for as long as what is
    // put into it below lives.
    let filled = unsafe { ffi::PyBuffer_FillInfo(out, owner.as_ptr(), address, len, read_only, flags) };
    if filled != 0 {
        return Err(PyErr::fetch(owner.py()));
    }
    // SAFETY: as above. `release` takes it back.
    unsafe { (*out).internal = Box::into_raw(Box::new(held)).cast() };
    Ok(())
}

/// The layout of a tensor; the pointers live as long as the tensor does.
#[derive(Debug)]
pub(crate) struct Layout<'a> {
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) item_size: usize,
    pub(crate) format: &'static CStr,
    pub(crate) shape: &'a [isize],
    pub(crate) strides: &'a [isize],
}

/// Fills a view of a tensor, C-contiguous.
///
/// # Safety
/// As [`fill`]; `layout` is inside of the memory, and its slices belong to `owner`, which never changes them.
pub(crate) unsafe fn fill_shaped(
    owner: Bound<'_, PyAny>,
    held: Held,
    layout: &Layout<'_>,
    out: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let requested = |flag: c_int| flags & flag == flag;
    if requested(ffi::PyBUF_WRITABLE) && !held.is_writable() {
        return Err(PyBufferError::new_err(
            "the memory is sealed, a file, or pinned to read: it is read-only",
        ));
    }
    if requested(ffi::PyBUF_F_CONTIGUOUS) && !requested(ffi::PyBUF_C_CONTIGUOUS) && layout.shape.len() > 1 {
        return Err(PyBufferError::new_err("the tensor is C-contiguous, not Fortran's"));
    }
    let constant = |numbers: &[isize]| numbers.as_ptr().cast_mut();
    let buffer = ffi::Py_buffer {
        buf: ptr::with_exposed_provenance_mut(held.host_address()? + layout.offset),
        len: length(layout.len)?,
        itemsize: length(layout.item_size)?,
        readonly: c_int::from(!held.is_writable()),
        ndim: c_int::try_from(layout.shape.len())
            .map_err(|_| PyBufferError::new_err("too many dimensions"))?,
        format: if requested(ffi::PyBUF_FORMAT) {
            layout.format.as_ptr().cast_mut()
        } else {
            ptr::null_mut()
        },
        shape: if requested(ffi::PyBUF_ND) { constant(layout.shape) } else { ptr::null_mut() },
        strides: if requested(ffi::PyBUF_STRIDES) { constant(layout.strides) } else { ptr::null_mut() },
        suboffsets: ptr::null_mut(),
        internal: Box::into_raw(Box::new(held)).cast(),
        obj: owner.into_ptr(),
    };
    // SAFETY: needed to fill a C structure, which the caller says is one.
    unsafe { out.write(buffer) };
    Ok(())
}

/// Ends a view that was filled here.
///
/// # Safety
/// `out` was filled by one of the above, and is released once.
pub(crate) unsafe fn release(out: *mut ffi::Py_buffer) {
    // SAFETY: needed to take back what was put there. The caller promises that it is there and was not taken.
    drop(unsafe { Box::from_raw((*out).internal.cast::<Held>()) });
}

/// A view of some parts, or all, for the CPU.
pub(crate) fn cpu_view(
    py: Python<'_>,
    shared: &Arc<Shared>,
    parts: Option<Range<u32>>,
    access: Access,
) -> PyResult<View> {
    let refused = || Fault::from(Error::DeviceMemory { allocation: shared.id().to_string() });
    if shared.facts.is_device() {
        return Err(refused().into());
    }
    let view = shared.pin_view(py, parts, PinRequest { access, wait: None })?;
    // Memory that had never arrived may turn out to be device memory.
    if shared.facts.is_device() { Err(refused().into()) } else { Ok(view) }
}

fn length(bytes: usize) -> PyResult<isize> {
    isize::try_from(bytes).map_err(|_| PyBufferError::new_err("too large for a buffer"))
}
