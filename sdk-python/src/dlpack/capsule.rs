//! Capsules: made here, then taken and released by a consumer, or by the interpreter if no consumer takes them.

#![allow(unsafe_code, reason = "DLPack is a C interface")]

use std::{
    ffi::{CStr, c_void},
    ptr::{self, NonNull},
};

use pyo3::{ffi, prelude::*, types::PyCapsule};

use super::{
    abi::{DataType, Device, FLAG_READ_ONLY, Managed, Tensor, VERSION, Versioned},
    device,
};
use crate::{dtype::DType, held::Held};

const NAME: &CStr = c"dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";

/// The content of a capsule: a C-contiguous tensor in the memory.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) held: Held,
    pub(crate) offset: usize,
    pub(crate) dtype: DType,
    pub(crate) shape: Box<[i64]>,
    /// In elements.
    pub(crate) strides: Box<[i64]>,
}

/// The consumer gets the pointer to `managed`, the first field; its context is the whole box.
#[repr(C)]
struct Owned<T> {
    managed: T,
    content: Content,
}

pub(crate) fn export<'py>(py: Python<'py>, content: Content, versioned: bool) -> PyResult<Bound<'py, PyAny>> {
    let tensor = describe(&content)?;
    let capsule = if versioned {
        let flags = if content.held.is_writable() { 0 } else { FLAG_READ_ONLY };
        let managed = Versioned {
            version: VERSION,
            context: ptr::null_mut(),
            deleter: delete::<Versioned>,
            flags,
            tensor,
        };
        wrap(py, Owned { managed, content }, VERSIONED_NAME, discard_versioned)
    } else {
        let managed = Managed { tensor, context: ptr::null_mut(), deleter: delete::<Managed> };
        wrap(py, Owned { managed, content }, NAME, discard)
    };
    Ok(capsule?.into_any())
}

fn describe(content: &Content) -> PyResult<Tensor> {
    let (kind, number) = device(content.held.spot())?;
    let dims = |numbers: &[i64]| numbers.as_ptr().cast_mut();
    Ok(Tensor {
        data: ptr::with_exposed_provenance_mut(content.held.address()? + content.offset),
        device: Device { kind, number },
        ndim: i32::try_from(content.shape.len()).unwrap_or(i32::MAX),
        dtype: DataType { code: content.dtype.code, bits: content.dtype.bits, lanes: 1 },
        // Boxed, so they stay where they are when the content moves.
        shape: dims(&content.shape),
        strides: dims(&content.strides),
        byte_offset: 0,
    })
}

fn wrap<'py, T>(
    py: Python<'py>,
    owned: Owned<T>,
    name: &'static CStr,
    discard: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Bound<'py, PyCapsule>> {
    let raw = Box::into_raw(Box::new(owned));
    let pointer = NonNull::new(raw.cast::<c_void>()).expect("a box is somewhere");
    // SAFETY: needed for a capsule with a name and content of DLPack's. The pointer is valid until the deleter is
    // called, which the consumer does once, or `discard` if there is none.
    let capsule = unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, name, Some(discard)) };
    if capsule.is_err() {
        // SAFETY: needed to take back the box that no capsule owns. It was a box above.
        drop(unsafe { Box::from_raw(raw) });
    }
    capsule
}

/// The deleter that a consumer calls when it is done.
unsafe extern "C" fn delete<T>(managed: *mut T) {
    // SAFETY: needed to take back a box that C code held. `managed` is its first field, and a deleter is called once.
    drop(unsafe { Box::from_raw(managed.cast::<Owned<T>>()) });
}

unsafe extern "C" fn discard(capsule: *mut ffi::PyObject) {
    // SAFETY: needed because the interpreter calls it so, with the capsule that ends. A capsule that still has its
    // name was not taken by a consumer.
    unsafe { discard_named::<Managed>(capsule, NAME) };
}

unsafe extern "C" fn discard_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as above.
    unsafe { discard_named::<Versioned>(capsule, VERSIONED_NAME) };
}

/// # Safety
/// A capsule of that name has a `T` made here.
unsafe fn discard_named<T>(capsule: *mut ffi::PyObject, name: &CStr) {
    // SAFETY: needed to ask a capsule for its pointer. The caller passes one that is alive.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, name.as_ptr()).cast::<T>());
        }
    }
}
