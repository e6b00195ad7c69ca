//! Plain pinned host memory and its copies in pieces: the bare side of the daemon's moves.

#![allow(unsafe_code, reason = "host memory of the driver's own is handed over as a raw pointer")]

use std::ptr;

use anyhow::{Result, ensure};

use super::{
    Gpu,
    table::{Failed, Table},
};

const PORTABLE: u32 = 1;

/// Freed when dropped. The owner waits for its copies first.
#[derive(Debug)]
pub(crate) struct Pinned {
    table: &'static Table,
    address: usize,
    size: usize,
}

impl Gpu {
    pub(crate) fn pin(&self, size: usize) -> Result<Pinned> {
        let mut address = 0;
        self.table.host_alloc(&mut address, size, PORTABLE)?;
        ensure!(address != 0, "the driver pinned memory at address zero");
        Ok(Pinned { table: self.table, address, size })
    }

    /// Begins to copy all of it from the device, in pieces.
    pub(crate) fn begin_out(&self, from: u64, to: &mut Pinned, piece: usize) -> Result<(), Failed> {
        for offset in (0..to.size).step_by(piece) {
            let size = piece.min(to.size - offset);
            let target = ptr::with_exposed_provenance_mut(to.address + offset);
            // SAFETY: the range is inside the pinned memory, which has no borrower and outlives the copy.
            unsafe { self.table.download(target, from + offset as u64, size, self.work)? };
        }
        Ok(())
    }

    /// Begins to copy all of it to the device in pieces, beside copies from the device.
    pub(crate) fn begin_in(&self, from: &Pinned, to: u64, piece: usize) -> Result<(), Failed> {
        for offset in (0..from.size).step_by(piece) {
            let size = piece.min(from.size - offset);
            let source = ptr::with_exposed_provenance(from.address + offset);
            // SAFETY: as above; the memory is only read.
            unsafe { self.table.upload(to + offset as u64, source, size, self.aside)? };
        }
        Ok(())
    }

    /// Waits for copies in both directions.
    pub(crate) fn end_copies(&self) -> Result<(), Failed> {
        self.table.stream_synchronize(self.work)?;
        self.table.stream_synchronize(self.aside)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // This fails only in a dead context.
        let _ = self.table.host_free(self.address);
    }
}
