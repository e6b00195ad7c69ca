//! The device addresses of an allocation, kept for its life, and the parts mapped there.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use super::{api::RawMemory, context::Context, fault::Fault};

/// A range of device addresses that nothing else uses.
#[derive(Debug)]
pub(crate) struct Arena {
    context: Arc<Context>,
    base: u64,
    span: usize,
}

impl Arena {
    pub(crate) fn reserve(context: Arc<Context>, span: usize) -> Result<Self, String> {
        let reserve = |context: &Context| context.enter()?.api().reserve(span);
        let base = reserve(&context)
            .map_err(|fault| format!("reserving {span} bytes of device addresses failed: {fault}"))?;
        Ok(Self { context, base, span })
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn span(&self) -> usize {
        self.span
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Maps the memory of `fd` at `offset`; access is set later. Once the returned import is dropped, only the
    /// mapping keeps the memory; threads that wait for the memory need not wait for that drop.
    pub(crate) fn map(&self, fd: OwnedFd, offset: usize, size: usize) -> Result<Imported, String> {
        let place = self.place(offset, size)?;
        let map = || -> Result<Imported, Fault> {
            let current = self.context.enter()?;
            let memory = current.api().import(fd.as_fd())?;
            let imported = Imported { context: Arc::clone(&self.context), memory, _fd: fd };
            current.api().map(place, size, memory)?;
            Ok(imported)
        };
        map().map_err(|fault| fault.to_string())
    }

    /// Grants this process's kernels and copies access to a range of whole mapped parts.
    pub(crate) fn set_access(&self, offset: usize, size: usize, writable: bool) -> Result<(), String> {
        let place = self.place(offset, size)?;
        let set = || -> Result<(), Fault> {
            let current = self.context.enter()?;
            current.api().set_access(place, size, current.device(), writable)
        };
        set().map_err(|fault| fault.to_string())
    }

    /// Unmaps one part; its addresses stay reserved. It does not wait for kernels.
    pub(crate) fn unmap(&self, offset: usize, size: usize) -> Result<(), String> {
        let place = self.place(offset, size)?;
        let unmap = || -> Result<(), Fault> { self.context.enter()?.api().unmap(place, size) };
        unmap().map_err(|fault| fault.to_string())
    }

    fn place(&self, offset: usize, size: usize) -> Result<u64, String> {
        let inside = size > 0 && offset.checked_add(size).is_some_and(|end| end <= self.span);
        let outside = || format!("{size} bytes at offset {offset} exceed the span of {} bytes", self.span);
        u64::try_from(offset).ok().filter(|_| inside).map(|offset| self.base + offset).ok_or_else(outside)
    }
}

/// The imported memory and the descriptor that a part was mapped by. Dropping it releases and closes them.
#[derive(Debug)]
pub(crate) struct Imported {
    context: Arc<Context>,
    memory: RawMemory,
    _fd: OwnedFd,
}

impl Drop for Imported {
    fn drop(&mut self) {
        let release = || -> Result<(), Fault> { self.context.enter()?.api().release_memory(self.memory) };
        // This fails if the context is lost, and the import with it.
        let _ = release();
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let free =
            || -> Result<(), Fault> { self.context.enter()?.api().free_addresses(self.base, self.span) };
        // This fails if the context is lost, or if a part is still mapped; then only addresses leak, which are
        // plenty.
        let _ = free();
    }
}
