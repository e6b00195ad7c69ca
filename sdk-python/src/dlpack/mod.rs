//! DLPack: how tensors pass from one library to another without a copy.
//!
//! A capsule owns a view of its memory. The library that takes it releases it by calling the deleter, on any thread,
//! at any time, also while the interpreter ends. So nothing in it belongs to Python.

mod abi;
mod capsule;

use pyo3::{exceptions::PyBufferError, prelude::*};
use vramd_client::cuda_ordinal;

pub(crate) use self::capsule::{Content, export};
use crate::{error::Fault, held::Spot};

/// The arguments of `__dlpack__`, as a library passes them.
#[derive(Debug)]
pub(crate) struct ExportRequest {
    pub(crate) stream: Option<i64>,
    pub(crate) max_version: Option<(u32, u32)>,
    pub(crate) dl_device: Option<(i32, i32)>,
    pub(crate) copy: Option<bool>,
}

impl ExportRequest {
    /// Refuses requests other than for the memory itself, where it lies.
    ///
    /// It waits for no stream: the SDK's copies have ended when they return, and the program orders its own kernels.
    pub(crate) fn check(&self, spot: Spot<'_>, is_writable: bool) -> PyResult<()> {
        let own = device(spot)?;
        if self.dl_device.is_some_and(|device| device != own) {
            return Err(PyBufferError::new_err("the memory stays on its device: copy it there first"));
        }
        if self.copy == Some(true) {
            return Err(PyBufferError::new_err("no copies are made here: use copy_to or copy_into"));
        }
        if !spot.is_device && self.stream.is_some_and(|stream| stream != -1) {
            return Err(PyBufferError::new_err("memory of the CPU has no stream"));
        }
        if spot.is_device && self.stream == Some(0) {
            return Err(PyBufferError::new_err(
                "stream 0 is ambiguous: 1 is the legacy default, 2 the per-thread one",
            ));
        }
        if !is_writable && !self.is_versioned() {
            // Older capsules cannot mark memory as read-only, and a write would end the process or its context.
            return Err(PyBufferError::new_err(
                "the memory is sealed, or pinned to read: it is read-only, which DLPack can say from 1.0 on",
            ));
        }
        Ok(())
    }

    pub(crate) fn is_versioned(&self) -> bool {
        self.max_version.is_some_and(|(major, _)| major >= 1)
    }
}

/// The kind and number of a device, as `__dlpack_device__` returns them.
pub(crate) fn device(spot: Spot<'_>) -> PyResult<(i32, i32)> {
    if !spot.is_device {
        return Ok((abi::CPU, 0));
    }
    let uuid = spot.uuid;
    let unseen = || Fault::own("Error", format!("CUDA does not show {uuid} to this process"));
    let ordinal = cuda_ordinal(uuid).ok_or_else(unseen)?;
    Ok((abi::CUDA, ordinal))
}
