//! Copies between Python's buffers and the memory, in any tier.

#![allow(unsafe_code, reason = "slices over buffers of other objects")]

use std::{ops::Range, ptr::NonNull, slice};

use pyo3::{buffer::PyUntypedBuffer, exceptions::PyBufferError, prelude::*, types::PyBytes};
use vramd_client::Error;

use crate::{
    error::Fault,
    shared::{Facts, Handle, Shared},
};

pub(crate) fn to_bytes<'py>(
    py: Python<'py>,
    shared: &Shared,
    offset: u64,
    length: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    let facts = &shared.facts;
    let rest = || usize::try_from(offset).ok().and_then(|offset| facts.size.checked_sub(offset));
    let length = match length {
        Some(length) => length,
        None => rest().ok_or_else(|| outside(facts, offset, 0))?,
    };
    // Checked before Python allocates the bytes.
    if rest().is_none_or(|rest| rest < length) {
        return Err(outside(facts, offset, length).into());
    }
    let bytes = PyBytes::new_with(py, length, |to| Ok(read(py, shared, offset, to)?))?;
    Ok(bytes.into_any())
}

pub(crate) fn to_buffer(buffer: &Bound<'_, PyAny>, shared: &Shared, offset: u64) -> PyResult<()> {
    let py = buffer.py();
    let buffer = Contiguous::of(buffer)?;
    if buffer.0.readonly() {
        return Err(PyBufferError::new_err("the buffer is read-only"));
    }
    buffer.check_apart(shared)?;
    // SAFETY: needed for a slice of another object's memory. It stays there and writable while the buffer is held. As
    // with every copy that releases the GIL, another thread that reads it meanwhile sees the bytes of that moment.
    let to = unsafe { slice::from_raw_parts_mut(buffer.start().as_ptr(), buffer.len()) };
    read(py, shared, offset, to)?;
    Ok(())
}

pub(crate) fn from_buffer(buffer: &Bound<'_, PyAny>, shared: &Shared, offset: u64) -> PyResult<()> {
    let py = buffer.py();
    let buffer = Contiguous::of(buffer)?;
    buffer.check_apart(shared)?;
    // SAFETY: needed for a slice of another object's memory. It stays there while the buffer is held. As with every
    // copy that releases the GIL, it is undefined which bytes are copied if another thread writes them meanwhile.
    let from = unsafe { slice::from_raw_parts(buffer.start().as_ptr(), buffer.len()) };
    shared.write(py, |handle| match handle {
        Handle::Open(allocation) => allocation.copy_from_host(offset, from),
        Handle::Sealed(sealed) => Err(Error::NotMapped { allocation: sealed.id().to_string() }),
    })?;
    Ok(())
}

fn read(py: Python<'_>, shared: &Shared, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
    shared.read(py, |handle| match handle {
        Handle::Open(allocation) => allocation.copy_to_host(offset, to),
        Handle::Sealed(sealed) => sealed.copy_to_host(offset, to),
    })
}

/// A buffer that is one run of bytes.
struct Contiguous(PyUntypedBuffer);

impl Contiguous {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        if buffer.is_c_contiguous() {
            Ok(Self(buffer))
        } else {
            Err(PyBufferError::new_err("the buffer is not contiguous: copy it first"))
        }
    }

    fn len(&self) -> usize {
        self.0.len_bytes()
    }

    /// The start of the buffer; an empty one may have a null pointer.
    fn start(&self) -> NonNull<u8> {
        NonNull::new(self.0.buf_ptr().cast()).unwrap_or(NonNull::dangling())
    }

    /// Refuses a buffer that overlaps the allocation.
    fn check_apart(&self, shared: &Shared) -> PyResult<()> {
        let facts = &shared.facts;
        let start = self.start().as_ptr().addr();
        let (theirs, ours) = (start..start + self.len(), facts.address()..facts.address() + facts.size);
        if facts.is_device() || !overlap(&theirs, &ours) {
            return Ok(());
        }
        Err(PyBufferError::new_err(
            "the buffer lies in the same allocation: assign through a memoryview instead",
        ))
    }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

fn outside(facts: &Facts, offset: u64, length: usize) -> Fault {
    Fault::from(Error::CopyFailed {
        allocation: facts.info.id.to_string(),
        problem: format!("{length} bytes at offset {offset} exceed its {} bytes", facts.size),
    })
}
