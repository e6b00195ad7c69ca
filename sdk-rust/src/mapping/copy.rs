//! Copies between the program's own memory and what is mapped, wherever that lies.

#![allow(unsafe_code, reason = "copies to and from shared mappings")]

use std::{ptr, sync::Arc};

use crate::cuda::Context;

/// The bytes of one copy. Between two copies a revoke can be answered.
pub(crate) const CHUNK_BYTES: usize = 16 << 20;

/// A whole mapped allocation, for copies. [`super::Table::copy_pinned`] lends it and keeps the allocation mapped
/// meanwhile.
#[derive(Debug)]
pub(crate) struct Window {
    place: Place,
    span: usize,
}

#[derive(Debug)]
pub(super) enum Place {
    Host { address: usize },
    Device { address: u64, context: Arc<Context> },
}

impl Window {
    pub(super) fn new(place: Place, span: usize) -> Self {
        Self { place, span }
    }

    /// Copies in, and returns when the bytes have arrived. The caller has borrowed the allocation mutably, mapped
    /// writably.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result<(), String> {
        self.check(offset, from.len())?;
        match &self.place {
            Place::Host { address } => {
                let to = ptr::with_exposed_provenance_mut::<u8>(address + offset);
                // SAFETY: needed to write shared memory. `check` keeps it inside the mapping. The calling handle is
                // borrowed mutably, so no slice of it is alive; the program's buffer is no part of it.
                unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
                Ok(())
            }
            Place::Device { address, context } => {
                context.copy_to_device(address + offset as u64, from).map_err(|fault| fault.to_string())
            }
        }
    }

    /// Copies out, and returns when the bytes have arrived.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), String> {
        self.check(offset, to.len())?;
        match &self.place {
            Place::Host { address } => {
                let from = ptr::with_exposed_provenance::<u8>(address + offset);
                // SAFETY: needed to read shared memory. `check` keeps it inside the mapping. Unsealed memory belongs
                // to the handle, which is borrowed; sealed memory is never written.
                unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
                Ok(())
            }
            Place::Device { address, context } => {
                context.copy_to_host(to, address + offset as u64).map_err(|fault| fault.to_string())
            }
        }
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), String> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.span);
        let outside =
            || format!("{len} bytes at offset {offset} exceed the allocation of {} bytes", self.span);
        inside.then_some(()).ok_or_else(outside)
    }
}
