//! Physical memory and addresses, separately: two plain programs create, export, import and map them to share memory.

#![allow(unsafe_code, reason = "the driver hands out a descriptor as a number")]

use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use anyhow::{Result, ensure};

use super::{
    Gpu,
    table::{AccessDesc, AllocationProp, Location, Table},
};

const PINNED: i32 = 1;
const POSIX_FD: i32 = 1;
const ON_DEVICE: i32 = 1;
const READ_ONLY: i32 = 1;
const READ_WRITE: i32 = 3;

/// A piece of physical device memory, created here or imported. Released when dropped; its mappings keep it alive.
#[derive(Debug)]
pub(crate) struct Extent {
    table: &'static Table,
    handle: u64,
    size: usize,
}

/// Addresses with extents mapped one after the other, readable or writable. Unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Span {
    table: &'static Table,
    address: u64,
    size: usize,
    /// Offset and size of each extent.
    mapped: Vec<(usize, usize)>,
}

impl Gpu {
    pub(crate) fn create(&self, size: usize) -> Result<Extent> {
        let prop = AllocationProp {
            kind: PINNED,
            handle_types: POSIX_FD,
            location: self.location(),
            windows: 0,
            compression: 0,
            rdma_capable: u8::from(self.rdma_capable),
            usage: 0,
            reserved: [0; 4],
        };
        let mut handle = 0;
        self.table.create(&mut handle, size, &prop, 0)?;
        Ok(Extent { table: self.table, handle, size })
    }

    pub(crate) fn import(&self, fd: BorrowedFd<'_>, size: usize) -> Result<Extent> {
        let mut handle = 0;
        self.table.import(&mut handle, usize::try_from(fd.as_raw_fd())?, POSIX_FD)?;
        Ok(Extent { table: self.table, handle, size })
    }

    /// Maps extents in sequence, and sets access once over all of them.
    pub(crate) fn map(&self, extents: &[Extent], writable: bool) -> Result<Span> {
        let size = extents.iter().map(|extent| extent.size).sum();
        let mut span =
            Span { table: self.table, address: 0, size, mapped: Vec::with_capacity(extents.len()) };
        self.table.reserve(&mut span.address, size, 0, 0, 0)?;
        self.map_at(&mut span, extents, writable)?;
        Ok(span)
    }

    /// Maps extents into this range, which is unmapped and as long as they are.
    pub(crate) fn map_at(&self, span: &mut Span, extents: &[Extent], writable: bool) -> Result<()> {
        ensure!(span.mapped.is_empty(), "something is mapped there");
        let size: usize = extents.iter().map(|extent| extent.size).sum();
        ensure!(size == span.size, "{size} bytes for {} addresses", span.size);
        let mut offset = 0;
        for extent in extents {
            self.table.map(span.address + offset as u64, extent.size, 0, extent.handle, 0)?;
            span.mapped.push((offset, extent.size));
            offset += extent.size;
        }
        let flags = if writable { READ_WRITE } else { READ_ONLY };
        let access = AccessDesc { location: self.location(), flags };
        self.table.set_access(span.address, size, &access, 1)?;
        Ok(())
    }

    fn location(&self) -> Location {
        Location { kind: ON_DEVICE, id: self.device }
    }
}

impl Extent {
    pub(crate) fn export(&self) -> Result<OwnedFd> {
        let mut fd = -1;
        self.table.export(&mut fd, self.handle, POSIX_FD, 0)?;
        ensure!(fd >= 0, "the driver exported {fd}");
        // SAFETY: the driver returns a number. It has just created this descriptor, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Span {
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Unmaps everything and keeps the addresses.
    pub(crate) fn unmap(&mut self) -> Result<()> {
        for (offset, size) in self.mapped.drain(..) {
            self.table.unmap(self.address + offset as u64, size)?;
        }
        Ok(())
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        // This fails only in a dead context, in which the driver has already released the memory.
        let _ = self.table.release(self.handle);
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        for (offset, size) in self.mapped.drain(..) {
            // As above.
            let _ = self.table.unmap(self.address + offset as u64, size);
        }
        let _ = self.table.address_free(self.address, self.size);
    }
}
